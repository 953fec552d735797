"""`summary.json`: the results of a run in a few numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mathppo.config import Config
from mathppo.evaluate.accuracy import Evaluation
from mathppo.metrics import read_rows
from mathppo.pipeline.run_directory import RunDirectory, versions
from mathppo.storage.files import write_file, write_record

TIMED = ("generate", "grade", "learn", "other")
"""Stages of an iteration, timed in its row of the metrics log."""


def add_wall_time(run: RunDirectory, seconds: Mapping[str, float]) -> dict[str, float]:
    """Add this process's wall time by stage to that of the run's earlier processes, and return the sums.

    The time of a process that was killed is not known and not counted.
    """
    file = run.wall_time
    earlier = msgspec.json.decode(file.read_bytes(), type=dict[str, float]) if file.is_file() else {}
    total = {stage: earlier.get(stage, 0.0) + seconds.get(stage, 0.0) for stage in {**earlier, **seconds}}
    write_file(file, msgspec.json.encode(total))
    return total


def write_summary(
    run: RunDirectory,
    config: Config,
    *,
    first: Sequence[Evaluation],
    last: Sequence[Evaluation],
    seconds: Mapping[str, float],
) -> None:
    """Write accuracies before and after training, and the wall time by stage.

    Args:
        run: the run directory.
        config: of the run.
        first: evaluations of the warm start.
        last: evaluations of the last policy.
        seconds: wall time by stage; that of an iteration's stages is added from the metrics log.
    """
    _, iterations = read_rows(run.metrics) if run.metrics.exists() else ([], [])
    spent = {stage: sum(_number(row.metrics.get(f"{stage}_s")) for row in iterations) for stage in TIMED}
    summary = {
        "schema": "summary/1",
        "algorithm": config.learner.algorithm,
        "reward": config.reward.kind,
        "seed": config.run.seed,
        "iterations": len(iterations),
        "warmstart": _accuracies(first),
        "final": _accuracies(last),
        "wall_s": {name: round(value, 3) for name, value in {**seconds, **spent}.items()},
        "versions": versions(),
    }
    write_record(run.summary, summary)


def _accuracies(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Return a policy's accuracies by mode, with their intervals and the shares that qualify them."""
    rows = {str(evaluation.mode): evaluation.overall for evaluation in evaluations}
    return {
        **{mode: row.accuracy for mode, row in rows.items()},
        "n": max(row.num_samples for row in rows.values()),
        "intervals": {mode: [row.low, row.high] for mode, row in rows.items()},
        "truncated_share": {mode: row.truncated_share for mode, row in rows.items()},
        "no_answer_share": {mode: row.no_answer_share for mode, row in rows.items()},
    }


def _number(value: float | list[float] | None) -> float:
    return value if isinstance(value, float) else 0.0
