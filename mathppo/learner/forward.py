"""The passes of policy and critic over a batch: log-probabilities, entropies and values, aligned as `batch.py` draws.

`Compute` says how a pass is computed, never what: log-probabilities from chunks of hidden states, layers computed again
in backward, matrix products in bfloat16.

Touches: nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from mathppo.batch import Batch
from mathppo.config import LearnerSettings
from mathppo.errors import BadSetting
from mathppo.learner.models import PreTrainedModel
from mathppo.learner.sharding import within
from mathppo.ppo import logprobs

SMALL_VOCABULARY = 1024
"""Tokens; up to it the logits of a whole pass weigh less than the layers' activations, and chunks would only cost."""

PLAIN_TOLERANCE = 1e-4
"""Relative difference up to which logits by hand and logits by the model are the same computation."""


@dataclass(frozen=True)
class Compute:
    """How passes are computed.

    Args:
        dtype: of matrix products; bfloat16 by autocast, so that weights and their gradients stay float32.
        head_chunk_tokens: tokens whose logits exist at one time; 0 = the model's own head, all logits of a pass.
        recomputes: layers that `models.mark_layers` marked keep their inputs only; backward does the rest again.
    """

    dtype: torch.dtype = torch.float32
    head_chunk_tokens: int = 0
    recomputes: bool = False

    @contextmanager
    def of(self, model: PreTrainedModel) -> Iterator[None]:
        """Run a forward pass of `model` so."""
        # The library recomputes a layer only where the layer itself is in training mode; what lies within it is not,
        # so that dropout stays off.
        layers = [m for m in model.modules() if self.recomputes and getattr(m, "gradient_checkpointing", None) is True]
        for layer in layers:
            layer.training = True
        try:
            with torch.autocast(model.device.type, self.dtype, enabled=self.dtype != torch.float32):
                yield
        finally:
            for layer in layers:
                layer.training = False


PLAIN = Compute()


def choose_compute(policy: PreTrainedModel, settings: LearnerSettings) -> Compute:
    """Give the settings' way of computing, with the model's own head where another would not pay or not be the same."""
    is_large = policy.config.get_text_config().vocab_size > SMALL_VOCABULARY
    chunked = is_large and settings.head_chunk_tokens > 0 and has_plain_head(policy)
    return Compute(
        dtype=torch.bfloat16 if settings.compute_dtype == "bfloat16" else torch.float32,
        head_chunk_tokens=settings.head_chunk_tokens if chunked else 0,
        recomputes=settings.activation_checkpointing,
    )


@torch.no_grad()
def has_plain_head(policy: PreTrainedModel) -> bool:
    """Tell whether the logits are one matrix times the last hidden states: no bias, scale, cap or further layer.

    Read off the module and proved on a short input: models that scale or cap their logits do so in `forward`.
    """
    head = policy.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None:
        return False
    ids = torch.arange(8, device=policy.device)[None] % policy.config.get_text_config().vocab_size
    logits = policy(input_ids=ids, use_cache=False).logits.float()
    hidden = policy.base_model(input_ids=ids, use_cache=False).last_hidden_state
    by_hand = functional.linear(hidden, head.weight).float()
    return bool((logits - by_hand).abs().max() <= PLAIN_TOLERANCE * logits.abs().max())


def require_fit(policy: PreTrainedModel, settings: LearnerSettings, *, num_ranks: int) -> None:
    """Refuse what these models or this number of processes cannot serve.

    Raises:
        BadSetting: a shared trunk under a head that is not plain, or moments of 8 bits in shards.
    """
    shares_trunk = settings.shared_trunk and settings.has_critic
    if shares_trunk and not has_plain_head(policy):
        raise BadSetting(
            "learner.shared_trunk: expected a policy whose logits are one matrix times its last states, got "
            f"{type(policy).__name__}; give the critic a trunk of its own"
        )
    if num_ranks > 1 and settings.optimizer != "adamw":
        raise BadSetting(
            f'learner.optimizer: expected "adamw" on {num_ranks} processes, got "{settings.optimizer}", whose blocks '
            "of 256 numbers do not end where shards do; set it to adamw, or start one process"
        )


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
    with compute.of(policy):
        logits = policy(
            input_ids=batch.ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
            logits_to_keep=batch.completion_width + 1,
        ).logits[:, :-1]
    return _logprobs_of_logits(logits, batch, temperature=temperature, with_entropy=with_entropy)


