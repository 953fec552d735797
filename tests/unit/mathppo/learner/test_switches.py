"""Each setting of the algorithm has the effect that its source describes."""

import math
from dataclasses import replace
from pathlib import Path

import oracles
import pytest
import torch
from tiny_runs import old_logprobs, scored_rollout, tiny_learner, tiny_rollouts

from mathppo.batch import Batch, collate
from mathppo.learner.experience import Experience, OldPolicy
from mathppo.learner.learner import Learner
from mathppo.learner.load_learner import load_learner
from mathppo.learner.objective import importance_weights

pytestmark = pytest.mark.gpu


class NoTokenizer:
    def save_pretrained(self, save_directory: object, /) -> None:
        return None


def weights_of(learner: Learner, name: str = "policy") -> dict[str, torch.Tensor]:
    return {key: parameter.detach().clone() for key, parameter in learner.models[name].named_parameters()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[key], second[key]) for key in first)


def picked(x: torch.Tensor, batch: Batch) -> list[list[float]]:
    """Rows of numbers, trained steps only."""
    return [row[mask].tolist() for row, mask in zip(x, batch.loss_mask, strict=True) if mask.any()]


def behaving(batch: Batch, learner: Learner, spread: float = 0.5) -> Batch:
    """The same rollouts from a sampler that is near the learner."""
    noise = spread * torch.randn(batch.loss_mask.shape, generator=torch.Generator().manual_seed(3))
    return replace(batch, behaviour_logprobs=old_logprobs(learner.experience(batch)) + noise)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant_length"])
@pytest.mark.parametrize("micro_batch_size", [2, 8])
def test_policy_loss_is_the_mean_of_the_aggregation(aggregation: str, micro_batch_size: int) -> None:
    learner = tiny_learner(aggregation=aggregation, whiten=False, importance="off", micro_batch_size=micro_batch_size)
    scored = [*tiny_rollouts(6), scored_rollout(reward=None, problem_id="broken", completion_ids=[4, 5, 6])]
    batch = collate(scored, pad_id=0)
    experience = learner.experience(batch)
    stats, _ = learner.accumulate(experience, learner.count(batch), is_first=True)
    rows = picked(experience.advantages, batch)
    numbers = [x for row in rows for x in row]
    expected = {
        "token_mean": oracles.mean(numbers),
        "sequence_mean": oracles.mean([oracles.mean(row) for row in rows]),
        "constant_length": math.fsum(numbers) / (len(rows) * 12),
    }
    assert stats["policy_loss"].item() == pytest.approx(-expected[aggregation], abs=1e-5)


def test_lambda_grows_with_the_completion_for_the_policy_only() -> None:
    learner = tiny_learner(lam_alpha=0.4, critic_lam=0.5, whiten=False)
    scored = [scored_rollout(completion_ids=[6] * n, problem_id=str(n), reward=0.75) for n in (1, 2, 5, 8)]
    experience = learner.experience(collate(scored, pad_id=0))
    for row, length in enumerate((1, 2, 5, 8)):
        values, rewards = experience.values[row, :length].tolist(), [0.0] * (length - 1) + [0.75]
        lam = max(0.0, 1 - 1 / (0.4 * length))
        expected = oracles.gae_row(rewards, values, [True] * length, 0.0, 1.0, lam)
        assert experience.advantages[row, :length].tolist() == pytest.approx(expected, abs=1e-5)
        of_critic = oracles.gae_row(rewards, values, [True] * length, 0.0, 1.0, 0.5)
        targets = [a + v for a, v in zip(of_critic, values, strict=True)]
        assert experience.returns[row, :length].tolist() == pytest.approx(targets, abs=1e-5)


@pytest.mark.parametrize("micro_batch_size", [2, 8])
def test_positive_nll_is_the_mean_over_tokens_of_correct_completions(micro_batch_size: int) -> None:
    batch = collate(tiny_rollouts(6), pad_id=0)
    learner = tiny_learner(positive_nll_coef=0.5, micro_batch_size=micro_batch_size)
    experience = learner.experience(batch)
    silent = replace(experience, advantages=torch.zeros_like(experience.advantages))
    stats, _ = learner.accumulate(silent, learner.count(batch))
    right = [row for row, good in zip(picked(old_logprobs(experience), batch), batch.correct, strict=True) if good]
    assert 0 < len(right) < 6
    assert stats["positive_nll"].item() == pytest.approx(-oracles.mean([x for row in right for x in row]), rel=1e-5)
    learner.optimizers.step(["policy"])
    change = (old_logprobs(learner.experience(batch)) - old_logprobs(experience))[batch.correct]
    assert change[batch.loss_mask[batch.correct]].mean() > 0


