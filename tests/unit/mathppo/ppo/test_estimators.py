"""Critic-free advantages, explained variance and the weights of a loss, against values worked out by hand."""

import math

import pytest
import torch

from mathppo.errors import BadInput, BadSetting
from mathppo.ppo.estimators import (
    Aggregation,
    discounted_returns,
    explained_variance,
    explained_variance_from_moments,
    grpo_advantages,
    loss_weights,
    reinforce_plus_plus_advantages,
    rloo_advantages,
    sequence_importance_weights,
    token_importance_weights,
)
from mathppo.ppo.losses import add_stats, policy_loss, value_loss
from mathppo.ppo.masked import whiten

NAN = float("nan")


def test_group_baselines_compare_within_the_problem():
    rewards, group = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0, 0, 1, 1])
    assert torch.equal(grpo_advantages(rewards, group), torch.zeros(4))
    assert torch.equal(rloo_advantages(rewards, group), torch.zeros(4))
    batch = reinforce_plus_plus_advantages(rewards[:, None], torch.ones(4, 1))
    torch.testing.assert_close(batch[:, 0], torch.tensor([1.0, 1.0, -1.0, -1.0]))


def test_grpo_divides_by_the_deviation_unless_told_not_to():
    rewards, group = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([3, 3, 3, 3])
    torch.testing.assert_close(grpo_advantages(rewards, group), torch.tensor([3.0, -1, -1, -1]) / math.sqrt(3))
    torch.testing.assert_close(grpo_advantages(rewards, group, scale=False), torch.tensor([0.75, -0.25, -0.25, -0.25]))


def test_rloo_leaves_the_rollout_out_of_its_own_baseline():
    advantages = rloo_advantages(torch.tensor([1.0, 0.0, 4.0, 2.0]), torch.tensor([0, 0, 0, 9]))
    torch.testing.assert_close(advantages, torch.tensor([-1.0, -2.5, 3.5, 0.0]))


def test_rollouts_without_a_reward_enter_no_baseline():
    rewards, group = torch.tensor([1.0, NAN, 0.0, 5.0]), torch.tensor([0, 0, 0, 1])
    scored = torch.tensor([True, False, True, False])
    assert torch.equal(rloo_advantages(rewards, group, scored_mask=scored), torch.tensor([1.0, 0.0, -1.0, 0.0]))
    expected = torch.tensor([1.0, 0.0, -1.0, 0.0])
    torch.testing.assert_close(grpo_advantages(rewards, group, scored_mask=scored), expected)
    torch.testing.assert_close(grpo_advantages(rewards, group, scored_mask=scored, scale=False), expected / 2)


def test_returns_pass_over_text_the_policy_did_not_sample():
    rewards, mask = torch.tensor([[0.0, 0, NAN, NAN, 0, 1]]), torch.tensor([[1, 1, 0, 0, 1, 1]])
    torch.testing.assert_close(discounted_returns(rewards, mask), torch.tensor([[1.0, 1, 0, 0, 1, 1]]))
    torch.testing.assert_close(discounted_returns(rewards, mask, gamma=0.5)[0, 0], torch.tensor(0.125))


def test_reinforce_plus_plus_takes_the_group_off_before_the_batch():
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 9.0], [0.0, 8.0]])
    mask, group = torch.ones(4, 2, dtype=torch.bool), torch.tensor([0, 0, 1, 1])
    advantages = reinforce_plus_plus_advantages(rewards, mask, group=group)
    torch.testing.assert_close(advantages, torch.tensor([[1.0, 1], [-1, -1], [1, 1], [-1, -1]]))
    plain = reinforce_plus_plus_advantages(rewards, mask)
    torch.testing.assert_close(plain, whiten(torch.tensor([[1.0, 1], [0, 0], [9, 9], [8, 8]]), mask))
    mask[3] = False
    left_out = reinforce_plus_plus_advantages(rewards, torch.ones(4, 2), loss_mask=mask)
    torch.testing.assert_close(left_out, reinforce_plus_plus_advantages(rewards, mask))
    alone = reinforce_plus_plus_advantages(rewards, torch.ones(4, 2), group=group, loss_mask=mask)
    torch.testing.assert_close(alone[:3], torch.tensor([[0.5, 0.5], [-0.5, -0.5], [0.0, 0.0]]) * 6**0.5)


def test_explained_variance_of_known_critics():
    outcomes, mask = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.ones(4, 3)
    right = outcomes[:, None].expand(4, 3)
    assert explained_variance(right, outcomes, mask).item() == 1.0
    assert explained_variance(torch.full((4, 3), 0.7), outcomes, mask).item() == pytest.approx(0.0, abs=1e-6)
    assert explained_variance(right / 2, outcomes, mask).item() == pytest.approx(0.75)
    assert explained_variance(-right, right, mask).item() == pytest.approx(-3.0)
    assert explained_variance(right, torch.full((4,), 0.1), mask).item() == 0.0
    assert explained_variance(right, outcomes, torch.zeros(4, 3)).item() == 0.0


