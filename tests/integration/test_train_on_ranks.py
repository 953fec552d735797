"""Whole runs on two processes: equal to the run of one, and none continues or waits without the other."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import failing_rank
import pytest
from safetensors.torch import load_file
from tiny_runs import TINY, tiny_config
from two_processes import failing, process_of_rank, said, start, torchrun

from mathppo.learner.backend import checkpoint
from mathppo.metrics import read_rows
from mathppo.pipeline.run_directory import RunDirectory
from mathppo.pipeline.train import train
from mathppo.progress import SILENT
from mathppo.storage import store

MOVING = (("reward.kind", "random"), ("learner.lr", "1e-3"), ("learner.kl_place", "loss"), ("learner.kl_coef", "0.1"))
"""Rewards that do not need skill, and updates large enough to change the samples."""

OF_ONE_RUN = (
    *("generate_s", "grade_s", "learn_s", "other_s", "tokens_per_s", "refresh_s"),
    *("probe_gap_max", "behaviour_logratio_by_size"),
)
"""Metrics that are times, that depend on engines with a copy of the weights, or that measure rounding."""


def command(root: Path, *more: str) -> list[str]:
    return ["train", "--run-dir", str(root), *(f"--{key}={value}" for key, value in (*TINY, *MOVING)), *more]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(tiny_config(*MOVING), tmp_path_factory.mktemp("runs") / "alone", SILENT)


def sampled(run: RunDirectory) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rollouts by artefact, without their log-probabilities, whose last bits differ."""
    return {
        str(path.relative_to(run.root)): [
            (r.problem_id, r.sample_index, r.prompt_ids, r.completion_ids, r.finish_reason, r.policy_step, r.seed)
            for r in store.read_artefact(path, store.ROLLOUTS)
        ]
        for path in sorted(run.root.rglob("rollouts"))
    }


def assert_same_run(one: RunDirectory, two: RunDirectory) -> None:
    assert sampled(one) == sampled(two)
    ours, theirs = ([row.metrics for row in read_rows(run.metrics)[1]] for run in (one, two))
    assert len(ours) == len(theirs) == 4
    for first, second in zip(ours, theirs, strict=True):
        assert first.keys() - OF_ONE_RUN == second.keys() - OF_ONE_RUN
        shared = first.keys() - OF_ONE_RUN
        apart = {m: (first[m], second[m]) for m in shared if first[m] != pytest.approx(second[m], rel=1e-2, abs=1e-3)}
        assert apart == {}
    for name in ("policy", "critic"):
        first, second = (load_file(run.checkpoint(4) / name / "model.safetensors") for run in (one, two))
        assert {key: None for key in first if not first[key].allclose(second[key], atol=5e-4)} == {}
        assert first.keys() == second.keys()


def test_two_processes_give_the_run_of_one_and_print_once(alone: RunDirectory, tmp_path: Path) -> None:
    two = RunDirectory(tmp_path / "two")
    with start("-m", "mathppo.cli", *command(two.root)) as running:
        printed, progress = running.communicate(timeout=120)
    assert running.returncode == 0, progress[-3000:]
    assert_same_run(alone, two)
    assert printed.count("report: ") == 1
    assert progress.count("warm start: 6/6") == progress.count("step 4: held-out accuracy greedy") == 1
    assert "Warning" not in progress
    assert len(two.metrics.read_text().splitlines()) == 4 + 2  # iterations, and epochs of critic pretraining
    assert not [p for p in two.root.rglob("*") if ".partial" in p.name or p.name.endswith(".tmp")]
    assert [p.name for p in checkpoint.list_checkpoints(two.checkpoints)] == ["000000", "000002", "000004"]
    before = {p: p.stat().st_mtime_ns for p in two.root.rglob("*")}
    torchrun("-m", "mathppo.cli", *command(two.root))
    assert {p: p.stat().st_mtime_ns for p in two.root.rglob("*")} == before


def wait_for(is_there: Callable[[], bool]) -> None:
    until = time.monotonic() + 100
    while not is_there():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("rank", "number", "message"),
    [
        # The other rank may first see the lost connection or the signal from torchrun.
        (
            1,
            signal.SIGKILL,
            r"rank 0: expected 2 processes, lost one that exited without|terminated by torchrun",
        ),
        (0, signal.SIGTERM, r"terminated by torchrun, because torchrun was stopped or another process exited"),
    ],
)
def test_run_that_lost_a_process_ends_and_resumes_with_another_number_of_processes(
    alone: RunDirectory, tmp_path: Path, rank: int, number: signal.Signals, message: str
) -> None:
    run = RunDirectory(tmp_path / "run")
    with start("-m", "mathppo.cli", *command(run.root)) as running:
        wait_for(run.iteration(3).exists)
        os.kill(process_of_rank(rank, running), number)
        lines = said(running)
    (line,) = lines
    assert re.search(message, line)
    assert "finished work is kept: run the same command again to resume" in line
    assert not run.checkpoint(4).exists()
    assert_same_run(alone, train(tiny_config(*MOVING), run.root, SILENT))


def test_error_on_any_rank_ends_all_with_one_message(tmp_path: Path) -> None:
    lines = failing(failing_rank.__file__, *command(tmp_path / "run"))
    assert lines == ["mathppo: a tensor of rank 1 is not what it should be"]


def test_error_on_the_first_rank_ends_all_with_one_message(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("no folder")
    (line,) = failing("-m", "mathppo.cli", *command(tmp_path / "run"))
    assert "expected a folder, got a file" in line
