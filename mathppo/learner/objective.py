"""Policy loss of an optimizer step: clipped surrogate, imitation, entropy bonus, reference KL."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mathppo.batch import Batch
from mathppo.config import LearnerSettings
from mathppo.errors import BrokenInvariant
from mathppo.learner.experience import Experience
from mathppo.ppo import importance, kl, losses, masked
from mathppo.ppo.aggregation import loss_weights

RATIO_TOLERANCE: Mapping[torch.dtype, float] = MappingProxyType({torch.float32: 1e-3, torch.bfloat16: 0.25})
"""Nats by which log-probabilities of unchanged weights may differ between two ways of batching them."""


@dataclass(frozen=True)
class StepCounts:
    """Weights and divisors of one optimizer step, counted over all of its rows before the first backward.

    Args:
        token_weights: of the policy loss, per token of the step's rows; see `aggregation.loss_weights`.
        denominator: divisor of the policy loss.
        num_tokens: trained tokens, the divisor of the value loss and of all statistics.
        num_positive: trained tokens of correct completions; at least 1.
    """

    token_weights: Float[Tensor, "B T"]
    denominator: Float[Tensor, ""]
    num_tokens: Float[Tensor, ""]
    num_positive: Float[Tensor, ""]


def count_step(batch: Batch, settings: LearnerSettings, *, max_completion_tokens: int | None = None) -> StepCounts:
    """Count the rows of one optimizer step.

    Args:
        batch: all rows of the step.
        settings: of the learner.
        max_completion_tokens: the token budget; required for `aggregation = "constant_length"`.

    Raises:
        BadSetting: constant_length without a budget.
    """
    token_weights, denominator = loss_weights(
        batch.loss_mask, settings.aggregation, max_completion_tokens=max_completion_tokens or None
    )
    return StepCounts(
        token_weights=token_weights,
        denominator=denominator,
        num_tokens=batch.loss_mask.sum(),
        num_positive=_positive(batch).sum().clamp(min=1),
    )


def importance_weights(
    old_logprobs: Float[Tensor, "B T"], batch: Batch, settings: LearnerSettings, *, step: int
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Return the anchor of the ratio and its clip, and the truncated importance weights.

    Fresh rollouts are anchored at the old policy and weighted by old policy over sampler. Stale rollouts are anchored
    at the behaviour policy with weight 1 if `stale_anchor = "behaviour"`: with the recomputed log-probability as the
    anchor, a stale rollout's distance from the sampler would grow unclipped (note M-learner-2).

    Args:
        old_logprobs: the learner's before the update, nats.
        batch: the same rows.
        settings: of the learner.
        step: number of updates that the policy has seen.

    Returns:
        Anchor log-probabilities in nats, and weights, without gradient.

    Source: weights: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"; anchor:
    Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (https://arxiv.org/abs/1707.06347), section 3, and
    marin-community/marin#8955.
    """
    is_stale = (batch.policy_step < step)[:, None] & batch.loss_mask & (settings.stale_anchor == "behaviour")
    if settings.importance == "off":
        weights = batch.loss_mask.to(old_logprobs.dtype)
    else:
        by_name = {"token": importance.token_importance_weights, "sequence": importance.sequence_importance_weights}
        weights = by_name[settings.importance](
            old_logprobs, batch.behaviour_logprobs, batch.loss_mask, cap=settings.importance_cap
        )
    return torch.where(is_stale, batch.behaviour_logprobs, old_logprobs), torch.where(is_stale, 1.0, weights)


