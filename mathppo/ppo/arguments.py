"""Argument checks of the package: equal shapes, boolean masks, at least 32-bit floats.

Nothing is broadcast: a `[B, 1]` mask with `[B, T]` values is nearly always a silent mistake.
"""

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from mathppo.errors import BadInput, BadSetting


def require_same_shape(where: str, **tensors: Tensor | None) -> None:
    """Raise if a tensor's shape differs from the first one's.

    Args:
        where: name of the calling function, for the message.
        tensors: the arguments by name; None = not given.

    Raises:
        BadInput: two shapes differ.
    """
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first = next(iter(given))
    expected = tuple(given[first].shape)
    for name, tensor in given.items():
        if tuple(tensor.shape) != expected:
            raise BadInput(
                f"{where}: expected {name} of shape {list(expected)} like {first}, got {list(tensor.shape)}; "
                "pad all tensors to one completion width, nothing is broadcast"
            )


def require_per_row(where: str, rows: int, **tensors: Tensor | None) -> None:
    """Raise if a tensor is not `[B]`, one number per row.

    Raises:
        BadInput: a shape is not `[rows]`.
    """
    for name, tensor in tensors.items():
        if tensor is not None and tuple(tensor.shape) != (rows,):
            raise BadInput(
                f"{where}: expected {name} of shape [{rows}], one number per row, got {list(tensor.shape)}; squeeze it"
            )


def require_range(where: str, name: str, value: float, low: float, high: float) -> None:
    """Raise if a scalar is outside `[low, high]` or NaN.

    Raises:
        BadSetting: the value is outside.
    """
    if not low <= value <= high:
        raise BadSetting(f"{where}: expected {name} in [{low:g}, {high:g}], got {value!r}; correct the setting")


def as_mask(mask: Shaped[Tensor, "*dims"]) -> Bool[Tensor, "*dims"]:
    """Return the mask as booleans; masks of 0 and 1 in any dtype are accepted."""
    return mask if mask.dtype == torch.bool else mask != 0


def as_float(x: Shaped[Tensor, "*dims"]) -> Shaped[Tensor, "*dims"]:
    """Return the tensor in at least 32-bit floating point; float64 stays float64."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def keep(x: Shaped[Tensor, "*dims"], mask: Bool[Tensor, "*dims"]) -> Shaped[Tensor, "*dims"]:
    """Return `x` where the mask is True and exactly 0 elsewhere, in at least 32 bits.

    Selects instead of multiplying, so NaN and infinity at masked positions reach neither the value nor the gradient.
    """
    x = as_float(x)
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))
