"""Log-probabilities and entropies from logits or hidden states, in fp32 and at the sampling temperature.

The trained policy is the one that sampled, `softmax(logits / temperature)`: log-probabilities are normalized after the
division.

`token_logprobs` and `entropy` take logits. `chunked_token_logprobs` takes hidden states and holds at most one chunk of
logits at a time, in forward and backward; the logits of 32k tokens with a vocabulary of 150k would take 20 GB.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mathppo.errors import BadInput, BadSetting
from mathppo.ppo.arguments import as_float


def token_logprobs(
    logits: Float[Tensor, "*dims V"], ids: Int[Tensor, "*dims"], *, temperature: float = 1.0
) -> Float[Tensor, "*dims"]:
    """Return the log-probabilities of given tokens: `log_softmax(logits / temperature)[ids]`, in nats.

    Args:
        logits: the logits that the token at the same index was sampled from: the model's output one position earlier.
        ids: in [0, V), also at masked positions.
        temperature: the sampler's, above 0.

    Returns:
        At least float32, at most 0, differentiable in `logits`.

    Raises:
        BadSetting: the temperature is not above 0.

    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (https://arxiv.org/abs/1707.06347), section
    3: the ratio is of the policy that acted.

    >>> round(float(token_logprobs(torch.tensor([2.0, 0.0]), torch.tensor(0), temperature=0.5)), 5)
    -0.01815
    """
    return _log_softmax(logits, temperature).gather(-1, ids[..., None])[..., 0]


def entropy(logits: Float[Tensor, "*dims V"], *, temperature: float = 1.0) -> Float[Tensor, "*dims"]:
    """Return the entropy of `softmax(logits / temperature)`, in nats, between 0 and log V.

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
    # 0 * -inf would be NaN; a token with probability 0 adds nothing.
    return -(logprobs.exp() * logprobs.masked_fill(logprobs == -torch.inf, 0.0)).sum(-1)


def chunked_token_logprobs(
    hidden: Float[Tensor, "*dims D"],
    weight: Float[Tensor, "V D"],
    ids: Int[Tensor, "*dims"],
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 512,
) -> tuple[Float[Tensor, "*dims"], Float[Tensor, "*dims"]]:
    """Return the log-probabilities of given tokens and the entropies of their distributions, from hidden states.

    The numbers and gradients are those of `token_logprobs` and `entropy` of `hidden @ weight.T`. Backward recomputes
    the logits of each chunk (note M-ppo-3).

    Args:
        hidden: the model's last hidden states, after the final norm, one position before the tokens. Matrix products
            use its dtype, or that of an enclosing autocast; everything else is at least float32.
        weight: the weight of the LM head, which has no bias. Its gradient is accumulated in at least float32.
        ids: in [0, V), also at masked positions; select the unmasked tokens first to save the cost of the others.
        temperature: the sampler's, above 0.
        chunk_tokens: tokens whose logits exist at a time, about `chunk_tokens * V * 8` bytes.

    Returns:
        `(logprobs, entropies)` in nats, at least float32, differentiable in `hidden` and `weight`, once.

    Raises:
        BadInput: the shapes do not match.
        BadSetting: the temperature is not above 0, or `chunk_tokens` is less than 1.

    Source: recomputation: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"
    (https://arxiv.org/abs/1604.06174); fusion of head and loss: Hsu et al. 2024, "Liger Kernel"
    (https://arxiv.org/abs/2410.10989), section 3.2.

    >>> hidden, weight, ids = torch.ones(3, 2), torch.zeros(4, 2), torch.tensor([0, 1, 3])
    >>> logprobs, entropies = chunked_token_logprobs(hidden, weight, ids)
    >>> logprobs.exp(), entropies.exp()
    (tensor([0.2500, 0.2500, 0.2500]), tensor([4., 4., 4.]))
    """
    _require_temperature(temperature)
    if hidden.shape[:-1] != ids.shape or hidden.shape[-1:] != weight.shape[1:]:
        raise BadInput(
            "chunked_token_logprobs: expected hidden [..., D], weight [V, D] and ids [...], got "
            f"{list(hidden.shape)}, {list(weight.shape)} and {list(ids.shape)}; align hidden states with their tokens"
        )
    if chunk_tokens < 1:
        raise BadSetting(f"chunked_token_logprobs: expected chunk_tokens of at least 1, got {chunk_tokens}")
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        hidden = hidden.to(torch.get_autocast_dtype(device))
    with torch.autocast(device, enabled=False):
        flat = hidden.reshape(-1, hidden.shape[-1])
        logprobs, entropies = _ChunkedHead.apply(flat, weight, ids.reshape(-1), temperature, chunk_tokens)
    return logprobs.view(ids.shape), entropies.view(ids.shape)


class _ChunkedHead(torch.autograd.Function):
    """LM head, softmax, selection and entropy as one autograd function that saves two numbers per token."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float, chunk_tokens: int
    ) -> tuple[Tensor, Tensor]:
        head = weight.to(hidden.dtype)
        parts = [
            _chunk_forward(states @ head.T, chunk_ids, temperature)
            for states, chunk_ids in zip(hidden.split(chunk_tokens), ids.split(chunk_tokens), strict=True)
        ]
        logprobs, entropies, log_normalizers = (torch.cat(numbers) for numbers in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, ids, entropies, log_normalizers)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        logprob_grads, entropy_grads = grad_outputs
        hidden, weight, ids, entropies, log_normalizers = ctx.saved_tensors
        head = weight.to(hidden.dtype)
        hidden_grad = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        weight_grad = torch.zeros_like(as_float(weight)) if ctx.needs_input_grad[1] else None
        for start in range(0, len(ids), ctx.chunk_tokens):
            rows = slice(start, start + ctx.chunk_tokens)
            logits_grad = _chunk_backward(
                hidden[rows] @ head.T,
                ids[rows],
                ctx.temperature,
                (entropies[rows], log_normalizers[rows]),
                None if logprob_grads is None else logprob_grads[rows],
                None if entropy_grads is None else entropy_grads[rows],
            ).to(hidden.dtype)
            if hidden_grad is not None:
                torch.mm(logits_grad, head, out=hidden_grad[rows])
            if weight_grad is not None:
                _add_product(weight_grad, logits_grad.T, hidden[rows])
        weight_grad = None if weight_grad is None else weight_grad.to(weight.dtype)
        return hidden_grad, weight_grad, None, None, None


def _chunk_forward(
    logits: Float[Tensor, "N V"], ids: Int[Tensor, " N"], temperature: float
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Return log-probabilities, entropies and log-normalizers; overwrites the logits."""
    scaled = _scaled_in_place(logits, temperature)
    top = scaled.amax(-1, keepdim=True)
    scaled.sub_(top)
    weights = scaled.exp()
    total = weights.sum(-1)
    log_total = total.log()
    logprobs = scaled.gather(-1, ids[:, None])[:, 0] - log_total
    entropies = log_total - weights.mul_(scaled).sum(-1) / total
    return logprobs, entropies, log_total + top[:, 0]


def _chunk_backward(
    logits: Float[Tensor, "N V"],
    ids: Int[Tensor, " N"],
    temperature: float,
    kept: tuple[Float[Tensor, " N"], Float[Tensor, " N"]],
    logprob_grads: Float[Tensor, " N"] | None,
    entropy_grads: Float[Tensor, " N"] | None,
) -> Float[Tensor, "N V"]:
    """Return the gradient of the logits; overwrites them.

    With `logp` over the vocabulary: d logprob[id] = onehot(id) - p, and d entropy = -p * (logp + entropy).
    """
    entropies, log_normalizers = kept
    logp = _scaled_in_place(logits, temperature).sub_(log_normalizers[:, None])
    grad = logp.exp()
    if entropy_grads is not None:
        pull = logp.add_(entropies[:, None]).mul_(entropy_grads[:, None])
        grad.mul_(pull if logprob_grads is None else pull.add_(logprob_grads[:, None])).neg_()
    elif logprob_grads is not None:
        grad.mul_(-logprob_grads[:, None])
    if logprob_grads is not None:
        grad.scatter_add_(1, ids[:, None], logprob_grads[:, None])
    return grad if temperature == 1.0 else grad.div_(temperature)


def _scaled_in_place(logits: Float[Tensor, "N V"], temperature: float) -> Float[Tensor, "N V"]:
    logits = as_float(logits)
    return logits if temperature == 1.0 else logits.div_(temperature)


def _add_product(total: Float[Tensor, "V D"], left: Float[Tensor, "V N"], right: Float[Tensor, "N D"]) -> None:
    """Compute `total += left @ right`, without a second `[V, D]` tensor if the dtypes allow it."""
    if total.dtype == right.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


def _log_softmax(logits: Float[Tensor, "*dims V"], temperature: float) -> Float[Tensor, "*dims V"]:
    _require_temperature(temperature)
    return torch.log_softmax(as_float(logits) / temperature, dim=-1)


def _require_temperature(temperature: float) -> None:
    if not 0.0 < temperature < float("inf"):
        raise BadSetting(
            f"log-probabilities: expected a finite temperature above 0, got {temperature!r}; "
            "greedy decoding has no gradient, train at the sampler's temperature"
        )