def policy_objective(
    rows: Experience,
    old_logprobs: Float[Tensor, "B T"],
    logprobs: Float[Tensor, "B T"],
    entropies: Float[Tensor, "B T"],
    token_weights: Float[Tensor, "B T"],
    counts: StepCounts,
    settings: LearnerSettings,
    *,
    kl_coef: float,
) -> tuple[Float[Tensor, ""], losses.Stats]:
    """Return the policy loss of some rows and its statistics; both add up over the rows of the step.

    Args:
        rows: some rows of the step.
        old_logprobs: the policy's before the update, nats; without gradient.
        logprobs: the policy's, nats; with gradient.
        entropies: the policy's, nats; with gradient if `entropy_coef` is set.
        token_weights: the rows of `counts.token_weights`.
        counts: of the whole step.
        settings: of the learner.
        kl_coef: the current weight of the reference KL.

    Source: imitation of correct completions: Yue et al. 2025, "VAPO: Efficient and Reliable Reinforcement Learning for
    Advanced Reasoning Tasks" (https://arxiv.org/abs/2504.05118), positive-example language-model loss;
    `losses.policy_loss` names the others.
    """
    batch = rows.batch
    anchor, weights = importance_weights(old_logprobs, batch, settings, step=rows.step)
    mean = partial(masked.masked_mean, mask=batch.loss_mask, denominator=counts.denominator)
    loss, stats = losses.policy_loss(
        logprobs,
        anchor,
        rows.advantages,
        batch.loss_mask,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        dual_clip=settings.dual_clip,
        weights=weights * token_weights,
        denominator=counts.denominator,
        num_tokens=counts.num_tokens,
    )
    stats["policy_loss"] = loss.detach()
    if settings.positive_nll_coef > 0:
        imitation = losses.likelihood_loss(logprobs, _positive(batch), denominator=counts.num_positive)
        stats["positive_nll"] = imitation.detach()
        loss = loss + settings.positive_nll_coef * imitation
    if settings.entropy_coef > 0:
        loss = loss - settings.entropy_coef * mean(entropies * token_weights)
    if settings.kl_place == "loss" and rows.ref_logprobs is not None:
        token_kl = kl.kl_estimate(logprobs, rows.ref_logprobs, settings.kl_kind)
        loss = loss + kl_coef * mean(token_kl * token_weights)
    return loss, stats


def exceeds_target_kl(stats: losses.Stats, settings: LearnerSettings) -> bool:
    """Return True if a step's policy was further from its anchor than `target_kl`; False for critic-only steps."""
    limit = settings.target_kl
    return limit is not None and "approx_kl" in stats and stats["approx_kl"].item() > limit


def next_kl_coef(
    kl_coef: float, observed: float | list[float] | None, settings: LearnerSettings, *, num_rollouts: int
) -> float:
    """Return the weight of the reference KL in the next update: unchanged without `kl_target`, else adapted to it.

    Args:
        kl_coef: in this update.
        observed: the reference KL before this update, nats per token; None if not measured.
        settings: of the learner.
        num_rollouts: of this update.
    """
    if settings.kl_target is None or not isinstance(observed, float):
        return kl_coef
    return kl.adapt_coef(
        kl_coef,
        observed,
        target=settings.kl_target,
        num_rollouts=min(num_rollouts, settings.kl_horizon),
        horizon=settings.kl_horizon,
    )


def require_unchanged(
    logprobs: Float[Tensor, "B T"], old_logprobs: Float[Tensor, "B T"], batch: Batch, dtype: torch.dtype
) -> None:
    """Raise if the policy is not the old policy before the first step of an update (ratio 1, KL 0, no clipping).

    Args:
        logprobs: the policy's, nats.
        old_logprobs: the policy's before the update, nats.
        batch: their rows.
        dtype: of the matrix products, which sets the tolerance.

    Raises:
        BrokenInvariant: they differ by more than the tolerance.
    """
    gap = (logprobs.detach() - old_logprobs).abs()[batch.loss_mask]
    worst, tolerance = (gap.max().item() if len(gap) else 0.0), RATIO_TOLERANCE[dtype]
    if math.isnan(worst) or worst > tolerance:
        raise BrokenInvariant(
            f"learner: expected logprobs = old_logprobs before the first step (within {tolerance:g} nats), got a "
            f"difference of {worst:g} (mean {gap.mean().item():g}) in {batch.num_rows} rollouts; likely causes: "
            "dropout is on, weights changed since old_logprobs were computed, other temperature, attention to padding"
        )


def _positive(batch: Batch) -> Bool[Tensor, "B T"]:
    return batch.loss_mask & batch.correct[:, None]