def test_kl_coefficient_follows_its_target_and_is_restored(tmp_path: Path) -> None:
    settings = {"kl_place": "loss", "kl_coef": 0.25, "kl_target": 1e-6, "kl_horizon": 40, "kl_kind": "k2"}
    learner, batch = tiny_learner(**settings), collate(tiny_rollouts(8), pad_id=0)
    row = learner.update(learner.experience(batch), progress=0.0, seed=0)
    assert row["kl_coef"] == 0.25
    assert learner.kl_coef == pytest.approx(0.25 * (1 + 0.2 * 8 / 40))  # far above the target: the largest step
    learner.save(tmp_path / "1", NoTokenizer())
    resumed = load_learner(tmp_path / "1", learner.settings, reference=tmp_path / "1" / "policy", temperature=1.0)
    assert resumed.kl_coef == learner.kl_coef
    assert resumed.update(resumed.experience(batch), progress=0.0, seed=0)["kl_coef"] == learner.kl_coef
    below = tiny_learner(**{**settings, "kl_target": 1e6})
    below.update(below.experience(batch), progress=0.0, seed=0)
    assert below.kl_coef == pytest.approx(0.25 * (1 - 0.2 * 8 / 40))


@pytest.mark.parametrize("importance", ["token", "sequence", "off"])
def test_importance_weights_are_the_capped_ratio_to_the_sampler(importance: str) -> None:
    learner = tiny_learner(importance=importance, importance_cap=1.3)
    batch = behaving(collate(tiny_rollouts(6), pad_id=0), learner)
    experience = learner.experience(batch)
    gaps = picked(old_logprobs(experience) - batch.behaviour_logprobs, batch)
    _, found = importance_weights(old_logprobs(experience), batch, learner.settings, step=experience.step)
    for weights, gap in zip(picked(found, batch), gaps, strict=True):
        ratios = {
            "token": [math.exp(x) for x in gap],
            "sequence": [math.exp(math.fsum(gap))] * len(gap),
            "off": [1.0] * len(gap),
        }[importance]
        assert weights == pytest.approx([min(x, 1.3) for x in ratios], rel=1e-4)
    row = learner.update(experience, progress=0.0, seed=0)
    assert ("importance_weight_mean" in row) == ("importance_weight_capped_share" in row) == (importance != "off")


def test_a_stale_rollout_is_clipped_against_the_policy_that_sampled_it() -> None:
    learner = tiny_learner(stale_anchor="behaviour", whiten=False)
    learner.step = 1
    scored = [
        scored_rollout(completion_ids=[6, 7, 2], policy_step=step, problem_id=str(step), reward=float(step))
        for step in (0, 1)
    ]
    batch = behaving(collate(scored, pad_id=0), learner, spread=1.0)
    experience = learner.experience(batch)
    stats, _ = learner.accumulate(experience, learner.count(batch), is_first=True)
    old, behaviour = old_logprobs(experience).tolist(), batch.behaviour_logprobs.tolist()
    advantages = experience.advantages.tolist()
    losses = []
    for t in range(3):
        losses.append(oracles.policy_loss_token(old[0][t], behaviour[0][t], advantages[0][t], 0.2, 0.2, None))
        weight = min(math.exp(old[1][t] - behaviour[1][t]), 2.0)
        losses.append(-weight * advantages[1][t])
    assert stats["policy_loss"].item() == pytest.approx(oracles.mean(losses), abs=1e-5)
    assert learner.update(experience, progress=0.0, seed=0)["stale_share"] == 0.5


def test_without_stale_rollouts_the_anchor_changes_nothing() -> None:
    batch = collate(tiny_rollouts(8), pad_id=0)
    learners = [tiny_learner(stale_anchor=anchor, minibatches=2) for anchor in ("behaviour", "old")]
    for learner in learners:
        learner.update(learner.experience(batch), progress=0.0, seed=0)
    assert same(*map(weights_of, learners))


