"""Clipped policy loss and clipped value loss, with their statistics.

**Micro-batches.** Pass every micro-batch, on every rank, the same `denominator` (and `num_tokens` if the denominator is
not the number of tokens), counted over all of them before the first backward. Losses, gradients and statistics then add
up to those of the undivided batch; `add_stats` adds statistics: keys that end in `_max` by maximum, all others by sum.
Without a denominator each call is the mean over its mask, and means of unequal micro-batches must not be averaged.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from mathppo.errors import BadInput, BadSetting
from mathppo.ppo.arguments import as_float, as_mask, keep, require_range, require_same_shape
from mathppo.ppo.kl import EXPONENT_BOUND, exp_excess
from mathppo.ppo.masked import masked_mean

Stats = dict[str, Tensor]
"""Detached scalars by name; added by `add_stats`."""


def policy_loss(
    logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Shaped[Tensor, "B T"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    weights: Float[Tensor, "B T"] | None = None,
    denominator: float | Tensor | None = None,
    num_tokens: float | Tensor | None = None,
) -> tuple[Float[Tensor, ""], Stats]:
    """Return PPO's clipped surrogate loss and its statistics.

    Per token, with `ratio = exp(logprobs - old_logprobs)`:
    `-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)`; if A < 0, at most `-dual_clip * A`.

    Args:
        logprobs: the policy's, nats; the only argument with a gradient.
        old_logprobs: the anchor of the clip, nats: the learner's before this update, or the behaviour policy's.
        advantages: usually whitened.
        loss_mask: True = this step is trained on; other steps are not read.
        clip_low: in [0, 1]; the lower bound of the ratio is `1 - clip_low`.
        clip_high: at least 0; the upper bound of the ratio is `1 + clip_high`. DAPO's clip-higher if above `clip_low`.
        dual_clip: above 1; bounds the loss of a token with A < 0 and a large ratio. None = no bound.
        weights: per-token factors without gradient: truncated importance weights, or those of an aggregation.
        denominator: divisor of the sum; None = the number of True positions of this mask.
        num_tokens: divisor of the statistics; None = the denominator.

    Returns:
        The loss and statistics: `clip_share_high` and `clip_share_low` (tokens whose gradient the upper or the lower
        bound cut), `clip_share_dual`, `approx_kl` (k3 of the log-ratio: KL(old ‖ policy), nats per token),
        `ratio_mean`, `ratio_max`, `log_ratio_abs_max` (nats). An empty mask gives 0 and zero gradients.

    Raises:
        BadInput: shapes differ.
        BadSetting: a clip is out of range.

    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (https://arxiv.org/abs/1707.06347), equation
    7; clip-higher: Yu et al. 2025, "DAPO" (https://arxiv.org/abs/2503.14476), section 3.1; dual clip: Ye et al. 2020,
    "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning" (https://arxiv.org/abs/1912.09729),
    dual-clip PPO; weights: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".

    >>> one = torch.ones(1, 1)
    >>> loss, stats = policy_loss(torch.log(0.26 * one), torch.log(0.20 * one), one, one)
    >>> round(float(loss), 4), round(float(stats["ratio_max"]), 4)
    (-1.2, 1.3)
    """
    require_same_shape(
        "policy_loss",
        logprobs=logprobs,
        old_logprobs=old_logprobs,
        advantages=advantages,
        loss_mask=loss_mask,
        weights=weights,
    )
    require_range("policy_loss", "clip_low", clip_low, 0.0, 1.0)
    require_range("policy_loss", "clip_high", clip_high, 0.0, float("inf"))
    if dual_clip is not None and not dual_clip > 1.0:
        raise BadSetting(f"policy_loss: expected dual_clip above 1 or None, got {dual_clip!r}; Ye et al. use 3")
    mask = as_mask(loss_mask)
    log_ratio = keep(as_float(logprobs) - as_float(old_logprobs.detach()), mask)
    advantages = keep(advantages.detach(), mask)
    # Without the bound, exp overflows and the gradient of the branch that min did not select is 0 * inf = NaN.
    ratio = log_ratio.clamp(-EXPONENT_BOUND, EXPONENT_BOUND).exp()
    per_token = torch.maximum(-ratio * advantages, -ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)
    if dual_clip is not None:
        per_token = torch.where(advantages < 0, torch.minimum(per_token, -dual_clip * advantages), per_token)
    if weights is not None:
        per_token = per_token * keep(weights.detach(), mask)
    loss = masked_mean(per_token, mask, denominator=denominator)
    count = denominator if num_tokens is None else num_tokens
    with torch.no_grad():
        shares = _clip_shares(ratio, advantages, clip_low, clip_high, dual_clip)
        stats = {name: masked_mean(share, mask, denominator=count) for name, share in shares.items()}
        stats |= _ratio_stats(log_ratio, ratio, mask, count)
    return loss, stats


def value_loss(
    values: Float[Tensor, "B T"],
    old_values: Float[Tensor, "B T"],
    returns: Float[Tensor, "B T"],
    loss_mask: Shaped[Tensor, "B T"],
    *,
    clip: float | None = None,
    denominator: float | Tensor | None = None,
    num_tokens: float | Tensor | None = None,
) -> tuple[Float[Tensor, ""], Stats]:
    """Return half the critic's squared error, optionally clipped, and its statistics.

    Per token `0.5 * max((V - R)², (old_V + clamp(V - old_V, -clip, clip) - R)²)`. Because of the maximum, the clip can
    only remove gradient from a critic that has moved far, and never rewards the move.

    Args:
        values: the critic's; the only argument with a gradient.
        old_values: the critic's before this update.
        returns: the targets, `advantages + old_values` before whitening.
        loss_mask: True = this step is trained on; other steps are not read.
        clip: at least 0, in units of value. None = no clipping.
        denominator: divisor of the sum; None = the number of True positions of this mask.
        num_tokens: divisor of the statistics; None = the denominator.

    Returns:
        The loss and statistics, each a mean over tokens: `value_clip_share` (tokens whose gradient the clip cut),
        `value_mean`, `return_mean`, `return_square_mean`, `residual_mean` and `residual_square_mean` of R - V; see
        `explained_variance.explained_variance_from_moments` for the last four.

    Raises:
        BadInput: shapes differ.
        BadSetting: `clip` is negative.

    Source: squared error: Schulman et al. 2017, "Proximal Policy Optimization Algorithms"
    (https://arxiv.org/abs/1707.06347), equation 9; clip: Engstrom et al. 2020, "Implementation Matters in Deep Policy
    Gradients" (https://arxiv.org/abs/2005.12729) (value function clipping).

    >>> v, old, target = torch.tensor([[0.9]]), torch.tensor([[0.0]]), torch.tensor([[1.0]])
    >>> round(float(value_loss(v, old, target, torch.ones(1, 1), clip=0.2)[0]), 4)  # as if V were 0.2
    0.32
    """
    require_same_shape("value_loss", values=values, old_values=old_values, returns=returns, loss_mask=loss_mask)
    if clip is not None:
        require_range("value_loss", "clip", clip, 0.0, float("inf"))
    mask = as_mask(loss_mask)
    values, returns = keep(values, mask), keep(returns.detach(), mask)
    squared_error = (values - returns).square()
    is_clipped = torch.zeros_like(mask)
    per_token = squared_error
    if clip is not None:
        old_values = keep(old_values.detach(), mask)
        moved = old_values + (values - old_values).clamp(-clip, clip)
        clipped_error = (moved - returns).square()
        is_clipped = clipped_error > squared_error
        per_token = torch.maximum(squared_error, clipped_error)
    loss = 0.5 * masked_mean(per_token, mask, denominator=denominator)
    residual = (returns - values).detach()
    moments = {
        "value_clip_share": is_clipped.to(residual.dtype),
        "value_mean": values.detach(),
        "return_mean": returns,
        "return_square_mean": returns.square(),
        "residual_mean": residual,
        "residual_square_mean": residual.square(),
    }
    count = denominator if num_tokens is None else num_tokens
    return loss, {name: masked_mean(moment, mask, denominator=count) for name, moment in moments.items()}


def likelihood_loss(
    logprobs: Float[Tensor, "B T"], loss_mask: Shaped[Tensor, "B T"], *, denominator: float | Tensor | None = None
) -> Float[Tensor, ""]:
    """Return the negative log-likelihood of the True tokens, in nats per unit of the denominator.

    Args:
        logprobs: the policy's, with gradient.
        loss_mask: True = a token of a correct completion.
        denominator: as in `policy_loss`.

    Source: Yue et al. 2025, "VAPO" (https://arxiv.org/abs/2504.05118), the positive-example language-model loss.

    >>> likelihood_loss(torch.tensor([[-1.0, -3.0]]), torch.tensor([[True, True]]))
    tensor(2.)
    """
    require_same_shape("likelihood_loss", logprobs=logprobs, loss_mask=loss_mask)
    return -masked_mean(logprobs, loss_mask, denominator=denominator)


def add_stats(parts: Sequence[Stats]) -> Stats:
    """Add the statistics of micro-batches that shared one denominator.

    Args:
        parts: at least one, all with the same keys.

    Returns:
        The maximum for keys that end in `_max`, the sum for all others.

    Raises:
        BadInput: there are no parts, or their keys differ.

    >>> one, two = torch.tensor(1.0), torch.tensor(2.0)
    >>> add_stats([{"approx_kl": one, "ratio_max": two}, {"approx_kl": two, "ratio_max": one}])
    {'approx_kl': tensor(3.), 'ratio_max': tensor(2.)}
    """
    if not parts or any(part.keys() != parts[0].keys() for part in parts):
        raise BadInput(
            f"add_stats: expected at least one part, all with the same keys, got {[sorted(part) for part in parts]}; "
            "add the statistics of one loss only"
        )
    total = {}
    for name in parts[0]:
        stacked = torch.stack([part[name] for part in parts])
        total[name] = stacked.amax() if name.endswith("_max") else stacked.sum()
    return total


def _clip_shares(
    ratio: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> dict[str, Float[Tensor, "B T"]]:
    """Return 1 where a bound cuts the gradient, else 0; a token beyond a bound that the loss ignores counts as 0."""
    is_falling = advantages < 0
    cuts = {
        "clip_share_high": (ratio > 1.0 + clip_high) & (advantages > 0),
        "clip_share_low": (ratio < 1.0 - clip_low) & is_falling,
        "clip_share_dual": (ratio > (float("inf") if dual_clip is None else dual_clip)) & is_falling,
    }
    return {name: cut.to(ratio.dtype) for name, cut in cuts.items()}


def _ratio_stats(
    log_ratio: Float[Tensor, "B T"],
    ratio: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    count: float | Tensor | None,
) -> Stats:
    return {
        "approx_kl": masked_mean(exp_excess(log_ratio), mask, denominator=count),
        "ratio_mean": masked_mean(ratio, mask, denominator=count),
        "ratio_max": _largest(ratio, mask),
        "log_ratio_abs_max": _largest(log_ratio.abs(), mask),
    }


def _largest(x: Float[Tensor, "*dims"], mask: Bool[Tensor, "*dims"]) -> Float[Tensor, ""]:
    """Return the largest of non-negative numbers at True positions, or 0 if there are none."""
    kept = keep(x, mask)
    return kept.amax() if kept.numel() else kept.sum()
