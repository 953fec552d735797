"""Learner invariants: padding, row order and the split into micro-batches change no gradient; the first ratio is 1."""

import math
from dataclasses import replace

import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_runs import old_logprobs, scored_rollout, tiny_learner, tiny_rollouts

from mathppo.batch import Batch, collate
from mathppo.errors import BrokenInvariant
from mathppo.learner import forward
from mathppo.learner.experience import Experience
from mathppo.learner.learner import Learner

pytestmark = pytest.mark.gpu

ALGORITHMS = ("ppo", "rloo", "grpo", "reinforce++")


def gradients(learner: Learner, batch: Batch) -> dict[str, torch.Tensor]:
    """Gradients of one optimizer step over the whole batch, before clipping."""
    experience = learner.experience(batch)
    learner.accumulate(experience, learner.count(batch), is_first=True)
    found = {}
    for name, model in (("policy", learner.policy), ("critic", learner.critic)):
        if model is not None:
            found |= {f"{name}.{key}": p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
            model.zero_grad()
    return found


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], tolerance: float = 1e-6) -> None:
    assert first.keys() == second.keys()
    for name, gradient in first.items():
        torch.testing.assert_close(gradient, second[name], atol=tolerance, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def widen(batch: Batch, *, left: int, right: int) -> Batch:
    """The same rollouts with more padding on either side."""
    pad = torch.nn.functional.pad
    return replace(
        batch,
        ids=pad(batch.ids, (left, right), value=9),
        attention_mask=pad(batch.attention_mask, (left, right)),
        position_ids=pad(batch.position_ids, (left, right)),
        completion_mask=pad(batch.completion_mask, (0, right)),
        loss_mask=pad(batch.loss_mask, (0, right)),
        behaviour_logprobs=pad(batch.behaviour_logprobs, (0, right)),
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("micro_batch_size", [1, 3, 5])
def test_the_split_into_micro_batches_changes_no_gradient(algorithm: str, micro_batch_size: int) -> None:
    batch = collate(tiny_rollouts(8, samples=2), pad_id=0)
    whole = gradients(tiny_learner(algorithm=algorithm, micro_batch_size=8), batch)
    assert any(gradient.abs().max() > 1e-4 for gradient in whole.values())
    assert_same(whole, gradients(tiny_learner(algorithm=algorithm, micro_batch_size=micro_batch_size), batch))


@pytest.mark.parametrize("extra", [(1, 0), (0, 3), (4, 2)])
def test_padding_changes_no_gradient(extra: tuple[int, int]) -> None:
    batch = collate(tiny_rollouts(6), pad_id=0)
    wide = widen(batch, left=extra[0], right=extra[1])
    assert_same(gradients(tiny_learner(), batch), gradients(tiny_learner(), wide))


def test_the_pad_token_changes_no_gradient() -> None:
    scored = tiny_rollouts(6)
    assert_same(
        gradients(tiny_learner(), collate(scored, pad_id=0)), gradients(tiny_learner(), collate(scored, pad_id=11))
    )


@settings(max_examples=10)
@given(order=st.permutations(range(6)))
def test_the_order_of_rows_changes_no_gradient(order: list[int]) -> None:
    scored = tiny_rollouts(6)
    shuffled = [scored[i] for i in order]
    assert_same(
        gradients(tiny_learner(), collate(scored, pad_id=0)), gradients(tiny_learner(), collate(shuffled, pad_id=0))
    )


def test_a_rollout_without_reward_changes_no_gradient() -> None:
    scored = tiny_rollouts(4)
    broken = scored_rollout(reward=None, problem_id="broken", completion_ids=[4, 5, 6])
    with_it, without = collate([*scored, broken], pad_id=0), collate(scored, pad_id=0)
    assert_same(gradients(tiny_learner(), with_it), gradients(tiny_learner(), without))


def test_a_masked_truncation_changes_no_gradient() -> None:
    finished = [item for item in tiny_rollouts(8) if item.rollout.terminated]
    cut = scored_rollout(truncated=True, problem_id="cut", completion_ids=[4, 5, 6], reward=0.0)
    batch = collate([*finished, cut], pad_id=0, drop_truncated=True)
    assert_same(gradients(tiny_learner(), batch), gradients(tiny_learner(), collate(finished, pad_id=0)))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("micro_batch_size", [2, 8])
def test_before_the_first_step_the_ratio_is_one(temperature: float, micro_batch_size: int) -> None:
    learner = tiny_learner(temperature=temperature, micro_batch_size=micro_batch_size)
    batch = collate(tiny_rollouts(8), pad_id=0)
    stats, _ = learner.accumulate(learner.experience(batch), learner.count(batch), is_first=True)
    assert stats["log_ratio_abs_max"] < 1e-5
    assert stats["approx_kl"] == pytest.approx(0.0, abs=1e-10)
    assert stats["clip_share_high"] == stats["clip_share_low"] == 0


def test_weights_changed_after_old_logprobs_raise() -> None:
    learner, batch = tiny_learner(), collate(tiny_rollouts(8), pad_id=0)
    experience = learner.experience(batch)
    with torch.no_grad():
        next(learner.policy.parameters()).mul_(1.5)
    with pytest.raises(BrokenInvariant, match=r"expected logprobs = old_logprobs .* likely causes: dropout is on"):
        learner.update(experience, progress=0.0, seed=0)


def test_logprobs_come_from_the_position_before_and_at_the_temperature() -> None:
    learner, item = tiny_learner(temperature=0.7), scored_rollout(prompt_ids=[1, 4, 5], completion_ids=[6, 7, 2])
    device = learner.micro_batches.device
    padded = widen(collate([item], pad_id=0), left=3, right=2).to(device)
    found, entropies = forward.completion_logprobs(learner.policy, padded, temperature=0.7)
    logits = learner.policy(input_ids=torch.tensor([[1, 4, 5, 6, 7, 2]], device=device)).logits[0].double().tolist()
    for step, token in enumerate([6, 7, 2]):
        assert found[0, step].item() == pytest.approx(oracles.logprob(logits[2 + step], token, 0.7), abs=1e-5)
        assert entropies[0, step].item() == pytest.approx(oracles.entropy(logits[2 + step], 0.7), abs=1e-5)


def test_values_are_of_the_state_before_the_token_and_the_final_value_of_the_whole_completion() -> None:
    learner, item = tiny_learner(), scored_rollout(prompt_ids=[1, 4], completion_ids=[6, 7, 8], truncated=True)
    critic, device = learner.critic, learner.micro_batches.device
    assert critic is not None
    values, final = forward.completion_values(critic, widen(collate([item], pad_id=0), left=2, right=3).to(device))
    for length in range(4):
        prefix = torch.tensor([[1, 4, 6, 7, 8][: 2 + length]], device=device)
        expected = critic(input_ids=prefix).logits[0, -1, 0].item()
        assert (final[0] if length == 3 else values[0, length]).item() == pytest.approx(expected, abs=1e-5)


def experience_of(*, truncation: str, lam: float = 0.95, **rollout: object) -> Experience:
    learner = tiny_learner(truncation=truncation, lam=lam, critic_lam=1.0, whiten=False)
    return learner.experience(collate([scored_rollout(**rollout)], pad_id=0))  # type: ignore[arg-type]


@pytest.mark.parametrize("truncated", [True, False])
@pytest.mark.parametrize("truncation", ["terminal", "bootstrap"])
def test_only_truncated_completions_are_bootstrapped_and_only_if_set(truncation: str, truncated: bool) -> None:
    experience = experience_of(truncation=truncation, truncated=truncated, completion_ids=[6, 7, 8], reward=0.25)
    bootstrapped = truncated and truncation == "bootstrap"
    assert (experience.bootstrap_values.item() != 0.0) == bootstrapped
    values, mask = experience.values[0].tolist(), [True] * 3
    rewards, bootstrap = [0.0, 0.0, 0.25], experience.bootstrap_values.item()
    expected = oracles.gae_row(rewards, values, mask, bootstrap, 1.0, 0.95)
    assert experience.advantages[0].tolist() == pytest.approx(expected, abs=1e-6)
    targets = [a + v for a, v in zip(oracles.gae_row(rewards, values, mask, bootstrap, 1.0, 1.0), values, strict=True)]
    assert experience.returns[0].tolist() == pytest.approx(targets, abs=1e-6)


def test_reference_kl_in_the_reward_is_subtracted_from_each_step() -> None:
    learner = tiny_learner(kl_place="reward", kl_kind="k1", kl_coef=0.5, whiten=False)
    experience = learner.experience(collate([scored_rollout(completion_ids=[6, 7, 2])], pad_id=0))
    assert experience.ref_logprobs is not None
    difference = (old_logprobs(experience) - experience.ref_logprobs)[0].tolist()
    assert max(map(abs, difference)) > 0.1
    returns = [1.0 - 0.5 * sum(difference[step:]) for step in range(3)]
    assert experience.returns[0].tolist() == pytest.approx(returns, abs=1e-5)


def test_a_reference_kl_in_the_loss_pulls_towards_the_reference() -> None:
    def distance(learner: Learner, batch: Batch) -> float:
        experience = learner.experience(batch)
        assert experience.ref_logprobs is not None
        return (old_logprobs(experience) - experience.ref_logprobs)[batch.loss_mask].square().mean().item()

    learner = tiny_learner(kl_place="loss", kl_kind="k2", kl_coef=10.0, lr=1e-3, epochs=1)
    batch = collate(tiny_rollouts(8), pad_id=0)
    before = distance(learner, batch)
    for seed in range(5):
        learner.update(learner.experience(batch), progress=0.0, seed=seed)
    assert distance(learner, batch) < 0.7 * before


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rewarded_completions_grow_likelier_and_the_others_less_so(algorithm: str) -> None:
    learner = tiny_learner(algorithm=algorithm, lr=3e-3, critic_lr=3e-3)
    scored = [
        scored_rollout(
            completion_ids=[6, 7, 2] if right else [8, 9, 2], reward=float(right), problem_id="q", sample_index=index
        )
        for index, right in enumerate([True, False, True, False])
    ]
    batch = collate(scored, pad_id=0)
    before = old_logprobs(learner.experience(batch)).sum(1)
    for seed in range(5):
        learner.update(learner.experience(batch), progress=0.0, seed=seed)
    change = old_logprobs(learner.experience(batch)).sum(1) - before
    assert (change[[0, 2]] > 0.05).all()
    assert (change[[1, 3]] < -0.05).all()


def test_update_metrics_are_finite() -> None:
    learner, batch = tiny_learner(minibatches=2, epochs=2), collate(tiny_rollouts(8), pad_id=0)
    row = learner.update(learner.experience(batch), progress=0.0, seed=0)
    assert row["num_updates_skipped"] == row["stopped_early"] == 0.0
    assert row["policy_lr"] == learner.settings.lr
    assert row["critic_lr"] == learner.settings.critic_lr
    assert learner.step == 1
    assert all(math.isfinite(x) for value in row.values() for x in (value if isinstance(value, list) else [value]))


def test_a_kl_limit_ends_the_iteration_early() -> None:
    learner = tiny_learner(minibatches=4, epochs=4, lr=3e-2, target_kl=1e-6)
    row = learner.update(learner.experience(collate(tiny_rollouts(8), pad_id=0)), progress=0.0, seed=0)
    assert row["stopped_early"] == 1.0


def test_the_linear_schedule_ends_at_zero() -> None:
    learner, batch = tiny_learner(lr_schedule="linear"), collate(tiny_rollouts(4), pad_id=0)
    assert learner.update(learner.experience(batch), progress=0.75, seed=0)["policy_lr"] == learner.settings.lr / 4
    before = [p.clone() for p in learner.policy.parameters()]
    learner.update(learner.experience(batch), progress=1.0, seed=0)
    assert all(torch.equal(old, new) for old, new in zip(before, learner.policy.parameters(), strict=True))


def test_non_finite_gradients_are_discarded_counted_and_finally_raise() -> None:
    learner = tiny_learner(minibatches=1, max_skipped_updates=3)
    batch = collate(tiny_rollouts(4), pad_id=0)
    before = [p.clone() for p in learner.policy.parameters()]
    experience = replace(learner.experience(batch), advantages=torch.full((4, batch.completion_width), math.inf))
    for _ in range(2):
        assert learner.update(experience, progress=0.0, seed=0)["num_updates_skipped"] == 1.0
    assert all(torch.equal(old, new) for old, new in zip(before, learner.policy.parameters(), strict=True))
    with pytest.raises(BrokenInvariant, match=r"gradients were not finite 3 times in a row"):
        learner.update(experience, progress=0.0, seed=0)


def test_a_minibatch_without_trained_tokens_takes_no_step() -> None:
    learner = tiny_learner(minibatches=4)
    scored = [scored_rollout(reward=None if i else 1.0, problem_id=str(i)) for i in range(4)]
    row = learner.update(learner.experience(collate(scored, pad_id=0)), progress=0.0, seed=0)
    assert row["num_updates_skipped"] == 3.0


def test_pretraining_fits_the_critic_to_separable_outcomes() -> None:
    scored = [
        scored_rollout(prompt_ids=[1, 3 + i % 2], completion_ids=[6, 7, 2], reward=float(i % 2), problem_id=str(i))
        for i in range(64)
    ]
    learner = tiny_learner(critic_lr=3e-3, critic_pretraining_epochs=20, critic_pretraining_batch_size=16)
    policy = [p.clone() for p in learner.policy.parameters()]
    rows = list(learner.pretrain_critic(collate(scored[:48], pad_id=0), collate(scored[48:], pad_id=0), seed=0))
    explained = rows[-1]["explained_variance_outcome"]
    assert isinstance(explained, float)
    assert explained > 0.95
    assert all(torch.equal(old, new) for old, new in zip(policy, learner.policy.parameters(), strict=True))


def test_pretraining_without_a_critic_raises() -> None:
    batch = collate(tiny_rollouts(4), pad_id=0)
    with pytest.raises(BrokenInvariant, match="grpo has no critic to pretrain"):
        tiny_learner(algorithm="grpo").pretrain_critic(batch, batch, seed=0)
