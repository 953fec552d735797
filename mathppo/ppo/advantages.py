"""Advantages without a critic: each rollout is compared with others of its problem or of the batch.

Rows of one problem share a `group` label. A mask leaves out rollouts that the grader could not score, so they enter no
baseline.
"""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from mathppo.ppo.arguments import as_mask, keep, require_same_shape
from mathppo.ppo.gae import gae
from mathppo.ppo.masked import pool_mean, pool_sum, whiten


def grpo_advantages(
    rewards: Float[Tensor, " B"],
    group: Int[Tensor, " B"],
    *,
    scored_mask: Shaped[Tensor, " B"] | None = None,
    scale: bool = True,
) -> Float[Tensor, " B"]:
    """Return the reward minus the group's mean, divided by the group's standard deviation.

    Args:
        rewards: one per rollout.
        group: label of the rollout's problem.
        scored_mask: True = has a reward; the others are not read and get 0. None = all.
        scale: divide by the deviation; False as in Dr. GRPO, which does not magnify groups that nearly agree.

    Returns:
        Detached, at least float32; 0 in a group with equal rewards, and in a group of one.

    Raises:
        BadInput: shapes differ.

    Source: Shao et al. 2024, "DeepSeekMath" (https://arxiv.org/abs/2402.03300), section 4.1.2 (outcome supervision);
    `scale=False`: Liu et al. 2025, "Understanding R1-Zero-Like Training" (https://arxiv.org/abs/2503.20783), section 3.

    >>> grpo_advantages(torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([5, 5, 6, 6]))
    tensor([ 1., -1.,  0.,  0.])
    """
    rewards, mask = _scored("grpo_advantages", rewards, group, scored_mask)
    if scale:
        return whiten(rewards, mask, group=group)
    return keep(rewards - pool_mean(rewards, mask, group), mask)


def rloo_advantages(
    rewards: Float[Tensor, " B"], group: Int[Tensor, " B"], *, scored_mask: Shaped[Tensor, " B"] | None = None
) -> Float[Tensor, " B"]:
    """Return the reward minus the mean of the group's other rollouts, a baseline independent of the rollout.

    Args:
        rewards: one per rollout.
        group: label of the rollout's problem.
        scored_mask: True = has a reward; the others are not read and get 0. None = all.

    Returns:
        Detached, at least float32; 0 for the only rollout of a group.

    Raises:
        BadInput: shapes differ.

    Source: Ahmadian et al. 2024, "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human
    Feedback in LLMs" (https://arxiv.org/abs/2402.14740), section 3.3 (RLOO); Kool et al. 2019, "Buy 4 REINFORCE
    Samples, Get a Baseline for Free!".

    >>> rloo_advantages(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([5, 5, 5]))
    tensor([ 1.0000, -0.5000, -0.5000])
    """
    rewards, mask = _scored("rloo_advantages", rewards, group, scored_mask)
    num_others = pool_sum(torch.ones_like(rewards), mask, group) - 1.0
    others_mean = (pool_sum(rewards, mask, group) - rewards) / num_others.clamp(min=1.0)
    return keep(rewards - others_mean, mask & (num_others > 0))


@torch.no_grad()
def reinforce_plus_plus_advantages(
    token_rewards: Float[Tensor, "B T"],
    completion_mask: Shaped[Tensor, "B T"],
    *,
    gamma: float = 1.0,
    group: Int[Tensor, " B"] | None = None,
    loss_mask: Shaped[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """Return the discounted return of each step, whitened over the tokens of the whole batch.

    Args:
        token_rewards: from `gae.token_rewards`, usually with the KL term.
        completion_mask: True = an episode step.
        gamma: discount per step, in [0, 1].
        group: label of the rollout's problem; if given, the group's mean return is subtracted before whitening (the
            "baseline" variant).
        loss_mask: steps to whiten over; None = `completion_mask`.

    Returns:
        At least float32, 0 outside `loss_mask`.

    Raises:
        BadInput: shapes differ.
        BadSetting: gamma is outside [0, 1].

    Source: Hu et al. 2025, "REINFORCE++: An Efficient RLHF Algorithm with Robustness to Both Prompt and Reward Models"
    (https://arxiv.org/abs/2501.03262), global advantage normalization.

    >>> rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    >>> reinforce_plus_plus_advantages(rewards, torch.ones(2, 2))
    tensor([[ 1.,  1.],
            [-1., -1.]])
    """
    mask = as_mask(completion_mask)
    returns = discounted_returns(token_rewards, mask, gamma=gamma)
    pool = mask if loss_mask is None else as_mask(loss_mask) & mask
    if group is not None:
        totals = keep(token_rewards, mask).sum(1)
        returns = returns - pool_mean(totals, pool.any(1), group)[:, None]
    return whiten(returns, pool)


def discounted_returns(
    token_rewards: Float[Tensor, "B T"], completion_mask: Shaped[Tensor, "B T"], *, gamma: float = 1.0
) -> Float[Tensor, "B T"]:
    """Return the discounted sum of rewards from each step on; masked steps between do not discount.

    Args:
        token_rewards: reward of each step.
        completion_mask: True = an episode step.
        gamma: discount per step, in [0, 1].

    >>> discounted_returns(torch.tensor([[0.0, 9.0, 0.0, 1.0]]), torch.tensor([[1, 0, 1, 1]]), gamma=0.5)
    tensor([[0.2500, 0.0000, 0.5000, 1.0000]])
    """
    zeros = torch.zeros_like(token_rewards)
    return gae(token_rewards, zeros, completion_mask, zeros.new_zeros(len(zeros)), gamma=gamma, lam=1.0)


def _scored(
    where: str, rewards: Float[Tensor, " B"], group: Int[Tensor, " B"], scored_mask: Shaped[Tensor, " B"] | None
) -> tuple[Tensor, Tensor]:
    """Return detached rewards, 0 where unscored, and the boolean mask of scored rollouts."""
    require_same_shape(where, rewards=rewards, group=group, scored_mask=scored_mask)
    mask = torch.ones_like(rewards, dtype=torch.bool) if scored_mask is None else as_mask(scored_mask)
    return keep(rewards.detach(), mask), mask
