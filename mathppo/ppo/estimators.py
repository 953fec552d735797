"""Advantages without a critic, what a critic explains, weights for data from another policy, and what a loss counts.

Rows of one problem share a `group` label. Rollouts that the grader could not score are left out by a mask, so that they
enter no baseline.
"""

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from mathppo.errors import BadSetting
from mathppo.ppo.arguments import as_float, as_mask, keep, require_per_row, require_same_shape
from mathppo.ppo.gae import gae
from mathppo.ppo.losses import Stats
from mathppo.ppo.masked import masked_mean, pool_mean, pool_sum, whiten

Aggregation = Literal["token_mean", "sequence_mean", "constant_length"]


def grpo_advantages(
    rewards: Float[Tensor, " B"],
    group: Int[Tensor, " B"],
    *,
    scored_mask: Shaped[Tensor, " B"] | None = None,
    scale: bool = True,
) -> Float[Tensor, " B"]:
    """Reward minus the group's mean, divided by the group's deviation.

    Args:
        rewards: one per rollout.
        group: label of the rollout's problem.
        scored_mask: True = has a reward; the others are read nowhere and get 0. `None` = all.
        scale: off leaves the division out, as Dr. GRPO does: groups that nearly agree are then not magnified.

    Returns:
        Detached, at least float32; 0 in a group whose rewards are all equal, and in a group of one.

    Raises:
        BadInput: shapes differ.

    Source: Shao et al. 2024, "DeepSeekMath", section 4.1.2 (outcome supervision); Liu et al. 2025, "Understanding
    R1-Zero-Like Training", for `scale=False`.

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
    """Reward minus the mean of the other rollouts of its group: a baseline that does not know the rollout.

    Args:
        rewards: one per rollout.
        group: label of the rollout's problem.
        scored_mask: True = has a reward; the others are read nowhere and get 0. `None` = all.

    Returns:
        Detached, at least float32. A rollout alone in its group has nobody to be compared with and gets 0.

    Raises:
        BadInput: shapes differ.

    Source: Ahmadian et al. 2024, "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human
    Feedback in LLMs", section 3.3 (RLOO); Kool et al. 2019, "Buy 4 REINFORCE Samples, Get a Baseline for Free!".

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
    """The return from each step on, whitened over the whole batch's tokens.

    Args:
        token_rewards: from `gae.token_rewards`, usually with the KL term.
        completion_mask: True = an episode step.
        gamma: discount per step, in [0, 1].
        group: with it, the group's mean return of a rollout is taken off first (the "baseline" variant).
        loss_mask: the whitening's pool; `None` = `completion_mask`.

    Returns:
        At least float32, 0 outside the pool.

    Raises:
        BadInput: shapes differ.
        BadSetting: gamma is outside [0, 1].

    Source: Hu et al. 2025, "REINFORCE++: An Efficient RLHF Algorithm with Robustness to Both Prompt and Reward Models",
    global advantage normalisation.

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
    """`sum of gamma^k * reward` over the True steps from each step on; text between them neither discounts nor ends it.

    Args:
        token_rewards: reward on each step.
        completion_mask: True = an episode step.
        gamma: discount per step, in [0, 1].

    >>> discounted_returns(torch.tensor([[0.0, 9.0, 0.0, 1.0]]), torch.tensor([[1, 0, 1, 1]]), gamma=0.5)
    tensor([[0.2500, 0.0000, 0.5000, 1.0000]])
    """
    zeros = torch.zeros_like(token_rewards)
    return gae(token_rewards, zeros, completion_mask, zeros.new_zeros(len(zeros)), gamma=gamma, lam=1.0)


def explained_variance(
    values: Float[Tensor, "B T"],
    outcomes: Float[Tensor, "B T"] | Float[Tensor, " B"],
    mask: Shaped[Tensor, "B T"],
) -> Float[Tensor, ""]:
    """Share of the outcomes' variance that the critic's values account for: `1 - Var(outcome - V) / Var(outcome)`.

    Args:
        values: the critic's.
        outcomes: what was really returned, per rollout or per step: Monte-Carlo outcomes. Targets that contain V
            flatter the critic.
        mask: True = counts, each step once.

    Returns:
        At most 1; 0 for a constant critic, negative for one worse than a constant; 0 where the outcomes do not vary.

    Raises:
        BadInput: shapes differ.

    >>> explained_variance(torch.tensor([[0.5, 0.5], [0.0, 0.0]]), torch.tensor([1.0, 0.0]), torch.ones(2, 2))
    tensor(0.7500)
    """
    if outcomes.dim() == 1:
        require_per_row("explained_variance", len(values), outcomes=outcomes)
        outcomes = outcomes[:, None].expand_as(values)
    require_same_shape("explained_variance", values=values, outcomes=outcomes, mask=mask)
    mask = as_mask(mask)
    outcomes = keep(outcomes, mask)
    square_mean = masked_mean(outcomes.square(), mask)
    return _explained(_variance(outcomes - keep(values, mask), mask), _variance(outcomes, mask), 1e-10 * square_mean)


def explained_variance_from_moments(stats: Stats) -> Float[Tensor, ""]:
    """The same against the returns, from the added statistics of `losses.value_loss`.

    Args:
        stats: with `return_mean`, `return_square_mean`, `residual_mean` and `residual_square_mean` over all tokens.
    """
    moment = {name: stat.double() for name, stat in stats.items()}
    unexplained = moment["residual_square_mean"] - moment["residual_mean"].square()
    total = moment["return_square_mean"] - moment["return_mean"].square()
    # A difference of float32 means is only known to about their own rounding.
    return _explained(unexplained, total, 1e-6 * moment["return_square_mean"])


def token_importance_weights(
    old_logprobs: Float[Tensor, "B T"],
    behaviour_logprobs: Float[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    *,
    cap: float = 2.0,
) -> Float[Tensor, "B T"]:
    """`min(exp(old_logprobs - behaviour_logprobs), cap)` per token: corrects for what the sampler did differently.

    Args:
        old_logprobs: the learner's before the update, nats.
        behaviour_logprobs: the sampler's, nats.
        mask: True = counts.
        cap: above 0; bounds the variance at the price of a bias. 2 is customary.

    Returns:
        Detached, at least float32, in [0, cap], 0 at masked steps. 1 where the two agree.

    Raises:
        BadInput: shapes differ.
        BadSetting: the cap is not above 0.

    Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", truncated
    importance sampling; Ionides 2008, "Truncated Importance Sampling".

    >>> token_importance_weights(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -9.0]]), torch.ones(1, 2), cap=2.0)
    tensor([[1., 2.]])
    """
    mask, log_ratio = _log_ratio("token_importance_weights", old_logprobs, behaviour_logprobs, mask, cap)
    return keep(log_ratio.exp().clamp(max=cap), mask)


def sequence_importance_weights(
    old_logprobs: Float[Tensor, "B T"],
    behaviour_logprobs: Float[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    *,
    cap: float = 2.0,
) -> Float[Tensor, "B T"]:
    """The same with one weight for all tokens of a completion: the product of their ratios, capped.

    Unbiased up to the cap, where token weights ignore that the earlier tokens were sampled differently too; but its
    variance grows with the completion's length.

    Args:
        old_logprobs: the learner's before the update, nats.
        behaviour_logprobs: the sampler's, nats.
        mask: True = counts.
        cap: above 0.

    Returns:
        Detached, at least float32, in [0, cap], 0 at masked steps.

    Raises:
        BadInput: shapes differ.
        BadSetting: the cap is not above 0.

    Source: Ionides 2008, "Truncated Importance Sampling"; Liu et al. 2025, "When Speed Kills Stability: Demystifying RL
    Collapse from the Training-Inference Mismatch", sequence-level truncation.

    >>> old, behaviour = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-0.5, -1.0]])
    >>> sequence_importance_weights(old, behaviour, torch.ones(1, 2))
    tensor([[0.6065, 0.6065]])
    """
    mask, log_ratio = _log_ratio("sequence_importance_weights", old_logprobs, behaviour_logprobs, mask, cap)
    weights = log_ratio.sum(1, keepdim=True).exp().clamp(max=cap)
    return keep(weights.expand_as(log_ratio), mask)


def loss_weights(
    loss_mask: Shaped[Tensor, "B T"], aggregation: Aggregation, *, max_completion_tokens: int | None = None
) -> tuple[Float[Tensor, "B T"], Float[Tensor, ""]]:
    """Per-token weights and the denominator that together make a loss the named mean over rollouts.

    | aggregation | each token's share of the loss | denominator |
    |---|---|---|
    | token_mean | equal: long completions weigh more | tokens |
    | sequence_mean | 1 / its completion's length: tokens of long completions weigh less | completions |
    | constant_length | equal, whatever the batch holds | completions times `max_completion_tokens` |

    Call it once on everything that goes into one optimizer step, slice the weights by micro-batch, and give every
    micro-batch the one denominator (added over ranks). A completion without a True step is not counted.

    Args:
        loss_mask: True = this step is trained on.
        aggregation: one of the three names.
        max_completion_tokens: the generator's budget; only for constant_length.

    Returns:
        `(weights, denominator)`, float32, for `losses.policy_loss(..., weights=, denominator=)`.

    Raises:
        BadSetting: another name, or constant_length without a budget of at least 1.

    Source: token_mean: Yu et al. 2025, "DAPO", section 3.3; sequence_mean: Shao et al. 2024, "DeepSeekMath", eq. 3;
    constant_length: Liu et al. 2025, "Understanding R1-Zero-Like Training", section 3.

    >>> weights, denominator = loss_weights(torch.tensor([[1, 0], [1, 1]]), "sequence_mean")
    >>> weights / denominator
    tensor([[0.5000, 0.0000],
            [0.2500, 0.2500]])
    """
    mask = as_mask(loss_mask)
    lengths = mask.sum(1, keepdim=True).float()
    num_completions = (lengths > 0).sum().float()
    ones = mask.float()
    if aggregation == "token_mean":
        return ones, lengths.sum()
    if aggregation == "sequence_mean":
        return ones / lengths.clamp(min=1.0), num_completions
    if aggregation == "constant_length":
        if max_completion_tokens is None or max_completion_tokens < 1:
            raise BadSetting(
                f"loss_weights: expected max_completion_tokens of at least 1 for constant_length, "
                f"got {max_completion_tokens!r}; pass the generator's budget"
            )
        return ones, num_completions * max_completion_tokens
    raise BadSetting(
        f"loss_weights: expected aggregation to be one of {', '.join(get_args(Aggregation))}, got {aggregation!r}"
    )


def _scored(
    where: str, rewards: Float[Tensor, " B"], group: Int[Tensor, " B"], scored_mask: Shaped[Tensor, " B"] | None
) -> tuple[Tensor, Tensor]:
    """Rewards without gradient and the mask of those that count."""
    require_same_shape(where, rewards=rewards, group=group, scored_mask=scored_mask)
    mask = torch.ones_like(rewards, dtype=torch.bool) if scored_mask is None else as_mask(scored_mask)
    return keep(rewards.detach(), mask), mask


def _variance(x: Float[Tensor, "B T"], mask: Shaped[Tensor, "B T"]) -> Float[Tensor, ""]:
    return masked_mean((x - masked_mean(x, mask)).square(), mask)


def _explained(
    unexplained: Float[Tensor, ""], total: Float[Tensor, ""], rounding: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """`1 - unexplained / total`, or 0 where the total is no more than rounding."""
    varies = total > rounding
    return torch.where(varies, 1.0 - unexplained / torch.where(varies, total, 1.0), 0.0)


def _log_ratio(
    where: str, old_logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor, cap: float
) -> tuple[Tensor, Tensor]:
    """The mask as booleans and the detached log-ratio, 0 where masked."""
    require_same_shape(where, old_logprobs=old_logprobs, behaviour_logprobs=behaviour_logprobs, mask=mask)
    if not cap > 0.0:
        raise BadSetting(f"{where}: expected cap above 0, got {cap!r}; 2 is customary")
    mask = as_mask(mask)
    return mask, keep(as_float(old_logprobs.detach()) - behaviour_logprobs.detach(), mask)