def completion_values(
    critic: PreTrainedModel, batch: Batch, *, compute: Compute = PLAIN
) -> tuple[Float[Tensor, "B T"], Float[Tensor, " B"]]:
    """Give `values` and V(prompt + whole completion), as drawn in `batch.py`; float32."""
    with compute.of(critic):
        logits = critic(
            input_ids=batch.ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids, use_cache=False
        ).logits
    return _align_values(logits, batch)


def hidden_states(model: PreTrainedModel, batch: Batch, *, compute: Compute = PLAIN) -> Float[Tensor, "B L D"]:
    """Give the trunk's last states, after its final norm."""
    with compute.of(model):
        return model.base_model(
            input_ids=batch.ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids, use_cache=False
        ).last_hidden_state


def logprobs_of_states(
    policy: PreTrainedModel,
    hidden: Float[Tensor, "B L D"],
    batch: Batch,
    *,
    temperature: float,
    compute: Compute = PLAIN,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Give what `completion_logprobs` gives, from the trunk's states; the policy's head is plain."""
    head = policy.get_output_embeddings()
    assert isinstance(head, nn.Linear)
    before = hidden[:, batch.prompt_width - 1 : -1]
    with compute.of(policy):
        if not compute.head_chunk_tokens:
            return _logprobs_of_logits(head(before), batch, temperature=temperature, with_entropy=True)
        ids, mask = batch.ids[:, batch.prompt_width :], batch.completion_mask
        # Padding has no log-probability that anyone reads: only the completions' own tokens pay for the vocabulary.
        picked = logprobs.chunked_token_logprobs(
            before[mask], head.weight, ids[mask], temperature=temperature, chunk_tokens=compute.head_chunk_tokens
        )
    first, second = (x.new_zeros(mask.shape).masked_scatter(mask, x) for x in picked)
    return first, second


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
    values, _ = values_of_states(value_head, scale_gradient(hidden, trunk_value_gradient), batch)
    return logprobs, entropies, values


def values_of_states(
    head: nn.Module, hidden: Float[Tensor, "B L D"], batch: Batch
) -> tuple[Float[Tensor, "B T"], Float[Tensor, " B"]]:
    """Give what `completion_values` gives, from the trunk's states."""
    return _align_values(head(hidden), batch)


def scale_gradient(x: Float[Tensor, "*dims"], factor: float) -> Float[Tensor, "*dims"]:
    """Give the very same numbers, whose gradient is multiplied by `factor` on its way back; 0 blocks it."""
    return x.detach() if factor == 0.0 else x.detach() + factor * (x - x.detach())


def _logprobs_of_logits(
    logits: Float[Tensor, "B T V"], batch: Batch, *, temperature: float, with_entropy: bool
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    ids = batch.ids[:, batch.prompt_width :]
    token_logprobs = logprobs.token_logprobs(logits, ids, temperature=temperature)
    if not with_entropy:
        return token_logprobs, torch.zeros_like(token_logprobs)
    return token_logprobs, logprobs.entropy(logits, temperature=temperature)


def _align_values(logits: Float[Tensor, "B L 1"], batch: Batch) -> tuple[Float[Tensor, "B T"], Float[Tensor, " B"]]:
    values = logits[..., 0].float()
    start = batch.prompt_width - 1
    final = values.gather(1, (start + batch.lengths)[:, None]).squeeze(1)
    return values[:, start : start + batch.completion_width], final
