"""Forward passes of policy and critic: log-probabilities, entropies and values, aligned as drawn in `batch.py`.

`ForwardOptions` change memory and speed, and results only up to rounding.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mathppo.batch import Batch
from mathppo.learner.backend.forward_options import DEFAULT, ForwardOptions, packed_inputs
from mathppo.learner.backend.models import PreTrainedModel
from mathppo.learner.backend.sharding import run_within
from mathppo.ppo import logprobs


def completion_logprobs(
    policy: PreTrainedModel,
    batch: Batch,
    *,
    temperature: float,
    with_entropy: bool = True,
    options: ForwardOptions = DEFAULT,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Return the log-probabilities of the completion tokens and the entropies of their distributions, nats.

    Padding columns hold arbitrary finite numbers.

    Args:
        policy: a causal language model.
        batch: rows on the model's device.
        temperature: the sampler's.
        with_entropy: False skips the entropies, which may then be 0.
        options: of the forward pass.
    """
    if options.head_chunk_tokens:

        def from_hidden() -> tuple[Tensor, Tensor]:
            hidden = hidden_states(policy, batch, options=options)
            return logprobs_from_hidden(policy, hidden, batch, temperature=temperature, options=options)

        return run_within(policy, from_hidden)
    keep = batch.packed().before if options.packed else batch.completion_width + 1
    with options.applied_to(policy):
        logits = policy(**_inputs(batch, options), logits_to_keep=keep).logits
    ids, mask = batch.ids[:, batch.prompt_width :], batch.completion_mask
    if not options.packed:
        return _logprobs_from_logits(logits[:, :-1], ids, temperature=temperature, with_entropy=with_entropy)
    selected = _logprobs_from_logits(logits[0], ids[mask], temperature=temperature, with_entropy=with_entropy)
    return _scatter(selected[0], mask), _scatter(selected[1], mask)


def completion_values(
    critic: PreTrainedModel, batch: Batch, *, options: ForwardOptions = DEFAULT
) -> tuple[Float[Tensor, "B T"], Float[Tensor, " B"]]:
    """Return `values` and V(prompt + whole completion), aligned as drawn in `batch.py`; float32."""
    with options.applied_to(critic):
        logits = critic(**_inputs(batch, options)).logits
    return _align_values(logits, batch, options)


def hidden_states(model: PreTrainedModel, batch: Batch, *, options: ForwardOptions = DEFAULT) -> Float[Tensor, "R C D"]:
    """Return the trunk's last hidden states, after its final norm: `[B, L, D]`, or `[1, N, D]` if packed."""
    with options.applied_to(model):
        return model.base_model(**_inputs(batch, options)).last_hidden_state


def logprobs_from_hidden(
    policy: PreTrainedModel,
    hidden: Float[Tensor, "R C D"],
    batch: Batch,
    *,
    temperature: float,
    options: ForwardOptions = DEFAULT,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Return the results of `completion_logprobs` from hidden states, for a policy with a plain linear head."""
    head = policy.get_output_embeddings()
    assert isinstance(head, nn.Linear)
    # Only completion tokens need logits: log-probabilities of padding are not read.
    mask = batch.completion_mask
    ids = batch.ids[:, batch.prompt_width :][mask]
    before = hidden[0, batch.packed().before] if options.packed else hidden[:, batch.prompt_width - 1 : -1][mask]
    with options.applied_to(policy):
        if options.head_chunk_tokens:
            selected = logprobs.chunked_token_logprobs(
                before, head.weight, ids, temperature=temperature, chunk_tokens=options.head_chunk_tokens
            )
        else:
            selected = _logprobs_from_logits(head(before), ids, temperature=temperature, with_entropy=True)
    return _scatter(selected[0], mask), _scatter(selected[1], mask)


def logprobs_and_values(
    policy: PreTrainedModel,
    value_head: nn.Module,
    batch: Batch,
    *,
    temperature: float,
    trunk_value_gradient: float,
    options: ForwardOptions = DEFAULT,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Return log-probabilities, entropies and values from one pass of a trunk shared by policy and critic.

    Args:
        policy: the owner of the trunk, with a plain linear head.
        value_head: the critic's.
        batch: rows on the model's device.
        temperature: the sampler's.
        trunk_value_gradient: factor on the values' gradient into the trunk.
        options: of the forward pass.

    Source: Cobbe et al. 2021, "Phasic Policy Gradient" (https://arxiv.org/abs/2009.04416), section 1: interference
    between the two objectives in a shared trunk, which the factor controls.
    """
    hidden = hidden_states(policy, batch, options=options)
    logprobs, entropies = logprobs_from_hidden(policy, hidden, batch, temperature=temperature, options=options)
    values, _ = values_from_hidden(value_head, scale_gradient(hidden, trunk_value_gradient), batch, options=options)
    return logprobs, entropies, values


def values_from_hidden(
    head: nn.Module, hidden: Float[Tensor, "R C D"], batch: Batch, *, options: ForwardOptions = DEFAULT
) -> tuple[Float[Tensor, "B T"], Float[Tensor, " B"]]:
    """Return the results of `completion_values` from hidden states."""
    return _align_values(head(hidden), batch, options)


def scale_gradient(x: Float[Tensor, "*dims"], factor: float) -> Float[Tensor, "*dims"]:
    """Return `x` unchanged, with its gradient multiplied by `factor`; 0 blocks the gradient."""
    return x.detach() if factor == 0.0 else x.detach() + factor * (x - x.detach())


def _inputs(batch: Batch, options: ForwardOptions) -> dict[str, Any]:
    """Return the keyword arguments of a model's forward pass."""
    if options.packed:
        packed = batch.packed()
        return packed_inputs(packed.ids, packed.position_ids, packed.ends, packed.longest)
    return {
        "input_ids": batch.ids,
        "attention_mask": batch.attention_mask,
        "position_ids": batch.position_ids,
        "use_cache": False,
    }


def _logprobs_from_logits(
    logits: Float[Tensor, "*dims V"], ids: Int[Tensor, "*dims"], *, temperature: float, with_entropy: bool
) -> tuple[Float[Tensor, "*dims"], Float[Tensor, "*dims"]]:
    token_logprobs = logprobs.token_logprobs(logits, ids, temperature=temperature)
    if not with_entropy:
        return token_logprobs, torch.zeros_like(token_logprobs)
    return token_logprobs, logprobs.entropy(logits, temperature=temperature)


def _align_values(
    logits: Float[Tensor, "R C 1"], batch: Batch, options: ForwardOptions
) -> tuple[Float[Tensor, "B T"], Float[Tensor, " B"]]:
    values = logits[..., 0].float()
    if options.packed:
        packed = batch.packed()
        return _scatter(values[0, packed.before], batch.completion_mask), values[0, packed.last]
    start = batch.prompt_width - 1
    final = values.gather(1, (start + batch.lengths)[:, None]).squeeze(1)
    return values[:, start : start + batch.completion_width], final


def _scatter(x: Float[Tensor, " M"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Place the numbers of the True steps, row by row, at their steps, and 0 elsewhere."""
    return x.new_zeros(mask.shape).masked_scatter(mask, x)
