"""Whole runs with less usual learner settings, also resumed from a checkpoint to the same bits."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny_runs import tiny_config

from mathppo.learner.backend import checkpoint
from mathppo.metrics import read_rows
from mathppo.pipeline.run_directory import RunDirectory
from mathppo.pipeline.train import train
from mathppo.progress import SILENT, Advance, Silent

TIMES = ("generate_s", "grade_s", "learn_s", "other_s", "tokens_per_s")
CASES = {
    "shared trunk": (
        ("learner.shared_trunk", "true"),
        ("learner.trunk_value_gradient", "0.1"),
        ("learner.lam_alpha", "0.2"),
        ("learner.aggregation", "constant_length"),
        ("learner.critic_warmup_iterations", "1"),
        ("learner.critic_extra_epochs", "1"),
        ("reward.missing_stop_penalty", "0.25"),
        ("reward.format_penalty", "0.25"),
    ),
    "one step": (
        ("learner.minibatches", "1"),
        ("learner.kl_place", "loss"),
        ("learner.kl_coef", "0.1"),
        ("learner.kl_target", "0.01"),
        ("reward.kind", "random"),  # moves a policy without skill away from its reference
        ("learner.importance", "sequence"),
        ("learner.positive_nll_coef", "0.1"),
        ("learner.critic_num_layers", "1"),
        ("learner.micro_batch_tokens", "128"),
        ("learner.activation_checkpointing", "true"),
    ),
    "factors of low rank": (
        ("learner.lora_rank", "2"),
        ("learner.lr", "3e-3"),
        ("learner.critic_extra_epochs", "1"),
    ),
}


class Interrupting(Silent):
    """Interrupts the run after its third iteration, one after its newest checkpoint."""

    @contextmanager
    def task(self, title: str, total: int, *, done: int = 0) -> Iterator[Advance]:
        finished = 0

        def advance(count: int, **numbers: float) -> None:
            nonlocal finished
            finished += count
            if title == "ppo" and finished == 3:
                raise KeyboardInterrupt

        yield advance


@pytest.mark.parametrize("name", CASES)
def test_resumed_run_ends_like_an_undisturbed_one(name: str, tmp_path: Path) -> None:
    config = tiny_config(*CASES[name])
    if config.learner.lora_rank and not importlib.util.find_spec("peft"):
        pytest.skip("needs the package peft")
    straight = train(config, tmp_path / "straight", SILENT)
    resumed = RunDirectory(tmp_path / "resumed")
    with pytest.raises(KeyboardInterrupt):
        train(config, resumed.root, Interrupting())
    train(config, resumed.root, SILENT)
    first, second = (read_rows(run.metrics)[1] for run in (straight, resumed))
    kept = [[{k: v for k, v in row.metrics.items() if k not in TIMES} for row in rows] for rows in (first, second)]
    assert kept[0] == kept[1]
    paths = [run.checkpoint(4) for run in (straight, resumed)]
    assert checkpoint.verify_checkpoint(paths[0]) == checkpoint.verify_checkpoint(paths[1])
