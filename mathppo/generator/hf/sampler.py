"""Token sampler: temperature, top-k and top-p filters, and one draw per row by inverse CDF.

Each sample has its own counter-based random stream, so a draw depends only on the seed and the logits of its row, not
on the other rows of the batch (M-gen-1).
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

_LARGEST_UNIFORM = 1.0 - 2.0**-52  # times any float64 total it stays below the total, so a draw is always in range


def uniforms(seed: int, count: int) -> Float[np.ndarray, " count"]:
    """Return the first `count` uniforms of the stream of `seed`: Philox-4x64 keyed by the seed, counter from 0.

    Args:
        seed: 0 <= seed < 2**63.
        count: number of uniforms; a shorter result is a prefix of a longer one.

    Returns:
        float64 in [0, 1).
    """
    stream = np.random.Generator(np.random.Philox(key=seed))
    return np.minimum(stream.random(count), _LARGEST_UNIFORM)


def sampling_logprobs(
    logits: Float[Tensor, "B V"], *, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> Float[Tensor, "B V"]:
    """Return the log-probabilities of the sampling distribution: log_softmax(filter(logits / temperature)).

    Top-k is applied first, then top-p to the remaining tokens, then the result is renormalised; a removed token has
    -inf. Ties are resolved by the lower id, so exactly k tokens are kept.

    Args:
        logits: any float dtype; computed in float32 or float64.
        temperature: > 0, or 0 for the distribution at temperature 1 without filters (greedy).
        top_k: number of most likely tokens kept, >= 0; 0 = all.
        top_p: nucleus mass kept, 0 < top_p <= 1: the fewest tokens that reach it, at least one.

    Returns:
        Nats, float32 (float64 for float64 logits).
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if temperature == 0:
        return torch.log_softmax(logits, dim=-1)
    scaled = logits
    if temperature != 1:
        # Subtract the maximum first, so a tiny temperature does not overflow.
        scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    if top_k or top_p < 1:
        # Rank by the logits themselves: scaling can round two of them to one value.
        scaled = _filter(scaled, logits.argsort(dim=-1, descending=True, stable=True), top_k, top_p)
    return torch.log_softmax(scaled, dim=-1)


def _filter(logits: Float[Tensor, "B V"], order: Int[Tensor, "B V"], top_k: int, top_p: float) -> Float[Tensor, "B V"]:
    ranked = logits.gather(-1, order)
    if top_k:
        ranked[:, top_k:] = -torch.inf
    if top_p < 1:
        probs = torch.softmax(ranked, dim=-1, dtype=torch.float64)
        ranked = ranked.masked_fill(probs.cumsum(dim=-1) - probs >= top_p, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter_(1, order, ranked)


def draw(logprobs: Float[Tensor, "B V"], points: Float[Tensor, " B"] | None) -> Int[Tensor, " B"]:
    """Draw one id per row by inverse CDF: the first whose cumulative probability exceeds the row's point.

    Args:
        logprobs: from `sampling_logprobs`.
        points: one uniform per row, float64 in [0, 1); None = greedy, the most likely id, the lowest on ties.

    Returns:
        Token ids. A token of probability 0 is never drawn.
    """
    if points is None:
        return logprobs.argmax(dim=-1)
    cumulative = torch.cumsum(logprobs.exp(), dim=-1, dtype=torch.float64)
    targets = points[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True).squeeze(1).clamp_(max=logprobs.shape[1] - 1)
