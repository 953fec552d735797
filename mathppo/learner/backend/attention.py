"""Attention within packed sequences: sequences concatenated in one row that do not attend to each other.

On a GPU in half precision, torch's variable-length kernel; elsewhere one SDPA call per run of equal lengths. Neither
builds an N x N mask (note M-learner-8).
"""

from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mathppo.errors import BadSetting

UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Arguments of some architectures that neither implementation supports."""


def packed_attention(
    module: nn.Module,
    query: Float[Tensor, "1 H N D"],
    key: Float[Tensor, "1 K N D"],
    value: Float[Tensor, "1 K N D"],
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Int[Tensor, " S"],
    max_length_q: int,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[Float[Tensor, "1 N H D"], None]:
    """Compute causal attention within each sequence; an attention function of transformers.

    Args:
        module: the layer.
        query: of all N tokens.
        key: of all N tokens; each of the K heads serves H / K query heads.
        value: as `key`.
        attention_mask: ignored; `cu_seq_lens_q` separates the sequences.
        cu_seq_lens_q: 0 and the end of each sequence; int32.
        max_length_q: length of the longest sequence.
        scaling: of the scores; None = 1 / sqrt(D).
        sliding_window: tokens that a token attends to, itself included; None = all before it.
        more: further arguments of transformers.

    Raises:
        BadSetting: the architecture caps or biases its scores.

    Source: Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination"
    (https://arxiv.org/abs/2107.02027), section 3.2.
    """
    unsupported = [name for name in UNSUPPORTED if more.get(name) is not None]
    if unsupported:
        raise BadSetting(
            f"learner.packing: expected attention without {', '.join(unsupported)}, got {type(module).__name__}; set "
            'it to "padded"'
        )
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    device = query.device.type
    if torch.is_autocast_enabled(device):
        # Rotary embeddings return float32, and autocast does not cast the inputs of the variable-length kernel.
        query, key, value = (x.to(torch.get_autocast_dtype(device)) for x in (query, key, value))
    has_kernel = device == "cuda" and query.dtype in (torch.float16, torch.bfloat16)
    attention = _attention_by_kernel if has_kernel else _attention_by_length
    ends, longest = cu_seq_lens_q, max_length_q
    return attention(query, key, value, ends, longest, scaling=scaling, sliding_window=sliding_window), None


def _attention_by_kernel(
    query: Float[Tensor, "1 H N D"],
    key: Float[Tensor, "1 H N D"],
    value: Float[Tensor, "1 H N D"],
    ends: Int[Tensor, " S"],
    longest: int,
    *,
    scaling: float | None,
    sliding_window: int | None,
) -> Float[Tensor, "1 N H D"]:
    one, two, three = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    window = (-1 if sliding_window is None else sliding_window - 1, 0)
    from torch.nn.attention.varlen import varlen_attn  # imports torch's compiler: seconds

    mixed = varlen_attn(one, two, three, ends, ends, longest, longest, scale=scaling, window_size=window)
    assert isinstance(mixed, Tensor)
    return mixed[None]


def _attention_by_length(
    query: Float[Tensor, "1 H N D"],
    key: Float[Tensor, "1 H N D"],
    value: Float[Tensor, "1 H N D"],
    ends: Int[Tensor, " S"],
    longest: int,
    *,
    scaling: float | None,
    sliding_window: int | None,
) -> Float[Tensor, "1 N H D"]:
    runs = [(length, length * len(list(run))) for length, run in groupby(ends.diff().tolist())]
    sizes, parts = [size for _, size in runs], []
    for (length, _), *states in zip(runs, *(x[0].split(sizes, dim=1) for x in (query, key, value)), strict=True):
        # [H, S * length, D] viewed as S sequences.
        one, two, three = (x.unflatten(1, (-1, length)).transpose(0, 1) for x in states)
        band = None
        if sliding_window is not None and sliding_window < length:
            ones = torch.ones(length, length, dtype=torch.bool, device=query.device)
            band = ones.tril() & ones.triu(1 - sliding_window)
        mixed = functional.scaled_dot_product_attention(
            one, two, three, attn_mask=band, is_causal=band is None, scale=scaling
        )
        parts.append(mixed.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)[None]
