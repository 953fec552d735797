"""Generalized advantage estimation over completions, and placement of the reward.

`values[t]` is V(prompt + completion[:t]), the state in which token t is chosen; the stop token is an action. A masked
position (padding, or text that the policy did not sample) is not an episode step: it neither discounts nor decays the
estimate, and its number is not read, even if it is NaN.
"""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from mathppo.errors import BadSetting
from mathppo.ppo.arguments import as_float, as_mask, keep, require_per_row, require_range, require_same_shape
from mathppo.ppo.gae_lambda import lambda_per_row
from mathppo.ppo.scan import discounted_suffix_sums

CHUNK_STEPS = 2**19
"""Steps, padding included, that a CPU processes at a time. They fit its cache, and stay below the size at which the C
library returns freed memory and pays for each page again; all rows at once take twice the time."""


@torch.no_grad()
def gae(
    token_rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    completion_mask: Shaped[Tensor, "B T"],
    bootstrap_values: Float[Tensor, " B"],
    *,
    gamma: float = 1.0,
    lam: float | Float[Tensor, " B"] = 1.0,
) -> Float[Tensor, "B T"]:
    """Return advantages: exponentially weighted sums of temporal-difference residuals over each row's True steps.

    `residual[t] = token_rewards[t] + gamma * V(next True step) - values[t]`, with `bootstrap_values` after the last
    True step; `A[t] = residual[t] + gamma * lam * A[next True step]`.

    Args:
        token_rewards: reward of each step, from `token_rewards`.
        values: V before each token is sampled.
        completion_mask: True = a token that the behaviour policy sampled, an episode step.
        bootstrap_values: V after the whole completion if it was truncated and is bootstrapped, exactly 0 if terminated.
        gamma: discount per step, in [0, 1].
        lam: lambda in [0, 1], one for all rows or one per row; see `gae_lambda.length_adaptive_lambda`.

    Returns:
        Advantages without gradient, at least float32, 0 at masked steps. Return targets are `advantages + values`.

    Raises:
        BadInput: shapes differ.
        BadSetting: gamma or lambda is outside [0, 1].

    Source: Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation"
    (https://arxiv.org/abs/1506.02438), equation 16.

    >>> V = torch.tensor([[0.2, 0.3, 0.4]])
    >>> gae(torch.tensor([[0.0, 0.0, 1.0]]), V, torch.ones(1, 3, dtype=torch.bool), torch.zeros(1), lam=0.95)
    tensor([[0.7365, 0.6700, 0.6000]])
    """
    require_same_shape("gae", token_rewards=token_rewards, values=values, completion_mask=completion_mask)
    require_per_row("gae", len(values), bootstrap_values=bootstrap_values)
    require_range("gae", "gamma", gamma, 0.0, 1.0)
    mask, rewards, values = as_mask(completion_mask), as_float(token_rewards), as_float(values)
    dtype = torch.promote_types(rewards.dtype, values.dtype)
    lams = lambda_per_row(lam, values)
    inputs = (rewards.to(dtype), values.to(dtype), mask, bootstrap_values.to(dtype), lams)
    advantages = torch.empty_like(inputs[1])
    size = CHUNK_STEPS // max(1, values.shape[1]) if values.device.type == "cpu" else len(values)
    for out, *chunk in zip(*(x.split(max(1, size)) for x in (advantages, *inputs)), strict=True):
        torch.where(chunk[2], _gae_unmasked(*chunk, gamma=gamma), out.new_zeros(()), out=out)
    return advantages


def token_rewards(
    outcome: Float[Tensor, " B"],
    completion_mask: Shaped[Tensor, "B T"],
    kl: Float[Tensor, "B T"] | None = None,
    *,
    kl_coef: float = 0.0,
) -> Float[Tensor, "B T"]:
    """Place the outcome on each row's last True step, and subtract `kl_coef * kl` from every True step.

    Args:
        outcome: one reward per rollout.
        completion_mask: True = a token that the behaviour policy sampled.
        kl: per-token estimate of KL(policy ‖ reference) in nats, normally k1; not read at masked steps.
        kl_coef: reward per nat, at least 0.

    Returns:
        At least float32, 0 at masked steps; all 0 for a row without a True step.

    Raises:
        BadInput: shapes differ.
        BadSetting: `kl_coef` is negative, or is set without `kl`.

    Source: Ziegler et al. 2019, "Fine-Tuning Language Models from Human Preferences"
    (https://arxiv.org/abs/1909.08593), equation 2; Ouyang et al. 2022, "Training Language Models to Follow Instructions
    with Human Feedback" (https://arxiv.org/abs/2203.02155), equation 2.

    >>> token_rewards(torch.tensor([1.0]), torch.tensor([[True, True, False]]))
    tensor([[0., 1., 0.]])
    """
    require_same_shape("token_rewards", completion_mask=completion_mask, kl=kl)
    require_per_row("token_rewards", len(completion_mask), outcome=outcome)
    require_range("token_rewards", "kl_coef", kl_coef, 0.0, float("inf"))
    if kl is None and kl_coef != 0.0:
        raise BadSetting(f"token_rewards: expected kl with kl_coef={kl_coef!r}, got none; pass kl or set kl_coef=0")
    mask = as_mask(completion_mask)
    steps_left = mask.flip(1).cumsum(1).flip(1)
    rewards = keep(outcome[:, None].expand(mask.shape), mask & (steps_left == 1))
    return rewards if kl is None or kl_coef == 0.0 else rewards - kl_coef * keep(kl, mask)


def _gae_unmasked(
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    bootstrap: Float[Tensor, " B"],
    lams: Float[Tensor, " B"],
    *,
    gamma: float,
) -> Float[Tensor, "B T"]:
    """Return advantages at True steps and arbitrary numbers elsewhere.

    Scans the lambda-return `G[t] = r[t] + gamma * ((1 - lam) * V[t + 1] + lam * G[t + 1])` and subtracts V: the same
    as the sum of residuals, without the cancellation whose rounding error grows with T (note M-ppo-2).
    """
    rewards, width = keep(rewards, mask), mask.shape[1]
    if gamma == 1.0 and bool((lams == 1.0).all()):
        return rewards.flip(1).cumsum(1).flip(1).add_(bootstrap[:, None]).sub_(values)
    ends = mask.clone()
    ends[:, :-1] &= ~mask[:, 1:]
    flat = ends.flatten().nonzero()[:, 0]  # `nonzero` on two dims takes three times as long
    rows = flat.div(max(1, width), rounding_mode="floor")
    if bool((rows.diff() == 0).any()):  # a row with several runs of True steps: close the gaps and scatter back
        closed = torch.arange(width, device=mask.device) < mask.sum(1, keepdim=True)
        rewards, values = (
            torch.zeros_like(x).masked_scatter_(closed, x.masked_select(mask)) for x in (rewards, values)
        )
        advantages = _gae_unmasked(rewards, values, closed, bootstrap, lams, gamma=gamma)
        return torch.zeros_like(values).masked_scatter_(mask, advantages.masked_select(closed))
    values = keep(values, mask)
    rewards[:, :-1].addcmul_(values[:, 1:], (gamma * (1.0 - lams)).to(values.dtype)[:, None])
    rewards[rows, flat - rows * width] += gamma * bootstrap[rows]
    return discounted_suffix_sums(rewards, gamma * lams).sub_(values)
