"""Checks, their rows, and the comparison of expected and actual tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mathppo.errors import MathPPOError

Function = Callable[..., Any]

NAN = float("nan")
EMPTY_MASK = "NVIDIA-NeMo/RL#158, unslothai/unsloth-zoo#1286"
UNEQUAL_PARTS = "NovaSky-AI/SkyRL#925, OpenRLHF/OpenRLHF#1216"

_RAISED_BY_TENSOR_CODE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
    MathPPOError,
)


class Mismatch(Exception):
    """An implementation returned a wrong result."""


@dataclass(frozen=True)
class Check:
    """One row of the fault table.

    Args:
        name: the correct behaviour, in a few words.
        issue: the public issues it comes from, `owner/repository#number`, or the definition it follows from.
        examine: calls the function; returns a description of the result, or raises `Mismatch`.
    """

    name: str
    issue: str
    examine: Callable[[Function], str]


@dataclass(frozen=True)
class Row:
    """The outcome of a check.

    Args:
        name: the correct behaviour.
        issue: the public issues or the definition.
        passed: True if the implementation has this behaviour.
        detail: the result; on failure, the expected and the actual result.
    """

    name: str
    issue: str
    passed: bool
    detail: str


def judge(check: Check, function: Function) -> Row:
    """Run a check; the row fails if the function raises."""
    try:
        return Row(check.name, check.issue, True, check.examine(function))
    except Mismatch as mismatch:
        return Row(check.name, check.issue, False, str(mismatch))
    except _RAISED_BY_TENSOR_CODE as error:
        first_line = (str(error).strip() or "no message").splitlines()[0]
        return Row(check.name, check.issue, False, f"expected a result, got {type(error).__name__}: {first_line}")


def expect(got: Any, expected: Sequence[Any] | float | Tensor, tolerance: float = 1e-4, *, of: str = "") -> str:
    """Compare a result with the expected numbers and return it as text.

    Args:
        got: the result of the implementation.
        expected: the correct numbers.
        tolerance: absolute and relative tolerance; their sum is allowed.
        of: name of the numbers, for the message.

    Raises:
        Mismatch: the shape is different, or a number differs by more than the tolerance.
    """
    seen = torch.as_tensor(got).detach().double()
    right = torch.as_tensor(expected).detach().double()
    prefix = f"{of}: " if of else ""
    if seen.shape != right.shape:
        raise Mismatch(f"{prefix}expected shape {list(right.shape)}, got {list(seen.shape)}")
    if not torch.allclose(seen, right, rtol=tolerance, atol=tolerance):
        raise Mismatch(f"{prefix}expected {shown(right)}, got {shown(seen)}")
    return prefix + shown(seen)


def shown(x: Tensor) -> str:
    """Format up to eight numbers with four digits."""
    numbers = [f"{number:.4g}" for number in x.flatten()[:8].tolist()]
    text = ", ".join(numbers) + (", …" if x.numel() > 8 else "")
    return text if x.dim() == 0 else f"[{text}]"


def row_of(*numbers: float) -> Tensor:
    """Return a batch of one completion, [1, T]."""
    return torch.tensor([numbers], dtype=torch.float32)


def mask_of(*bits: str) -> Tensor:
    """Return a mask [B, T] from one string of 0 and 1 per row."""
    return torch.tensor([[bit == "1" for bit in row] for row in bits])


def randn(seed: int, *shape: int) -> Tensor:
    """Draw standard normal numbers from a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradient_of(loss: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of a loss with respect to one tensor."""
    return torch.autograd.grad(loss, x)[0]
