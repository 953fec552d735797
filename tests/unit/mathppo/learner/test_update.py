"""Update steps: early stopping, skipped steps, clipping, and restored state."""

import math
import os
from dataclasses import replace
from pathlib import Path

import oracles
import pytest
import torch
from tiny_runs import old_logprobs, scored_rollout, tiny_learner, tiny_rollouts
from torch import Tensor

from mathppo.batch import collate
from mathppo.config import LearnerSettings
from mathppo.errors import BrokenInvariant
from mathppo.learner import objective
from mathppo.learner.backend import models
from mathppo.learner.learner import Learner
from mathppo.learner.load_learner import load_learner, load_reference, start_critic

pytestmark = pytest.mark.gpu


class NoTokenizer:
    def save_pretrained(self, save_directory: str | os.PathLike[str], /) -> None:
        return None


def num_steps(learner: Learner, name: str = "policy") -> int:
    return int(learner.optimizers.by_name[name].state_dict()["state"][0]["step"])


def values_of(x: Tensor, mask: Tensor) -> list[float]:
    return oracles.pick(x.tolist(), mask.tolist())


@pytest.mark.parametrize(("limit", "taken", "stopped"), [(1e-9, 2, 1.0), (1e9, 8, 0.0), (None, 8, 0.0)])
def test_target_kl_ends_the_iteration_after_the_step_that_exceeds_it(
    limit: float | None, taken: int, stopped: float
) -> None:
    learner = tiny_learner(epochs=8, lr=1e-2, target_kl=limit)
    row = learner.update(learner.experience(collate(tiny_rollouts(8), pad_id=0)), progress=0.0, seed=0)
    assert (num_steps(learner), row["stopped_early"]) == (taken, stopped)


