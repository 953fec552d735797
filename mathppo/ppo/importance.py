"""Truncated importance weights, for rollouts that another policy or engine sampled."""

from jaxtyping import Float, Shaped
from torch import Tensor

from mathppo.errors import BadSetting
from mathppo.ppo.arguments import as_float, as_mask, keep, require_same_shape


def token_importance_weights(
    old_logprobs: Float[Tensor, "B T"],
    behaviour_logprobs: Float[Tensor, "B T"],
    mask: Shaped[Tensor, "B T"],
    *,
    cap: float = 2.0,
) -> Float[Tensor, "B T"]:
    """Return `min(exp(old_logprobs - behaviour_logprobs), cap)` per token.

    Args:
        old_logprobs: the learner's before the update, nats.
        behaviour_logprobs: the sampler's, nats.
        mask: True = counts.
        cap: above 0; bounds the variance at the cost of a bias. 2 is customary.

    Returns:
        Detached, at least float32, in [0, cap], 0 at masked steps; 1 where both log-probabilities agree.

    Raises:
        BadInput: shapes differ.
        BadSetting: the cap is not above 0.

    Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", truncated
    importance sampling; Ionides 2008, "Truncated Importance Sampling".

    >>> import torch
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
    """Return one weight for all tokens of a completion: the product of their ratios, capped.

    Unbiased up to the cap, while token weights ignore that earlier tokens were sampled from another policy too; but its
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

    >>> import torch
    >>> old, behaviour = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-0.5, -1.0]])
    >>> sequence_importance_weights(old, behaviour, torch.ones(1, 2))
    tensor([[0.6065, 0.6065]])
    """
    mask, log_ratio = _log_ratio("sequence_importance_weights", old_logprobs, behaviour_logprobs, mask, cap)
    weights = log_ratio.sum(1, keepdim=True).exp().clamp(max=cap)
    return keep(weights.expand_as(log_ratio), mask)


def _log_ratio(
    where: str, old_logprobs: Tensor, behaviour_logprobs: Tensor, mask: Tensor, cap: float
) -> tuple[Tensor, Tensor]:
    """Return the boolean mask and the detached log-ratio, 0 at masked steps."""
    require_same_shape(where, old_logprobs=old_logprobs, behaviour_logprobs=behaviour_logprobs, mask=mask)
    if not cap > 0.0:
        raise BadSetting(f"{where}: expected cap above 0, got {cap!r}; 2 is customary")
    mask = as_mask(mask)
    return mask, keep(as_float(old_logprobs.detach()) - behaviour_logprobs.detach(), mask)
