"""Whole runs of a tiny model: the files they write, and resuming after kills to the same bits."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import tiny_config

from mathppo.cli import main
from mathppo.config import Config
from mathppo.errors import BadSetting, StageFailed
from mathppo.evaluate.accuracy import Mode
from mathppo.learner.backend import checkpoint, models
from mathppo.metrics import read_rows
from mathppo.pipeline.benchmark_folder import read_results
from mathppo.pipeline.run_directory import RunDirectory
from mathppo.pipeline.stages.evaluate import read_evaluations
from mathppo.pipeline.train import train
from mathppo.progress import SILENT
from mathppo.storage import store

TIMES = ("generate_s", "grade_s", "learn_s", "other_s", "tokens_per_s")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Run training without a kill."""
    return train(tiny_config(), tmp_path_factory.mktemp("runs") / "finished", SILENT)


def without_times(run: RunDirectory) -> list[tuple[int, dict[str, Any]]]:
    _, rows = read_rows(run.metrics)
    return [(row.iteration, {k: v for k, v in row.metrics.items() if k not in TIMES}) for row in rows]


def evaluations(run: RunDirectory) -> dict[str, bytes]:
    return {str(p.relative_to(run.root)): p.read_bytes() for p in sorted(run.root.glob("evaluations/*/*.json"))}


def rollouts(run: RunDirectory) -> dict[str, list[Any]]:
    """Return rollouts by artefact, without verdicts, which have a duration."""
    found = [p for p in sorted(run.root.rglob("rollouts")) if p.is_dir()]
    return {str(p.relative_to(run.root)): store.read_artefact(p, store.ROLLOUTS) for p in found}


def assert_same_run(first: RunDirectory, second: RunDirectory) -> None:
    assert without_times(first) == without_times(second)
    assert evaluations(first) == evaluations(second)
    assert rollouts(first) == rollouts(second)
    for path in checkpoint.list_checkpoints(first.checkpoints):
        other = second.checkpoints / path.name
        assert checkpoint.verify_checkpoint(path) == checkpoint.verify_checkpoint(other), path.name


def test_run_directory_has_the_documented_content(finished: RunDirectory) -> None:
    names = {p.name for p in finished.root.iterdir()}
    assert names >= {
        *("config.toml", "manifest.json", "metrics.jsonl", "summary.json", "report.html", "rollout_views.jsonl"),
        *("problems", "warmstart", "iterations", "checkpoints", "evaluations"),
    }
    assert not [p for p in finished.root.rglob("*") if ".partial" in p.name or p.name.endswith(".tmp")]
    summary = json.loads(finished.summary.read_text())
    for when in ("warmstart", "final"):
        accuracies = summary[when]
        assert accuracies["n"] == 10
        for mode in ("greedy", "sampled"):
            low, high = accuracies["intervals"][mode]
            assert 0 <= low <= accuracies[mode] <= high <= 1
            assert 0 <= accuracies["truncated_share"][mode] <= 1
            assert 0 <= accuracies["no_answer_share"][mode] <= 1
    assert {"warmstart", "generate", "grade", "learn", "other", "total"} <= summary["wall_s"].keys()
    assert torch.__version__.startswith(summary["versions"]["torch"])  # a CUDA wheel has a suffix
    assert [iteration for iteration, _ in without_times(finished)] == [1, 2, 3, 4]


def test_policy_is_evaluated_before_during_and_after_training(finished: RunDirectory) -> None:
    assert sorted(p.name for p in (finished.root / "evaluations").iterdir()) == ["000000", "000002", "000004"]
    for step, num_problems in ((0, 10), (2, 6), (4, 10)):
        found = read_evaluations(finished.evaluation(step))
        assert [(e.mode, e.policy_step, e.overall.num_problems) for e in found] == [
            (mode, step, num_problems) for mode in Mode
        ]


def test_evaluations_of_a_run_can_be_compared(finished: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(finished.evaluation(0)), str(finished.evaluation(4))]) == 0
    said = capsys.readouterr().out
    assert "on linear.plain.greedy (10 problems)" in said
    assert "on linear.plain.sampled (10 problems)" in said
    assert {result.golds for result in read_results(finished.evaluation(4))} == {"corrected"}


def test_learner_trains_on_the_ids_sampled_by_the_previous_policy(finished: RunDirectory) -> None:
    scored = store.read_scored(finished.iteration(3) / "scored")
    sampled = store.read_artefact(finished.iteration(3) / "rollouts", store.ROLLOUTS)
    assert {item.rollout.policy_step for item in scored} == {2}
    key = lambda r: (r.problem_id, r.sample_index)  # noqa: E731
    assert sorted((item.rollout for item in scored), key=key) == sorted(sampled, key=key)
    assert len({rollout.seed for rollout in sampled}) == len(sampled) == 8


