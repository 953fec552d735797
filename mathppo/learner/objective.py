"""The policy's loss on some rows of an optimizer step: clipped surrogate, imitation, entropy bonus, reference KL."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from mathppo.batch import Batch
from mathppo.config import LearnerSettings
from mathppo.errors import BrokenInvariant
from mathppo.learner.experience import Experience, PolicyView
from mathppo.ppo import kl, losses, masked
from mathppo.ppo.estimators import loss_weights

RATIO_TOLERANCE: Mapping[torch.dtype, float] = MappingProxyType({torch.float32: 1e-3, torch.bfloat16: 0.25})
"""Nats by which log-probabilities of unchanged weights may differ between two ways of batching them."""


@dataclass(frozen=True)
class Counts:
    """What the sums of one optimizer step are divided by; counted over all of its rows before the first backward.

    Args:
        num_tokens: trained tokens: the value loss and all statistics.
        denominator: of the policy loss, as its aggregation wants.
        num_positive: trained tokens of correct completions; at least 1.
    """

    num_tokens: Float[Tensor, ""]
    denominator: Float[Tensor, ""]
    num_positive: Float[Tensor, ""]


def count(batch: Batch, settings: LearnerSettings, *, max_completion_tokens: int | None = None) -> Counts:
    """Count the rows of one optimizer step.

    Args:
        batch: all rows of the step.
        settings: of the learner.
        max_completion_tokens: the token budget; needed for `aggregation = "constant_length"`.

    Raises:
        BadSetting: constant_length without a budget.
    """
    _, denominator = loss_weights(
        batch.loss_mask, settings.aggregation, max_completion_tokens=max_completion_tokens or None
    )
    return Counts(
        num_tokens=batch.loss_mask.sum(),
        denominator=denominator,
        num_positive=_positive(batch).sum().clamp(min=1),
    )


def policy_objective(
    rows: Experience,
    view: PolicyView,
    logprobs: Float[Tensor, "B T"],
    entropies: Float[Tensor, "B T"],
    counts: Counts,
    settings: LearnerSettings,
    *,
    kl_coef: float,
) -> tuple[Float[Tensor, ""], losses.Stats]:
    """Give the loss of some rows and its statistics; both add up over the rows of the step.

    Args:
        rows: some rows of the step.
        view: what the policy made of them before the update.
        logprobs: the policy's, nats; with gradient.
        entropies: the policy's, nats; with gradient where `entropy_coef` is set.
        counts: of the whole step.
        settings: of the learner.
        kl_coef: weight of the reference KL now.

    Source: Yue et al. 2025, "VAPO: Efficient and Reliable Reinforcement Learning for Advanced Reasoning Tasks", the
    positive-example language-model loss; `losses.policy_loss` and `estimators.loss_weights` name theirs.
    """
    batch = rows.batch
    # Each row's weights depend on the row alone, so that only the denominator has to be known for the whole step.
    shares, _ = loss_weights(batch.loss_mask, settings.aggregation, max_completion_tokens=1)
    mean = partial(masked.masked_mean, mask=batch.loss_mask, denominator=counts.denominator)
    loss, stats = losses.policy_loss(
        logprobs,
        view.anchor,
        rows.advantages,
        batch.loss_mask,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        dual_clip=settings.dual_clip,
        weights=view.weights * shares,
        denominator=counts.denominator,
        num_tokens=counts.num_tokens,
    )
    stats["policy_loss"] = loss.detach()
    if settings.positive_nll_coef > 0:
        imitation = losses.likelihood_loss(logprobs, _positive(batch), denominator=counts.num_positive)
        stats["positive_nll"] = imitation.detach()
        loss = loss + settings.positive_nll_coef * imitation
    if settings.entropy_coef > 0:
        loss = loss - settings.entropy_coef * mean(entropies * shares)
    if settings.kl_place == "loss" and rows.ref_logprobs is not None:
        token_kl = kl.kl_estimate(logprobs, rows.ref_logprobs, settings.kl_kind)
        loss = loss + kl_coef * mean(token_kl * shares)
    return loss, stats


def is_too_far(stats: losses.Stats, settings: LearnerSettings) -> bool:
    """Tell whether a step met a policy further from its anchor than `target_kl`; critic-only steps never do."""
    limit = settings.target_kl
    return limit is not None and "approx_kl" in stats and stats["approx_kl"].item() > limit


def next_kl_coef(
    kl_coef: float, observed: float | list[float] | None, settings: LearnerSettings, *, num_rollouts: int
) -> float:
    """Give the weight of the reference KL in the next update: the same, or where a target is set, nearer to meeting it.

    Args:
        kl_coef: in this update.
        observed: the reference KL before it, nats a token; None where it was not measured.
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
    """Refuse to go on where the policy is not the old policy before an update's first step: ratio 1, KL 0, no clip.

    Args:
        logprobs: the policy's, nats.
        old_logprobs: the same before the update, nats.
        batch: their rows.
        dtype: of the matrix products: what rounding may explain.

    Raises:
        BrokenInvariant: they differ by more than that.
    """
    gap = (logprobs.detach() - old_logprobs).abs()[batch.loss_mask]
    worst, tolerance = (gap.max().item() if len(gap) else 0.0), RATIO_TOLERANCE[dtype]
    if math.isnan(worst) or worst > tolerance:
        raise BrokenInvariant(
            f"learner: expected logprobs = old_logprobs before the first step (within {tolerance:g} nats), got a "
            f"difference of {worst:g}, {gap.mean().item():g} in the mean, among {batch.num_rows} rollouts; likely "
            "causes: dropout is on, weights changed since old_logprobs were taken, other temperature, padding leaks"
        )


def _positive(batch: Batch) -> Tensor:
    return batch.loss_mask & batch.correct[:, None]
