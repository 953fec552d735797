"""Attention within texts that lie one after the other in one row, none of which sees another.

On a GPU in half precision, torch's kernel for sequences of any lengths; elsewhere one call for all neighbours of a
length. Neither makes a mask of all tokens by all tokens (note M-learner-8).
"""

from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mathppo.errors import BadSetting

UNKNOWN = ("softcap", "s_aux", "position_bias")
"""What some architectures want of attention, and neither of the ways here gives."""


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
    """Give causal attention within each text, as transformers calls for it.

    Args:
        module: the layer; its `num_key_value_groups` queries share a key.
        query: of all N tokens.
        key: likewise, K heads with K * groups = H.
        value: likewise.
        attention_mask: not read; where texts end says all.
        cu_seq_lens_q: 0, and where each text ends; int32.
        max_length_q: the longest text's length.
        scaling: of the scores; None = 1 / sqrt(D).
        sliding_window: tokens that a token sees, itself included; None = all before it.
        more: what else transformers hands over.

    Raises:
        BadSetting: the architecture wants scores capped or biased.

    Source: Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination", section 3.2.
    """
    wanted = [name for name in UNKNOWN if more.get(name) is not None]
    if wanted:
        raise BadSetting(
            f"learner.packing: expected attention without {', '.join(wanted)}, got {type(module).__name__}; set it to "
            '"padded"'
        )
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    device = query.device.type
    if torch.is_autocast_enabled(device):
        # Rotated in float32, where autocast would make them small only within the kernels that it knows.
        query, key, value = (x.to(torch.get_autocast_dtype(device)) for x in (query, key, value))
    way = _by_kernel if device == "cuda" and query.dtype in (torch.float16, torch.bfloat16) else _by_length
    ends, longest = cu_seq_lens_q, max_length_q
    return way(query, key, value, ends, longest, scaling=scaling, sliding_window=sliding_window), None


def _by_kernel(
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


def _by_length(
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
        # [H, S * length, D] as S texts: a view.
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
