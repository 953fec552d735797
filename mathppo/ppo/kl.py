"""Estimates of KL(policy ‖ reference) from sampled tokens, and a controller for its coefficient.

With `d = logprobs - ref_logprobs` on tokens sampled from the policy:

| kind | formula | as a number | as a loss |
|---|---|---|---|
| k1 | `d` | unbiased, either sign | expected gradient 0; use it in the reward |
| k2 | `d² / 2` | biased, low variance | on-policy, the expected gradient of KL(policy ‖ reference) |
| k3 | `exp(-d) - 1 + d` | unbiased, never negative | the expected gradient of the reverse, KL(reference ‖ policy) |

Use it in one place only: k1 in the reward, or k2 or k3 in the loss.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from mathppo.errors import BadSetting
from mathppo.ppo.arguments import as_float, require_range, require_same_shape

EXPONENT_BOUND = 20.0
"""Nats; a bound on arguments of `exp` against overflow. 20 nats are a ratio of 5e8."""


def kl_estimate(
    logprobs: Float[Tensor, "*dims"], ref_logprobs: Float[Tensor, "*dims"], kind: str
) -> Float[Tensor, "*dims"]:
    """Return a per-token estimate of KL(policy ‖ reference), in nats.

    Args:
        logprobs: the policy's log-probabilities of the sampled tokens, nats; differentiable.
        ref_logprobs: the reference's log-probabilities of the same tokens, nats; detached.
        kind: "k1", "k2" or "k3"; see the table above.

    Returns:
        The shape of `logprobs`, at least float32, unmasked: pass the result to `masked_mean`. k3 is flat where a token
        is more than `EXPONENT_BOUND` nats likelier under the reference.

    Raises:
        BadInput: the shapes differ.
        BadSetting: an unknown kind.

    Source: Schulman 2020, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html; the gradients: Tang and
    Munos 2025, "On a few pitfalls in KL divergence gradient estimation for RL" (https://arxiv.org/abs/2506.09477).

    >>> [round(float(kl_estimate(torch.tensor(-1.0), torch.tensor(-1.5), k)), 5) for k in ("k1", "k2", "k3")]
    [0.5, 0.125, 0.10653]
    """
    require_same_shape("kl_estimate", logprobs=logprobs, ref_logprobs=ref_logprobs)
    difference = as_float(logprobs) - as_float(ref_logprobs.detach())
    if kind == "k1":
        return difference
    if kind == "k2":
        return 0.5 * difference.square()
    if kind == "k3":
        return exp_excess(-difference)
    raise BadSetting(f"kl_estimate: expected kind k1, k2 or k3, got {kind!r}; correct the setting")


def exp_excess(x: Float[Tensor, "*dims"]) -> Float[Tensor, "*dims"]:
    """Return `exp(x) - 1 - x`, never negative, and precise around 0 where the three terms cancel.

    Args:
        x: values above `EXPONENT_BOUND` are clamped.

    >>> f"{float(exp_excess(torch.tensor(1e-4))):.4e}"
    '5.0002e-09'
    """
    x = x.clamp(max=EXPONENT_BOUND)
    is_small = x.abs() < 1e-2
    small = torch.where(is_small, x, 0.0)
    # The remainder of the Taylor polynomial is 2e-18 at 1e-2, below the float64 rounding of the result.
    series = small.square() * (0.5 + small * (1 / 6 + small * (1 / 24 + small * (1 / 120 + small / 720))))
    large = torch.where(is_small, 0.0, x)
    return torch.where(is_small, series, torch.expm1(large) - large)


def adapt_coef(coef: float, observed_kl: float, *, target: float, num_rollouts: int, horizon: int) -> float:
    """Return the next KL coefficient: larger if the observed KL is above its target, smaller if below.

    `coef * (1 + clip(observed_kl / target - 1, -0.2, 0.2) * num_rollouts / horizon)`.

    Args:
        coef: the current coefficient, at least 0.
        observed_kl: KL(policy ‖ reference) in the unit of the target: nats per token or per completion. A negative
            estimate counts as below the target.
        target: above 0.
        num_rollouts: rollouts since the last change.
        horizon: rollouts over which a KL that is 20 % off changes the coefficient by about 20 %; at least
            `num_rollouts`.

    Raises:
        BadSetting: an argument is out of range, or the KL is not finite.

    Source: Ziegler et al. 2019, "Fine-Tuning Language Models from Human Preferences"
    (https://arxiv.org/abs/1909.08593), section 2.2.

    >>> adapt_coef(0.1, 12.0, target=6.0, num_rollouts=100, horizon=10_000)  # doctest: +ELLIPSIS
    0.1002...
    """
    require_range("adapt_coef", "coef", coef, 0.0, float("inf"))
    require_range("adapt_coef", "num_rollouts", num_rollouts, 0, horizon)
    if not target > 0.0:
        raise BadSetting(f"adapt_coef: expected target above 0, got {target!r}; correct the setting")
    if not math.isfinite(observed_kl):
        raise BadSetting(f"adapt_coef: expected a finite observed_kl, got {observed_kl!r}; skip this update")
    error = min(max(observed_kl / target - 1.0, -0.2), 0.2)
    return coef * (1.0 + error * num_rollouts / horizon)