def test_last_checkpoint_is_a_plain_model_folder_with_tied_embeddings(finished: RunDirectory) -> None:
    folder = finished.checkpoint(4)
    policy, critic = models.load_policy(folder / "policy"), models.load_critic(folder / "critic")
    head, embeddings = policy.get_output_embeddings(), policy.get_input_embeddings()
    assert head is not None
    assert embeddings is not None
    assert head.weight is embeddings.weight
    assert critic.config.num_labels == 1
    assert models.load_tokenizer(folder / "policy").eos_token_id == policy.config.eos_token_id


def test_finished_run_is_not_changed_by_another_call(finished: RunDirectory) -> None:
    before = {p: p.stat().st_mtime_ns for p in finished.root.rglob("*")}
    train(tiny_config(), finished.root, SILENT)
    assert {p: p.stat().st_mtime_ns for p in finished.root.rglob("*")} == before


def test_iterations_repeated_from_disk_are_equal_and_log_no_speed(finished: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(finished.root, run.root)
    run.summary.unlink()
    for folder in (run.checkpoint(4), run.evaluation(4)):
        shutil.rmtree(folder)
    train(tiny_config(), run.root, SILENT)
    assert_same_run(finished, run)
    _, rows = read_rows(run.metrics)
    assert [row.iteration for row in rows if "tokens_per_s" in row.metrics] == [1, 2]


def test_other_settings_are_rejected_by_name(finished: RunDirectory) -> None:
    with pytest.raises(BadSetting, match=r"learner\.lr is 0\.0003 there and 0\.001 now\); choose another"):
        train(tiny_config(("learner.lr", "1e-3")), finished.root, SILENT)


def test_folder_with_other_files_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(BadSetting, match="expected an empty or missing folder, or a run to resume"):
        train(tiny_config(), tmp_path, SILENT)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def _train(config: Config, root: Path) -> None:
    torch.set_num_threads(1)
    train(config, root, SILENT)


def _killed_when(reached: Callable[[], bool], config: Config, root: Path) -> bool:
    """Run in a child process, kill it as soon as `reached` is true, and return True if it was still running then."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mathppo.pipeline"])
    process = context.Process(target=_train, args=(config, root))
    process.start()
    while process.is_alive() and not reached():
        time.sleep(0.001)
    killed = process.is_alive()
    if killed and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert killed or process.exitcode == 0
    return killed


def test_run_that_is_killed_repeatedly_ends_like_an_undisturbed_one(finished: RunDirectory, tmp_path: Path) -> None:
    run, config = RunDirectory(tmp_path / "run"), tiny_config()
    points = [
        run.config,
        run.root / "warmstart.partial" / "checkpoint.json",
        run.root / "critic_pretraining" / "rollouts.partial",
        run.evaluation(0) / "greedy.json",
        run.iteration(1) / "rollouts",
        run.iteration(2) / "scored",
        run.checkpoint(2),
        run.iteration(4) / "rollouts.partial",
        run.evaluation(4) / "sampled" / "rollouts",
    ]
    num_kills = sum(_killed_when(point.exists, config, run.root) for point in points)
    assert num_kills >= 5
    assert_same_run(finished, train(config, run.root, SILENT))


@pytest.mark.parametrize(
    "overrides",
    [
        (("learner.algorithm", "rloo"), ("generator.samples_per_prompt", "2")),
        (("learner.algorithm", "reinforce++"),),
        (("reward.kind", "random"),),
        (("learner.truncation", "bootstrap"), ("learner.kl_place", "reward"), ("learner.kl_coef", "0.01")),
        (("learner.truncation", "penalty"), ("learner.kl_place", "loss"), ("learner.kl_coef", "0.01")),
    ],
    ids=["rloo", "reinforce++", "random reward", "bootstrap and KL reward", "penalty and KL loss"],
)
def test_other_algorithms_and_rewards_run_to_the_end(tmp_path: Path, overrides: tuple[tuple[str, str], ...]) -> None:
    run = train(tiny_config(*overrides), tmp_path / "run", SILENT)
    assert len(without_times(run)) == 4
    assert (run.checkpoint(4) / "critic").is_dir() == ("learner.algorithm" not in dict(overrides))


def test_failing_grader_stops_the_run(tmp_path: Path) -> None:
    plugin = tmp_path / "broken.py"
    plugin.write_text(
        "class Broken:\n"
        "    name = 'broken'\n"
        "    def grade(self, completion, reference, *, question=None):\n"
        "        raise RuntimeError('out of order')\n"
        "GRADER = Broken()\n"
    )
    config = tiny_config(("grader.name", f"{plugin}:GRADER"))
    with pytest.raises(StageFailed, match=r"the grader itself failed on \d+ of \d+ rollouts"):
        train(config, tmp_path / "run", SILENT)
    plugin.write_text(
        plugin.read_text().replace(
            "raise RuntimeError('out of order')",
            "from graders import Status, Verdict; return Verdict(Status.CORRECT, None, 'broken', 'test', '', 0.0)",
        )
    )
    assert len(without_times(train(config, tmp_path / "run", SILENT))) == 4
