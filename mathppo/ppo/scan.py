"""Discounted suffix sums without a loop over steps."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

BLOCK_STEPS = 16
"""Steps per multiplication by a matrix of powers; the fastest of 16, 32 and 64 on a CPU."""


def discounted_suffix_sums(x: Float[Tensor, "B T"], decay: Float[Tensor, " B"]) -> Float[Tensor, "B T"]:
    """Return `y[t] = x[t] + decay * y[t + 1]` by a blocked scan.

    Each block of `BLOCK_STEPS` is one product with a triangular matrix of powers. The first sums of the blocks form a
    sequence of the same kind with decay `decay ** BLOCK_STEPS`, which the function solves recursively; each block then
    adds its successor's first sum to its last step.

    Args:
        x: any finite numbers; may be overwritten.
        decay: in [0, 1], one per row; float64, so that high powers are exact.

    Source: Blelloch 1990, "Prefix Sums and Their Applications", section 1.4 (recurrence equations).
    """
    rows, width = x.shape
    if width <= BLOCK_STEPS:
        return torch.matmul(x[:, None], _powers(decay, width).to(x.dtype))[:, 0]
    blocks = functional.pad(x, (0, -width % BLOCK_STEPS)) if width % BLOCK_STEPS else x.contiguous()
    blocks = blocks.view(rows, -1, BLOCK_STEPS)
    powers = _powers(decay, BLOCK_STEPS).to(x.dtype)
    first_sums = torch.matmul(blocks, powers[:, :, :1])[..., 0]
    first_sums = discounted_suffix_sums(first_sums, decay**BLOCK_STEPS)
    blocks[:, :-1, -1] += decay.to(x.dtype)[:, None] * first_sums[:, 1:]
    return torch.matmul(blocks, powers).view(rows, -1)[:, :width]


def _powers(decay: Float[Tensor, " B"], steps: int) -> Float[Tensor, "B steps steps"]:
    """Return `[b, i, t] = decay[b] ** (i - t)` if `i >= t`, else 0: `x @ powers` is the discounted suffix sum."""
    step = torch.arange(steps, device=decay.device)
    distance = step[:, None] - step[None, :]
    return torch.where(distance >= 0, decay[:, None, None] ** distance.clamp(min=0), 0.0)