def test_a_skipped_first_minibatch_does_not_skip_the_check_of_the_first_ratio() -> None:
    for seed in range(9):
        learner = tiny_learner(minibatches=2)
        scored = [scored_rollout(reward=None, problem_id="broken"), scored_rollout(completion_ids=[6, 7, 2])]
        experience = learner.experience(collate(scored, pad_id=0))
        with torch.no_grad():
            next(learner.policy.parameters()).mul_(1.5)
        with pytest.raises(BrokenInvariant, match="expected logprobs = old_logprobs before the first step"):
            learner.update(experience, progress=0.0, seed=seed)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant_length"])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_value_loss_is_half_the_mean_squared_error_per_token(aggregation: str, clip: float | None) -> None:
    learner = tiny_learner(aggregation=aggregation, value_clip=clip, micro_batch_size=3)
    batch = collate([*tiny_rollouts(6), scored_rollout(reward=None, problem_id="broken")], pad_id=0)
    experience = learner.experience(batch)
    moved = replace(experience, values=experience.values + 0.3)
    stats, _ = learner.accumulate(moved, learner.count(batch))
    triples = zip(
        *(values_of(x, batch.loss_mask) for x in (experience.values, moved.values, experience.returns)), strict=True
    )
    expected = oracles.mean([oracles.value_loss_token(value, old, target, clip) for value, old, target in triples])
    assert stats["value_loss"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("settings", [{"critic_warmup_iterations": 1}, {"critic_extra_epochs": 1}])
def test_critic_only_steps_clip_values_too(settings: dict[str, int]) -> None:
    batch, moved = collate(tiny_rollouts(8), pad_id=0), []
    for clip in (None, 1e-6):
        learner = tiny_learner(**settings, value_clip=clip, critic_lr=1e-2)  # type: ignore[arg-type]
        experience = learner.experience(batch)
        # Far below the targets: a clip that is obeyed leaves the critic nothing to gain.
        far = replace(experience, values=experience.values - 5.0, advantages=torch.zeros_like(experience.advantages))
        before = learner.critic
        assert before is not None
        learner.update(far, progress=0.0, seed=0)
        moved.append(models.value_head(before).weight.detach().clone())
    assert not torch.equal(*moved)


def test_gradient_norm_is_reported_before_clipping() -> None:
    batch, norms, sizes = collate(tiny_rollouts(8), pad_id=0), [], []
    for limit in (1e9, 1e-3):
        learner = tiny_learner(max_grad_norm=limit)
        learner.accumulate(learner.experience(batch), learner.count(batch))
        parameters = list(learner.policy.parameters())
        taken: list[float] = []
        learner.optimizers.by_name["policy"].register_step_pre_hook(
            lambda *_, p=parameters, t=taken: t.append(
                math.sqrt(sum(x.grad.double().square().sum().item() for x in p if x.grad is not None))
            )
        )
        stats = learner.optimizers.step(["policy", "critic"])
        assert stats is not None
        norms.append(stats["policy_grad_norm"].item())
        sizes += taken
    assert norms[0] == norms[1] == pytest.approx(sizes[0], rel=1e-5)
    assert sizes[1] == pytest.approx(1e-3, rel=1e-3)


def test_a_finite_step_resets_the_count_of_skipped_steps() -> None:
    learner, batch = tiny_learner(max_skipped_updates=2), collate(tiny_rollouts(4), pad_id=0)
    for _ in range(3):
        good = learner.experience(batch)
        bad = replace(good, advantages=torch.full_like(good.advantages, math.inf))
        assert learner.update(bad, progress=0.0, seed=0)["num_updates_skipped"] == 1.0
        assert all(p.grad is None for p in learner.policy.parameters())
        assert learner.update(good, progress=0.0, seed=0)["num_updates_skipped"] == 0.0


def test_restoring_keeps_the_count_of_skipped_steps_and_takes_the_new_fixed_coefficient(tmp_path: Path) -> None:
    learner, batch = tiny_learner(kl_place="loss", kl_coef=0.25), collate(tiny_rollouts(4), pad_id=0)
    experience = learner.experience(batch)
    learner.update(replace(experience, advantages=experience.advantages * math.inf), progress=0.0, seed=0)
    learner.save(tmp_path / "1", NoTokenizer())
    settings = LearnerSettings(kl_place="loss", kl_coef=0.5)
    resumed = load_learner(tmp_path / "1", settings, reference=tmp_path / "1" / "policy", temperature=1.0)
    assert (resumed.optimizers.skipped_in_a_row, resumed.kl_coef) == (1, 0.5)


def test_only_the_seed_determines_the_order_of_rows() -> None:
    found = []
    for seed in (0, 0, 1):
        learner = tiny_learner(minibatches=4)
        learner.update(learner.experience(collate(tiny_rollouts(8), pad_id=0)), progress=0.0, seed=seed)
        found.append(learner.policy.get_input_embeddings().weight.detach().clone())  # type: ignore[union-attr]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_weight_decay_applies_to_both_models() -> None:
    batch, rates = collate([scored_rollout(reward=1.0), scored_rollout(reward=0.0)], pad_id=0), []
    for decay in (0.0, 0.5):
        learner = tiny_learner(weight_decay=decay)
        learner.update(learner.experience(batch), progress=0.0, seed=0)
        rates.append([optimizer.param_groups[0]["weight_decay"] for optimizer in learner.optimizers.by_name.values()])
    assert rates == [[0.0, 0.0], [0.5, 0.5]]


def test_pretraining_fits_discounted_outcomes_at_critic_lr_in_steps_of_its_batch_size() -> None:
    settings = {"gamma": 0.5, "critic_lr": 1e-2, "critic_pretraining_epochs": 60, "critic_pretraining_batch_size": 8}
    learner = tiny_learner(**settings)  # type: ignore[arg-type]
    batch = collate([scored_rollout(completion_ids=[6, 7, 2], problem_id=str(i)) for i in range(16)], pad_id=0)
    list(learner.pretrain_critic(batch, batch, seed=0))
    assert num_steps(learner, "critic") == 60 * 2
    assert learner.optimizers.lr["critic_lr"] == 1e-2
    assert learner.experience(batch).values[0].tolist() == pytest.approx([0.25, 0.5, 1.0], abs=0.2)


def test_the_reference_is_loaded_for_any_kl_place_and_frozen(tmp_path: Path) -> None:
    learner = tiny_learner()
    learner.save(tmp_path / "1", NoTokenizer())
    assert load_reference(tmp_path / "nowhere", LearnerSettings()) is None
    # A coefficient of 0 still measures how far the policy went.
    reference = load_reference(tmp_path / "1" / "policy", LearnerSettings(kl_place="loss", kl_coef=0.0))
    assert reference is not None
    assert not any(p.requires_grad for p in reference.parameters())


def test_a_critic_with_a_larger_vocabulary_is_accepted(tmp_path: Path) -> None:
    learner = tiny_learner()
    learner.policy.resize_token_embeddings(20)
    learner.policy.save_pretrained(tmp_path)
    critic = start_critic(tiny_learner().policy, LearnerSettings(critic_from=str(tmp_path)))
    assert critic.config.vocab_size == 20
    assert old_logprobs(tiny_learner().experience(collate(tiny_rollouts(2), pad_id=0))).isfinite().all()


def test_kl_coefficient_change_is_limited_to_one_horizon() -> None:
    settings = LearnerSettings(kl_place="loss", kl_coef=0.25, kl_target=1.0, kl_horizon=4)
    assert objective.next_kl_coef(0.25, 9.0, settings, num_rollouts=400) == pytest.approx(0.3)
    assert objective.next_kl_coef(0.25, 9.0, settings, num_rollouts=2) == pytest.approx(0.275)
    assert objective.next_kl_coef(0.25, None, settings, num_rollouts=2) == 0.25