def passes_of_the_policy(learner: Learner, batch: Batch, *, for_update: bool) -> tuple[int, dict[str, object]]:
    passes = []
    hook = learner.policy.register_forward_hook(lambda *_: passes.append(1))
    row = learner.update(learner.experience(batch, for_update=for_update), progress=0.0, seed=0)
    hook.remove()
    return len(passes), dict(row)


@pytest.mark.parametrize("settings", [{}, {"kl_place": "loss", "kl_coef": 0.1}, {"algorithm": "grpo"}])
def test_a_one_step_update_skips_the_pass_for_old_logprobs_with_the_same_result(settings: dict[str, object]) -> None:
    scored = [*tiny_rollouts(8, samples=2), scored_rollout(reward=None, problem_id="broken")]
    batch = collate(scored, pad_id=0)
    with_it, without = (tiny_learner(**settings, micro_batch_size=3, entropy_coef=0.01) for _ in range(2))  # type: ignore[arg-type]
    num_passes, expected = passes_of_the_policy(with_it, batch, for_update=False)
    fewer, found = passes_of_the_policy(without, batch, for_update=True)
    assert (num_passes, fewer) == (6, 3)
    for name, other in weights_of(without).items():
        torch.testing.assert_close(weights_of(with_it)[name], other, atol=1e-6, rtol=1e-5)
    assert found.keys() == expected.keys()
    assert all(found[name] == pytest.approx(expected[name], abs=1e-4) for name in expected)


@pytest.mark.parametrize("settings", [{"minibatches": 2}, {"epochs": 2}, {"kl_place": "reward", "kl_coef": 0.1}])
def test_several_steps_or_a_kl_in_the_reward_need_the_pass_for_old_logprobs(settings: dict[str, object]) -> None:
    learner = tiny_learner(**settings)  # type: ignore[arg-type]
    experience = learner.experience(collate(tiny_rollouts(4), pad_id=0), for_update=True)
    assert isinstance(experience.old, OldPolicy)


def test_critic_warmup_trains_the_critic_only() -> None:
    learner, batch = tiny_learner(critic_warmup_iterations=2, critic_lr=2e-3), collate(tiny_rollouts(8), pad_id=0)
    policy, critic = weights_of(learner), weights_of(learner, "critic")
    for iteration in range(2):
        row = learner.update(learner.experience(batch, for_update=True), progress=0.0, seed=iteration)
        assert (row["critic_lr"], "policy_loss" in row, "value_loss" in row) == (2e-3, False, True)
    assert same(policy, weights_of(learner))
    assert not same(critic, weights_of(learner, "critic"))
    assert "policy_loss" in learner.update(learner.experience(batch), progress=0.0, seed=2)
    assert not same(policy, weights_of(learner))


def test_critic_extra_epochs_train_the_critic_only() -> None:
    batch = collate(tiny_rollouts(8), pad_id=0)
    plain, extra = tiny_learner(), tiny_learner(critic_extra_epochs=3)
    for learner in (plain, extra):
        learner.update(learner.experience(batch), progress=0.0, seed=0)
    assert same(weights_of(plain), weights_of(extra))
    assert not same(weights_of(plain, "critic"), weights_of(extra, "critic"))

    def error(learner: Learner, experience: Experience) -> float:
        return (learner.experience(batch).values - experience.returns)[batch.loss_mask].square().mean().item()

    targets = plain.experience(batch)
    assert error(extra, targets) < error(plain, targets)
    assert extra.optimizers.by_name["critic"].state_dict()["state"][0]["step"] == 4


def test_the_dual_clip_and_the_value_clip_are_reported() -> None:
    learner = tiny_learner(dual_clip=3.0, value_clip=1e-4, epochs=4, lr=3e-2, critic_lr=3e-2)
    row = learner.update(learner.experience(collate(tiny_rollouts(8), pad_id=0)), progress=0.0, seed=0)
    assert isinstance(row["value_clip_share"], float)
    assert row["value_clip_share"] > 0
    assert "clip_share_dual" in row
