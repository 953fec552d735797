"""From logits to one drawn token per row: temperature, filters, inverse CDF.

A sample's uniforms come from a counter-based stream of its own, so what a row draws depends on its seed and its logits,
never on the rows beside it (M-gen-1).
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

_LARGEST_UNIFORM = (
    1.0 - 2.0**-52
)  # times any float64 total it stays below that total, so a draw never falls off the end


def uniforms(seed: int, count: int) -> Float[np.ndarray, " count"]:
    """Give the first `count` uniforms of the stream of `seed`: Philox-4x64 keyed by the seed, counter from 0.

    Args:
        seed: 0 <= seed < 2**63.
        count: how many; a shorter draw is a prefix of a longer one.

    Returns:
        float64 in [0, 1).
    """
    stream = np.random.Generator(np.random.Philox(key=seed))
    return np.minimum(stream.random(count), _LARGEST_UNIFORM)


def sampling_logprobs(
    logits: Float[Tensor, "B V"], *, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> Float[Tensor, "B V"]:
    """Give the log-probabilities of the distribution that is sampled from: log_softmax(filter(logits / temperature)).

    Top-k first, then top-p on what is left, then renormalised; a token that is filtered out has -inf. Ties go to the
    lower id, so that exactly k tokens are kept.

    Args:
        logits: any float dtype; computed in float32 or better.
        temperature: > 0, or 0 for the distribution at temperature 1 without filters (greedy).
        top_k: most likely tokens kept, >= 0; 0 = all.
        top_p: nucleus mass kept, 0 < top_p <= 1: the fewest tokens that reach it, at least one.

    Returns:
        Nats, float32 (float64 for float64 logits).
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if temperature == 0:
        return torch.log_softmax(logits, dim=-1)
    if temperature != 1:
        # The maximum goes first: a tiny temperature must not overflow.
        logits = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    if top_k or top_p < 1:
        logits = _filter(logits, top_k, top_p)
    return torch.log_softmax(logits, dim=-1)


def _filter(logits: Float[Tensor, "B V"], top_k: int, top_p: float) -> Float[Tensor, "B V"]:
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    if top_k:
        ranked[:, top_k:] = -torch.inf
    if top_p < 1:
        probs = torch.softmax(ranked, dim=-1, dtype=torch.float64)
        ranked = ranked.masked_fill(probs.cumsum(dim=-1) - probs >= top_p, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter_(1, order, ranked)


def draw(logprobs: Float[Tensor, "B V"], points: Float[Tensor, " B"] | None) -> Int[Tensor, " B"]:
    """Draw one id per row by inverse CDF: the first whose cumulative probability exceeds the row's point.

    Args:
        logprobs: as `sampling_logprobs` gives them.
        points: one uniform per row, float64 in [0, 1); None = greedy, the most likely id, the lowest on ties.

    Returns:
        Ids. A token of probability 0 is never drawn.
    """
    if points is None:
        return logprobs.argmax(dim=-1)
    cumulative = torch.cumsum(logprobs.exp(), dim=-1, dtype=torch.float64)
    targets = points[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True).squeeze(1).clamp_(max=logprobs.shape[1] - 1)
