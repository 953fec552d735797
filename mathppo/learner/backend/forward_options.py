"""Forward options: bfloat16 matrix products, a chunked LM head, activation checkpointing, packed sequences.

They change speed and memory, not results. The settings choose them; those that some models do not support are first
verified on a short input.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from mathppo.config import LearnerSettings
from mathppo.errors import BadSetting
from mathppo.learner.backend.models import PreTrainedModel, attend_packed

SMALL_VOCABULARY = 1024
"""Tokens; up to this size the logits of a pass take less memory than the layers' activations, and chunks do not pay."""

PLAIN_TOLERANCE = 1e-4
"""Relative difference up to which the model's logits equal `hidden @ weight.T`."""

PACKED_TOLERANCE: Mapping[torch.dtype, float] = MappingProxyType({torch.float32: 1e-4, torch.bfloat16: 0.05})
"""Relative difference up to which hidden states of packed sequences equal those of each sequence alone."""

PACKING_ERRORS = (BadSetting, TypeError, ValueError, KeyError, AttributeError, RuntimeError)
"""Errors of architectures and kernels that do not support packed sequences."""


@dataclass(frozen=True)
class ForwardOptions:
    """Options of a forward pass.

    Args:
        dtype: of matrix products; bfloat16 by autocast, so weights and gradients stay float32.
        head_chunk_tokens: tokens whose logits exist at a time; 0 = the model's head, with all logits of a pass.
        checkpointing: layers marked by `models.enable_checkpointing` keep their inputs only and are recomputed in
            backward.
        packed: the sequences of a pass are concatenated without padding, as drawn in `batch.py`.
    """

    dtype: torch.dtype = torch.float32
    head_chunk_tokens: int = 0
    checkpointing: bool = False
    packed: bool = False

    @contextmanager
    def applied_to(self, model: PreTrainedModel) -> Iterator[None]:
        """Run forward passes of `model` with these options."""
        # transformers recomputes a layer only if the layer is in training mode; its submodules stay in evaluation mode,
        # so dropout stays off.
        layers = [
            m for m in model.modules() if self.checkpointing and getattr(m, "gradient_checkpointing", None) is True
        ]
        for layer in layers:
            layer.training = True
        attention = attend_packed(model) if self.packed else nullcontext()
        autocast = torch.autocast(model.device.type, self.dtype, enabled=self.dtype != torch.float32)
        try:
            with attention, autocast:
                yield
        finally:
            for layer in layers:
                layer.training = False


DEFAULT = ForwardOptions()


def choose_forward_options(
    policy: PreTrainedModel, settings: LearnerSettings, *, others: Iterable[PreTrainedModel] = ()
) -> ForwardOptions:
    """Return the options of the settings, without a chunked head or packing that do not pay or are not equivalent.

    Args:
        policy: the actor.
        settings: of the learner.
        others: models with the same options: critic, reference.

    Raises:
        BadSetting: `packing = "packed"` with a model that attends across packed sequences.
    """
    is_large = policy.config.get_text_config().vocab_size > SMALL_VOCABULARY
    chunked = is_large and settings.head_chunk_tokens > 0 and has_plain_head(policy)
    padded = ForwardOptions(
        dtype=torch.bfloat16 if settings.compute_dtype == "bfloat16" else torch.float32,
        head_chunk_tokens=settings.head_chunk_tokens if chunked else 0,
        checkpointing=settings.activation_checkpointing,
    )
    # Packing pays where it was measured to be faster or has a kernel (note M-learner-8).
    pays = settings.micro_batch_tokens > 0 if policy.device.type == "cpu" else padded.dtype == torch.bfloat16
    if settings.packing == "padded" or (settings.packing == "auto" and not pays):
        return padded
    packed = replace(padded, packed=True)
    for model in (policy, *others):
        problem = packing_problem(model, packed)
        if problem and settings.packing == "packed":
            raise BadSetting(
                f'learner.packing: expected "auto" or "padded" with {type(model).__name__}, which does not separate '
                f'packed sequences ({problem}), got "packed"'
            )
        if problem:
            return padded
    return packed


@torch.no_grad()
def packing_problem(model: PreTrainedModel, options: ForwardOptions) -> str:
    """Return the reason why hidden states of packed sequences differ from those of each sequence alone, "" if equal.

    Verified on short sequences, because support depends on the architecture and on the kernel.
    """
    trunk, size = model.base_model, model.config.get_text_config().vocab_size
    lengths = torch.tensor([3, 5, 5, 2], device=model.device)
    sequences = [torch.arange(n, device=model.device) % size for n in lengths.tolist()]
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
    positions = torch.cat([torch.arange(len(sequence), device=model.device) for sequence in sequences])
    try:
        with options.applied_to(model):
            packed = trunk(**packed_inputs(torch.cat(sequences)[None], positions[None], ends, 5)).last_hidden_state[0]
        with replace(options, packed=False).applied_to(model):
            hidden = [trunk(input_ids=ids[None], use_cache=False).last_hidden_state[0] for ids in sequences]
    except PACKING_ERRORS as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    separate = torch.cat(hidden).float()
    gap = float((packed.float() - separate).abs().max() / separate.abs().max())
    return "" if gap <= PACKED_TOLERANCE[options.dtype] else f"hidden states differ by {gap:.2g} of the largest"


@torch.no_grad()
def has_plain_head(policy: PreTrainedModel) -> bool:
    """Return True if the logits are `hidden @ weight.T`: no bias, scale, cap or further layer.

    Verified on a short input, because models that scale or cap their logits do so in `forward`.
    """
    head = policy.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None:
        return False
    ids = torch.arange(8, device=policy.device)[None] % policy.config.get_text_config().vocab_size
    logits = policy(input_ids=ids, use_cache=False).logits.float()
    hidden = policy.base_model(input_ids=ids, use_cache=False).last_hidden_state
    by_hand = functional.linear(hidden, head.weight).float()
    return bool((logits - by_hand).abs().max() <= PLAIN_TOLERANCE * logits.abs().max())


def check_models(policy: PreTrainedModel, settings: LearnerSettings, *, num_ranks: int) -> None:
    """Check that the models and the number of processes support the settings.

    Raises:
        BadSetting: a shared trunk with a head that is not plain, or 8-bit moments in shards.
    """
    shares_trunk = settings.shared_trunk and settings.has_critic
    if shares_trunk and not has_plain_head(policy):
        raise BadSetting(
            "learner.shared_trunk: expected a policy whose logits are one matrix times its last hidden states, got "
            f"{type(policy).__name__}; set it to false"
        )
    if num_ranks > 1 and settings.optimizer != "adamw":
        raise BadSetting(
            f'learner.optimizer: expected "adamw" on {num_ranks} processes, got "{settings.optimizer}", whose blocks '
            "of 256 numbers do not align with shards; set it to adamw, or start one process"
        )


def packed_inputs(
    ids: Int[Tensor, "1 N"], position_ids: Int[Tensor, "1 N"], ends: Int[Tensor, " S"], longest: int
) -> dict[str, Any]:
    """Return the keyword arguments of a forward pass over packed sequences."""
    # transformers passes a 4-dim mask to the layers unchanged instead of building an N x N mask. `packed_attention`
    # ignores it; any other attention function would attend across sequences, but raises on its dtype.
    return {
        "input_ids": ids,
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.int8, device=ids.device),
        "position_ids": position_ids,
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
        "use_cache": False,
    }
