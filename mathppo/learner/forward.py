"""The passes of policy and critic over a batch: log-probabilities, entropies and values, aligned as `batch.py` draws.

How a pass is computed is `forward_options.py`'s; that changes memory and speed, and no number but its last digits.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mathppo.batch import Batch
from mathppo.learner.backend.forward_options import PLAIN, Compute, packed_inputs
from mathppo.learner.backend.models import PreTrainedModel
from mathppo.learner.backend.sharding import within
from mathppo.ppo import logprobs


def completion_logprobs(
    policy: PreTrainedModel,
    batch: Batch,
    *,
    temperature: float,
    with_entropy: bool = True,
    compute: Compute = PLAIN,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Give the log-probabilities of the completion's tokens, and the entropies of what they were drawn from, in nats.

    Padding columns hold finite numbers that mean nothing.

    Args:
        policy: a causal language model.
        batch: rows on the model's device.
        temperature: the sampler's.
        with_entropy: without it the entropies may be 0, and cost nothing.
        compute: how.
    """
    if compute.head_chunk_tokens:

        def by_chunks() -> tuple[Tensor, Tensor]:
            hidden = hidden_states(policy, batch, compute=compute)
            return logprobs_of_states(policy, hidden, batch, temperature=temperature, compute=compute)

        return within(policy, by_chunks)
    keep = batch.packed().before if compute.packs else batch.completion_width + 1
    with compute.of(policy):
        logits = policy(**_inputs(batch, compute), logits_to_keep=keep).logits
    ids, mask = batch.ids[:, batch.prompt_width :], batch.completion_mask
    if not compute.packs:
        return _logprobs_of_logits(logits[:, :-1], ids, temperature=temperature, with_entropy=with_entropy)
    picked = _logprobs_of_logits(logits[0], ids[mask], temperature=temperature, with_entropy=with_entropy)
    return _spread(picked[0], mask), _spread(picked[1], mask)


def completion_values(
    critic: PreTrainedModel, batch: Batch, *, compute: Compute = PLAIN
) -> tuple[Float[Tensor, "B T"], Float[Tensor, " B"]]:
    """Give `values` and V(prompt + whole completion), as drawn in `batch.py`; float32."""
    with compute.of(critic):
        logits = critic(**_inputs(batch, compute)).logits
    return _align_values(logits, batch, compute)


def hidden_states(model: PreTrainedModel, batch: Batch, *, compute: Compute = PLAIN) -> Float[Tensor, "R C D"]:
    """Give the trunk's last states, after its final norm: `[B, L, D]`, or packed `[1, N, D]`."""
    with compute.of(model):
        return model.base_model(**_inputs(batch, compute)).last_hidden_state


def logprobs_of_states(
    policy: PreTrainedModel,
    hidden: Float[Tensor, "R C D"],
    batch: Batch,
    *,
    temperature: float,
    compute: Compute = PLAIN,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Give what `completion_logprobs` gives, from the trunk's states; the policy's head is plain."""
    head = policy.get_output_embeddings()
    assert isinstance(head, nn.Linear)
    # Padding has no log-probability that anyone reads: only the completions' own tokens pay for the vocabulary.
    mask = batch.completion_mask
    ids = batch.ids[:, batch.prompt_width :][mask]
    before = hidden[0, batch.packed().before] if compute.packs else hidden[:, batch.prompt_width - 1 : -1][mask]
    with compute.of(policy):
        if compute.head_chunk_tokens:
            picked = logprobs.chunked_token_logprobs(
                before, head.weight, ids, temperature=temperature, chunk_tokens=compute.head_chunk_tokens
            )
        else:
            picked = _logprobs_of_logits(head(before), ids, temperature=temperature, with_entropy=True)
    return _spread(picked[0], mask), _spread(picked[1], mask)


def both_heads(
    policy: PreTrainedModel,
    value_head: nn.Module,
    batch: Batch,
    *,
    temperature: float,
    trunk_value_gradient: float,
    compute: Compute = PLAIN,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Give log-probabilities, entropies and values from one pass of a trunk that policy and critic share.

    Args:
        policy: whose trunk it is; its head is plain.
        value_head: the critic's.
        batch: rows on the model's device.
        temperature: the sampler's.
        trunk_value_gradient: share of the values' gradient that enters the trunk.
        compute: how.

    Source: Cobbe et al. 2021, "Phasic Policy Gradient", section 1: what sharing a trunk between the two objectives
    costs, and why the value function's pull on it is a choice of its own.
    """
    hidden = hidden_states(policy, batch, compute=compute)
    logprobs, entropies = logprobs_of_states(policy, hidden, batch, temperature=temperature, compute=compute)
    values, _ = values_of_states(value_head, scale_gradient(hidden, trunk_value_gradient), batch, compute=compute)
    return logprobs, entropies, values


def values_of_states(
    head: nn.Module, hidden: Float[Tensor, "R C D"], batch: Batch, *, compute: Compute = PLAIN
) -> tuple[Float[Tensor, "B T"], Float[Tensor, " B"]]:
    """Give what `completion_values` gives, from the trunk's states."""
    return _align_values(head(hidden), batch, compute)


def scale_gradient(x: Float[Tensor, "*dims"], factor: float) -> Float[Tensor, "*dims"]:
    """Give the very same numbers, whose gradient is multiplied by `factor` on its way back; 0 blocks it."""
    return x.detach() if factor == 0.0 else x.detach() + factor * (x - x.detach())


def _inputs(batch: Batch, compute: Compute) -> dict[str, Any]:
    """Give what a model is called with."""
    if compute.packs:
        packed = batch.packed()
        return packed_inputs(packed.ids, packed.position_ids, packed.ends, packed.longest)
    return {
        "input_ids": batch.ids,
        "attention_mask": batch.attention_mask,
        "position_ids": batch.position_ids,
        "use_cache": False,
    }


def _logprobs_of_logits(
    logits: Float[Tensor, "*dims V"], ids: Int[Tensor, "*dims"], *, temperature: float, with_entropy: bool
) -> tuple[Float[Tensor, "*dims"], Float[Tensor, "*dims"]]:
    token_logprobs = logprobs.token_logprobs(logits, ids, temperature=temperature)
    if not with_entropy:
        return token_logprobs, torch.zeros_like(token_logprobs)
    return token_logprobs, logprobs.entropy(logits, temperature=temperature)


def _align_values(
    logits: Float[Tensor, "R C 1"], batch: Batch, compute: Compute
) -> tuple[Float[Tensor, "B T"], Float[Tensor, " B"]]:
    values = logits[..., 0].float()
    if compute.packs:
        packed = batch.packed()
        return _spread(values[0, packed.before], batch.completion_mask), values[0, packed.last]
    start = batch.prompt_width - 1
    final = values.gather(1, (start + batch.lengths)[:, None]).squeeze(1)
    return values[:, start : start + batch.completion_width], final


def _spread(x: Float[Tensor, " M"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Give numbers of the True steps, row by row, at their steps, and 0 elsewhere."""
    return x.new_zeros(mask.shape).masked_scatter(mask, x)
