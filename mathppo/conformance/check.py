"""What a check is, what it gives, and how it states what it expected and got."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mathppo.errors import MathPPOError

Function = Callable[..., Any]

NAN = float("nan")

_RAISED_BY_TENSOR_CODE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
    MathPPOError,
)


class Mismatch(Exception):
    """An implementation gave something else than it should."""


@dataclass(frozen=True)
class Check:
    """One row of the fault table.

    Args:
        name: the right behaviour, in a few words.
        issue: the public issues it stems from, `owner/repository#number`, or the definition it follows from.
        examine: calls the function; returns what it saw, or raises `Mismatch`.
    """

    name: str
    issue: str
    examine: Callable[[Function], str]


@dataclass(frozen=True)
class Row:
    """A check's outcome.

    Args:
        name: the right behaviour.
        issue: where it went wrong before.
        passed: whether this implementation has it.
        detail: what was seen; on failure what was expected and what came.
    """

    name: str
    issue: str
    passed: bool
    detail: str


def judge(check: Check, function: Function) -> Row:
    """Run a check; what the function raises is a failure of its row."""
    try:
        return Row(check.name, check.issue, True, check.examine(function))
    except Mismatch as mismatch:
        return Row(check.name, check.issue, False, str(mismatch))
    except _RAISED_BY_TENSOR_CODE as error:
        first_line = (str(error).strip() or "no message").splitlines()[0]
        return Row(check.name, check.issue, False, f"expected a result, got {type(error).__name__}: {first_line}")


def expect(got: Any, expected: Sequence[Any] | float | Tensor, tolerance: float = 1e-4, *, of: str = "") -> str:
    """The numbers seen, where they are the expected ones.

    Args:
        got: what the implementation gave.
        expected: the right numbers.
        tolerance: absolute, and relative above 1.
        of: what the numbers are, for the message.

    Raises:
        Mismatch: another shape, or a number further off than the tolerance.
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
    """Up to eight numbers with four digits."""
    numbers = [f"{number:.4g}" for number in x.flatten()[:8].tolist()]
    text = ", ".join(numbers) + (", …" if x.numel() > 8 else "")
    return text if x.dim() == 0 else f"[{text}]"


def row_of(*numbers: float) -> Tensor:
    """A batch of one completion."""
    return torch.tensor([numbers], dtype=torch.float32)


def mask_of(*bits: str) -> Tensor:
    """A mask from one string of 0 and 1 per row."""
    return torch.tensor([[bit == "1" for bit in row] for row in bits])


def drawn(seed: int, *shape: int) -> Tensor:
    """Normal numbers that are the same on each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