def test_explained_variance_reads_true_positions_only():
    values, outcomes = torch.tensor([[0.5, NAN], [0.0, NAN]]), torch.tensor([[1.0, NAN], [0.0, NAN]])
    mask = torch.tensor([[True, False], [True, False]])
    assert explained_variance(values, outcomes, mask).item() == pytest.approx(0.75)


def test_explained_variance_from_the_added_statistics_of_micro_batches():
    torch.manual_seed(0)
    values, returns = torch.randn(6, 5), torch.randn(6, 5)
    mask = torch.rand(6, 5) < 0.7
    count = mask.sum()
    parts = [
        value_loss(values[i], values[i], returns[i], mask[i], denominator=7, num_tokens=count)[1]
        for i in (slice(0, 1), slice(1, 6))
    ]
    result = explained_variance_from_moments(add_stats(parts)).item()
    assert result == pytest.approx(explained_variance(values, returns, mask).item(), abs=1e-5)
    constant = value_loss(values, values, torch.full((6, 5), 0.1), mask)[1]
    assert explained_variance_from_moments(constant).item() == 0.0


def test_token_weights_are_the_capped_ratio_of_learner_to_sampler():
    old = torch.tensor([[0.3, 0.6, 0.2, NAN]]).log()
    behaviour = torch.tensor([[0.6, 0.1, 0.2, NAN]]).log()
    mask = torch.tensor([[True, True, True, False]])
    weights = token_importance_weights(old, behaviour, mask, cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([[0.5, 2.0, 1.0, 0.0]]))


def test_sequence_weights_multiply_before_the_cap():
    old = torch.tensor([[0.3, 0.6, NAN], [0.4, 0.1, NAN]]).log()
    behaviour = torch.tensor([[0.6, 0.2, NAN], [0.1, 0.1, NAN]]).log()
    mask = torch.tensor([[True, True, False], [True, True, False]])
    weights = sequence_importance_weights(old, behaviour, mask, cap=3.0)
    torch.testing.assert_close(weights, torch.tensor([[1.5, 1.5, 0.0], [3.0, 3.0, 0.0]]))
    far = sequence_importance_weights(torch.zeros(1, 1000), torch.full((1, 1000), -1.0), torch.ones(1, 1000), cap=5)
    assert (far == 5).all()


@pytest.mark.parametrize(
    ("aggregation", "of_first", "of_second"), [("token_mean", 0.01, 0.99), ("sequence_mean", 0.5, 0.5)]
)
def test_a_completions_share_of_the_loss(aggregation: Aggregation, of_first: float, of_second: float):
    mask = torch.arange(99)[None] < torch.tensor([[1], [99], [0]])
    weights, denominator = loss_weights(mask, aggregation)
    shares = (weights / denominator).sum(1).tolist()
    assert shares == [pytest.approx(of_first), pytest.approx(of_second), 0.0]


def test_constant_length_does_not_depend_on_the_batch():
    mask = torch.tensor([[True, False], [True, True], [False, False]])
    weights, denominator = loss_weights(mask, "constant_length", max_completion_tokens=10)
    assert torch.equal(weights, mask.float())
    assert denominator.item() == 20


def test_sequence_mean_as_a_policy_loss():
    mask = torch.tensor([[True, False], [True, True]])
    weights, denominator = loss_weights(mask, "sequence_mean")
    advantages = torch.tensor([[1.0, NAN], [2.0, 4.0]])
    loss, _ = policy_loss(
        torch.zeros(2, 2), torch.zeros(2, 2), advantages, mask, weights=weights, denominator=denominator
    )
    assert loss.item() == pytest.approx(-(1.0 + 3.0) / 2)


def test_refusals_name_the_argument():
    x, row = torch.zeros(2, 3), torch.zeros(2)
    with pytest.raises(BadInput, match=r"rloo_advantages: expected group of shape \[2\] like rewards, got \[3\]"):
        rloo_advantages(row, torch.zeros(3))
    with pytest.raises(BadInput, match=r"grpo_advantages: expected scored_mask of shape \[2\]"):
        grpo_advantages(row, row, scored_mask=torch.ones(3))
    with pytest.raises(BadInput, match=r"explained_variance: expected outcomes of shape \[2\]"):
        explained_variance(x, torch.zeros(3), x)
    with pytest.raises(BadInput, match=r"token_importance_weights: expected mask of shape \[2, 3\]"):
        token_importance_weights(x, x, row)
    with pytest.raises(BadSetting, match="sequence_importance_weights: expected cap above 0, got 0"):
        sequence_importance_weights(x, x, x, cap=0)
    with pytest.raises(BadSetting, match="expected max_completion_tokens of at least 1 for constant_length, got None"):
        loss_weights(x, "constant_length")
    with pytest.raises(BadSetting, match="token_mean, sequence_mean, constant_length, got 'mean'"):
        loss_weights(x, "mean")  # pyright: ignore[reportArgumentType]
