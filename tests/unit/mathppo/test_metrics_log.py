"""Table of metrics, and the metrics log."""

from pathlib import Path

import msgspec
import pytest

from mathppo.errors import BadArtefact, BadInput
from mathppo.metrics import (
    NUM_POSITIONS,
    TRAINING_METRICS,
    CriticPretraining,
    Iteration,
    append_row,
    check,
    read_rows,
)


def test_every_metric_has_a_unit_and_a_meaning() -> None:
    for name, metric in TRAINING_METRICS.items():
        assert metric.unit in {"1", "nats", "tokens", "s", "tokens/s", "count", "flag"}, name
        assert len(metric.meaning) > 15, name
        if name.endswith("_s"):
            assert metric.unit in {"s", "tokens/s"}, name


def test_row_of_all_metrics_is_valid() -> None:
    check({n: [0.5] * NUM_POSITIONS if n.endswith(("_by_position", "_by_size")) else 0.5 for n in TRAINING_METRICS})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"acuracy": 0.5}, "'acuracy': expected a name in TRAINING_METRICS"),
        ({"accuracy": float("nan")}, "'accuracy': expected finite numbers, got nan"),
        ({"ratio_max": float("inf")}, "'ratio_max': expected finite"),
        ({"value_by_position": [0.0] * 9 + [float("nan")]}, "expected finite"),
        ({"value_by_position": [0.0] * 9}, "expected 10 numbers, got 9 numbers"),
        ({"value_by_position": 0.5}, "expected 10 numbers, got one number"),
        ({"accuracy": [0.5]}, "expected one number, got 1 numbers"),
    ],
)
def test_invalid_rows_are_rejected(row, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check(row)
    with pytest.raises(BadInput, match=message):
        Iteration(iteration=1, metrics=row)
    with pytest.raises(BadInput, match=message):
        CriticPretraining(epoch=1, metrics=row)


def test_line_has_the_documented_format() -> None:
    row = Iteration(iteration=12, metrics={"accuracy": 0.5})
    assert msgspec.json.encode(row) == b'{"schema":"iteration/1","iteration":12,"metrics":{"accuracy":0.5}}'


def test_log_survives_a_kill_and_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_row(path, CriticPretraining(epoch=1, metrics={"value_loss": 0.2}))
    append_row(path, Iteration(iteration=1, metrics={"accuracy": 0.1}))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"schema":"iteration/1","itera')
    epochs, iterations = read_rows(path)
    assert ([e.epoch for e in epochs], [i.iteration for i in iterations]) == ([1], [1])
    append_row(path, Iteration(iteration=2, metrics={"accuracy": 0.3}))
    append_row(path, Iteration(iteration=2, metrics={"accuracy": 0.4}))
    assert path.read_bytes().startswith(whole)
    _, iterations = read_rows(path)
    assert [(i.iteration, i.metrics["accuracy"]) for i in iterations] == [(1, 0.1), (2, 0.4)]


@pytest.mark.parametrize("line", ["not json", '{"schema":"rollout/1"}', '{"schema":"iteration/1","iteration":1}'])
def test_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    append_row(path, Iteration(iteration=1, metrics={}))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(BadArtefact, match=r"metrics\.jsonl line 2: expected an iteration"):
        read_rows(path)


def test_line_with_an_unknown_metric_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"schema":"iteration/1","iteration":1,"metrics":{"nonsense":1}}\n')
    with pytest.raises(BadArtefact, match="nonsense"):
        read_rows(path)
