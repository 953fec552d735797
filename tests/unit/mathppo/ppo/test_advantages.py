"""Critic-free advantages against values worked out by hand."""

import math

import pytest
import torch

from mathppo.errors import BadInput
from mathppo.ppo.advantages import (
    discounted_returns,
    grpo_advantages,
    reinforce_plus_plus_advantages,
    rloo_advantages,
)
from mathppo.ppo.masked import whiten

NAN = float("nan")


def test_baselines_are_per_problem():
    rewards, group = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0, 0, 1, 1])
    assert torch.equal(grpo_advantages(rewards, group), torch.zeros(4))
    assert torch.equal(rloo_advantages(rewards, group), torch.zeros(4))
    batch = reinforce_plus_plus_advantages(rewards[:, None], torch.ones(4, 1))
    torch.testing.assert_close(batch[:, 0], torch.tensor([1.0, 1.0, -1.0, -1.0]))


def test_grpo_divides_by_the_deviation_only_if_scaled():
    rewards, group = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([3, 3, 3, 3])
    torch.testing.assert_close(grpo_advantages(rewards, group), torch.tensor([3.0, -1, -1, -1]) / math.sqrt(3))
    torch.testing.assert_close(grpo_advantages(rewards, group, scale=False), torch.tensor([0.75, -0.25, -0.25, -0.25]))


def test_rloo_baseline_excludes_the_rollout():
    advantages = rloo_advantages(torch.tensor([1.0, 0.0, 4.0, 2.0]), torch.tensor([0, 0, 0, 9]))
    torch.testing.assert_close(advantages, torch.tensor([-1.0, -2.5, 3.5, 0.0]))


def test_unscored_rollouts_enter_no_baseline():
    rewards, group = torch.tensor([1.0, NAN, 0.0, 5.0]), torch.tensor([0, 0, 0, 1])
    scored = torch.tensor([True, False, True, False])
    assert torch.equal(rloo_advantages(rewards, group, scored_mask=scored), torch.tensor([1.0, 0.0, -1.0, 0.0]))
    expected = torch.tensor([1.0, 0.0, -1.0, 0.0])
    torch.testing.assert_close(grpo_advantages(rewards, group, scored_mask=scored), expected)
    torch.testing.assert_close(grpo_advantages(rewards, group, scored_mask=scored, scale=False), expected / 2)


def test_returns_skip_masked_steps():
    rewards, mask = torch.tensor([[0.0, 0, NAN, NAN, 0, 1]]), torch.tensor([[1, 1, 0, 0, 1, 1]])
    torch.testing.assert_close(discounted_returns(rewards, mask), torch.tensor([[1.0, 1, 0, 0, 1, 1]]))
    torch.testing.assert_close(discounted_returns(rewards, mask, gamma=0.5)[0, 0], torch.tensor(0.125))


def test_reinforce_plus_plus_subtracts_the_group_mean_before_whitening_the_batch():
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


def test_errors_name_the_argument():
    row = torch.zeros(2)
    with pytest.raises(BadInput, match=r"rloo_advantages: expected group of shape \[2\] like rewards, got \[3\]"):
        rloo_advantages(row, torch.zeros(3))
    with pytest.raises(BadInput, match=r"grpo_advantages: expected scored_mask of shape \[2\]"):
        grpo_advantages(row, row, scored_mask=torch.ones(3))
