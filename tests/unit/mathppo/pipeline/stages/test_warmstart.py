"""Stage `warmstart`: a kill at any time loses at most the steps since the last state."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny_runs import tiny_config

from mathppo.errors import BadCheckpoint
from mathppo.learner.backend import checkpoint
from mathppo.pipeline.stages.prepare import prepare
from mathppo.pipeline.stages.warmstart import warmstart
from mathppo.progress import SILENT, Advance, Silent


class Killed(BaseException):
    pass


class Recording(Silent):
    """Records how many steps of each task were done before."""

    def __init__(self) -> None:
        self.done: list[int] = []

    @contextmanager
    def task(self, title: str, total: int, *, done: int = 0) -> Iterator[Advance]:
        self.done.append(done)
        yield lambda count, **numbers: None


def test_kill_between_the_two_renames_of_a_state_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, out, rename = tiny_config(), tmp_path / "warm", os.rename
    problems, _ = prepare(config, tmp_path / "problems", SILENT)
    warmstart(config, problems, tmp_path / "straight", SILENT)

    def kill(source: Path, target: Path) -> None:
        if any(tmp_path.glob(".warm.partial.replaced")):  # the old state is renamed, the new one not yet
            raise Killed
        rename(source, target)

    monkeypatch.setattr(os, "rename", kill)
    with pytest.raises(Killed):
        warmstart(config, problems, out, SILENT)
    monkeypatch.undo()
    assert not (tmp_path / "warm.partial").exists()
    recording = Recording()
    warmstart(config, problems, out, recording)
    assert recording.done == [6]  # of 6; states are saved after 3 and 6
    ours, theirs = (checkpoint.verify_checkpoint(path).sha256 for path in (out, tmp_path / "straight"))
    assert ours == theirs
    assert {path.name for path in tmp_path.iterdir()} == {"problems", "straight", "warm"}


def test_checkpoint_of_another_kind_is_rejected(tmp_path: Path) -> None:
    config, out = tiny_config(), tmp_path / "warm"
    problems, _ = prepare(config, tmp_path / "problems", SILENT)
    checkpoint.save_checkpoint(out, step=40, folders={}, optimizers={})
    with pytest.raises(BadCheckpoint, match="was made from other problems or settings; delete it"):
        warmstart(config, problems, out, SILENT)
