"""Log-probabilities and entropies from logits, in fp32 and at the sampling temperature.

The temperature is that of the sampler: the policy that is trained is the one that sampled,
`softmax(logits / temperature)`, and its log-probabilities are normalised after the division.

Touches: nothing.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mathppo.errors import BadSetting
from mathppo.ppo.arguments import as_float


def token_logprobs(
    logits: Float[Tensor, "*dims V"], ids: Int[Tensor, "*dims"], *, temperature: float = 1.0
) -> Float[Tensor, "*dims"]:
    """Log-probabilities of given tokens: `log_softmax(logits / temperature)[ids]`, in nats.

    Args:
        logits: those from which the token at the same index was sampled: the model's output one position earlier.
        ids: in [0, V), also at masked positions.
        temperature: the sampler's, above 0.

    Returns:
        At least float32, at most 0, differentiable in `logits`.

    Raises:
        BadSetting: the temperature is not above 0.

    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", section 3: the policy in the ratio is the
    one that acted.

    >>> round(float(token_logprobs(torch.tensor([2.0, 0.0]), torch.tensor(0), temperature=0.5)), 5)
    -0.01815
    """
    return _log_softmax(logits, temperature).gather(-1, ids[..., None])[..., 0]


def entropy(logits: Float[Tensor, "*dims V"], *, temperature: float = 1.0) -> Float[Tensor, "*dims"]:
    """Entropy of `softmax(logits / temperature)`, in nats, between 0 and log V.

    Args:
        logits: may be -inf for tokens that cannot be sampled.
        temperature: above 0.

    Returns:
        At least float32, differentiable in `logits`.

    Raises:
        BadSetting: the temperature is not above 0.

    Source: Shannon 1948, "A Mathematical Theory of Communication", theorem 2.

    >>> round(float(entropy(torch.zeros(4)).exp()), 4)
    4.0
    """
    logprobs = _log_softmax(logits, temperature)
    # 0 * -inf is NaN; a token without probability adds nothing.
    return -(logprobs.exp() * logprobs.masked_fill(logprobs == -torch.inf, 0.0)).sum(-1)


def _log_softmax(logits: Float[Tensor, "*dims V"], temperature: float) -> Float[Tensor, "*dims V"]:
    _require_temperature(temperature)
    return torch.log_softmax(as_float(logits) / temperature, dim=-1)


def _require_temperature(temperature: float) -> None:
    if not 0.0 < temperature < float("inf"):
        raise BadSetting(
            f"log-probabilities: expected a finite temperature above 0, got {temperature!r}; "
            "greedy decoding has no gradient, train at the sampler's temperature"
        )
