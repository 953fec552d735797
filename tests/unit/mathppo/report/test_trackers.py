"""Metrics sent to trackers: small fakes of their interfaces, and the message if one is not installed."""

import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from mathppo.errors import BadInput, BadSetting
from mathppo.metrics import Iteration, append_row
from mathppo.report import trackers
from mathppo.report.trackers import track


class Recorder(types.ModuleType):
    """Fake of `trackio` and `wandb` that records calls."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[Any] = []

    def init(self, **options: Any) -> None:
        self.calls.append(options)

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.calls.append((step, metrics))

    def finish(self) -> None:
        self.calls.append("finished")


class BoardModule(types.ModuleType):
    """Fake of `torch.utils.tensorboard`."""

    def __init__(self) -> None:
        super().__init__("torch.utils.tensorboard")
        scalars: list[Any] = []
        self.scalars = scalars

        class SummaryWriter:
            def __init__(self, log_dir: str) -> None:
                scalars.append(Path(log_dir).name)

            def add_scalar(self, name: str, value: float, step: int) -> None:
                scalars.append((name, value, step))

            def close(self) -> None:
                scalars.append("closed")

        self.SummaryWriter = SummaryWriter


def add(run: Path, iteration: int) -> None:
    append_row(run / "metrics.jsonl", Iteration(iteration=iteration, metrics={"reward_mean": iteration / 10}))


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_each_iteration_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    package = Recorder(name)
    monkeypatch.setitem(sys.modules, name, package)
    for iteration in (1, 2, 2, 3):
        add(tmp_path, iteration)
    assert track(tmp_path, name) == 3
    assert package.calls == [
        {"project": "mathppo", "name": tmp_path.name},
        *[(i, {"reward_mean": i / 10}) for i in (1, 2, 3)],
        "finished",
    ]


def test_tensorboard_gets_scalars_in_the_runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = BoardModule()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    add(tmp_path, 1)
    assert track(tmp_path, "tensorboard") == 1
    assert board.scalars == ["tensorboard", ("reward_mean", 0.1, 1), "closed"]


def test_growing_run_is_followed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Recorder("wandb"))
    monkeypatch.setattr(trackers, "POLL_S", 0.01)
    counts: list[int] = []
    thread = threading.Thread(target=lambda: counts.append(track(tmp_path, "wandb", follow=True)))
    thread.start()
    for iteration in (1, 2):
        add(tmp_path, iteration)
        time.sleep(0.03)
    (tmp_path / "summary.json").write_text("{}")
    thread.join(timeout=20)
    assert counts == [2]


def test_unknown_or_missing_tracker_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadSetting, match="expected one of tensorboard, trackio, wandb, got 'mlflow'"):
        track(tmp_path, "mlflow")
    with pytest.raises(BadInput, match=r"found no metrics\.jsonl in it"):
        track(tmp_path, "wandb")
    add(tmp_path, 1)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(BadSetting, match=r"expected wandb to be installed, found no such package; pip install"):
        track(tmp_path, "wandb")
