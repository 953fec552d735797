"""How the learner's passes are computed, never what they give, and what a model has to be like for it.

Matrix products in bfloat16, log-probabilities from chunks of hidden states, layers computed again in backward, texts
packed without padding: each is chosen by the settings, and proved on a short input where a model could differ.
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
from mathppo.learner.backend.models import PreTrainedModel, attending_packed

SMALL_VOCABULARY = 1024
"""Tokens; up to it the logits of a whole pass weigh less than the layers' activations, and chunks would only cost."""

PLAIN_TOLERANCE = 1e-4
"""Relative difference up to which logits by hand and logits by the model are the same computation."""

PACKED_TOLERANCE: Mapping[torch.dtype, float] = MappingProxyType({torch.float32: 1e-4, torch.bfloat16: 0.05})
"""Relative difference of a trunk's states up to which packed texts are what each of them is alone."""

CANNOT_PACK = (BadSetting, TypeError, ValueError, KeyError, AttributeError, RuntimeError)
"""How architectures and kernels say that they do not take packed texts."""


@dataclass(frozen=True)
class Compute:
    """How passes are computed.

    Args:
        dtype: of matrix products; bfloat16 by autocast, so that weights and their gradients stay float32.
        head_chunk_tokens: tokens whose logits exist at one time; 0 = the model's own head, all logits of a pass.
        recomputes: layers that `models.mark_layers` marked keep their inputs only; backward does the rest again.
        packs: the texts of a pass lie one after the other, without padding, as `batch.Packed` draws.
    """

    dtype: torch.dtype = torch.float32
    head_chunk_tokens: int = 0
    recomputes: bool = False
    packs: bool = False

    @contextmanager
    def of(self, model: PreTrainedModel) -> Iterator[None]:
        """Run a forward pass of `model` so."""
        # The library recomputes a layer only where the layer itself is in training mode; what lies within it is not,
        # so that dropout stays off.
        layers = [m for m in model.modules() if self.recomputes and getattr(m, "gradient_checkpointing", None) is True]
        for layer in layers:
            layer.training = True
        attention = attending_packed(model) if self.packs else nullcontext()
        autocast = torch.autocast(model.device.type, self.dtype, enabled=self.dtype != torch.float32)
        try:
            with attention, autocast:
                yield
        finally:
            for layer in layers:
                layer.training = False


PLAIN = Compute()


def choose_compute(
    policy: PreTrainedModel, settings: LearnerSettings, *, others: Iterable[PreTrainedModel] = ()
) -> Compute:
    """Give the settings' way of computing, with the model's own head where another would not pay or not be the same.

    Args:
        policy: the actor.
        settings: of the learner.
        others: models of the same passes: critic, reference.

    Raises:
        BadSetting: `packing = "packed"` with a model that mixes packed texts.
    """
    is_large = policy.config.get_text_config().vocab_size > SMALL_VOCABULARY
    chunked = is_large and settings.head_chunk_tokens > 0 and has_plain_head(policy)
    compute = Compute(
        dtype=torch.bfloat16 if settings.compute_dtype == "bfloat16" else torch.float32,
        head_chunk_tokens=settings.head_chunk_tokens if chunked else 0,
        recomputes=settings.activation_checkpointing,
    )
    # Note M-learner-8: where packing was measured to be faster, or has a kernel.
    pays = settings.micro_batch_tokens > 0 if policy.device.type == "cpu" else compute.dtype == torch.bfloat16
    if settings.packing == "padded" or (settings.packing == "auto" and not pays):
        return compute
    packing = replace(compute, packs=True)
    for model in (policy, *others):
        refusal = why_not_packed(model, packing)
        if refusal and settings.packing == "packed":
            raise BadSetting(
                f'learner.packing: expected "auto" or "padded" with {type(model).__name__}, which does not keep packed '
                f'texts apart ({refusal}), got "packed"'
            )
        if refusal:
            return compute
    return packing


@torch.no_grad()
def why_not_packed(model: PreTrainedModel, compute: Compute) -> str:
    """Give the reason why a trunk's states of packed texts are not those of each text alone; empty where they are.

    Proved on short texts: architectures differ in what they make of several texts in a row, and kernels in what they
    run on.
    """
    trunk, size = model.base_model, model.config.get_text_config().vocab_size
    lengths = torch.tensor([3, 5, 5, 2], device=model.device)
    texts = [torch.arange(n, device=model.device) % size for n in lengths.tolist()]
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
    places = torch.cat([torch.arange(len(text), device=model.device) for text in texts])
    try:
        with compute.of(model):
            together = trunk(**packed_inputs(torch.cat(texts)[None], places[None], ends, 5)).last_hidden_state[0]
        with replace(compute, packs=False).of(model):
            states = [trunk(input_ids=text[None], use_cache=False).last_hidden_state[0] for text in texts]
    except CANNOT_PACK as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    alone = torch.cat(states).float()
    gap = float((together.float() - alone).abs().max() / alone.abs().max())
    return "" if gap <= PACKED_TOLERANCE[compute.dtype] else f"its states differ by {gap:.2g} of the largest"


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


def packed_inputs(
    ids: Int[Tensor, "1 N"], position_ids: Int[Tensor, "1 N"], ends: Int[Tensor, " S"], longest: int
) -> dict[str, Any]:
    """Give what a model is called with for packed texts, under transformers' names for where they end."""
    # A mask of four dims is handed to the layers as it is, so that none of all tokens by all is made. Ours does not
    # read it; another way of attention, which would let texts see each other, stops at its dtype.
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
