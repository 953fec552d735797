"""What a family of built-in problems is, and how one is drawn from it."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol, TypeVar

from mathppo.errors import BadInput, BadSetting

T = TypeVar("T")


class Item(Protocol):
    """One problem of a family in exact numbers, before it becomes a record."""

    @property
    def question(self) -> str:
        """The text a model is shown."""
        ...

    @property
    def reference(self) -> str:
        """The exact answer as text."""
        ...

    @property
    def canonical(self) -> str:
        """Canonical form; two problems with the same one are one problem."""
        ...

    def slips(self) -> tuple[str, ...]:
        """Names of the places where a sign could fail to flip and the derivation still ends in an answer."""
        ...

    def derivation(self, slip: str | None = None) -> str:
        """Worked lines that end in the boxed answer; with a slip, its consequences are carried through."""
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """A family of problems by level.

    Args:
        name: the family's name.
        axes: per level the values that each number of a problem may take; their product is the level's space.
        build: `(level, numbers)` to an item, or None where the numbers make no problem of that level.
        parse: a question of this family to its item; raises `BadInput` for any other text.
    """

    name: str
    axes: Mapping[int, tuple[Sequence[int], ...]]
    build: Callable[[int, Sequence[int]], Item | None]
    parse: Callable[[str], Item]

    def draw(self, level: int, rng: random.Random) -> Item:
        """A problem drawn evenly from the level's space."""
        axes = self.axes_of(level)
        while True:
            item = self.build(level, [pick(rng, axis) for axis in axes])
            if item is not None:
                return item

    def space(self, level: int) -> Iterator[Item]:
        """Every problem of the level, in a fixed order."""
        for numbers in product(*self.axes_of(level)):
            item = self.build(level, numbers)
            if item is not None:
                yield item

    def axes_of(self, level: int) -> tuple[Sequence[int], ...]:
        """The level's axes.

        Raises:
            BadSetting: the family has no such level.
        """
        if level not in self.axes:
            raise BadSetting(f"family {self.name!r}: expected a level among {sorted(self.axes)}, got {level}")
        return self.axes[level]


def pick(rng: random.Random, options: Sequence[T]) -> T:
    """One option, each equally likely.

    Uses `rng.random()` alone, whose sequence Python promises to keep; `choice` may change between versions.
    """
    return options[int(rng.random() * len(options))]


def signed(largest: int) -> tuple[int, ...]:
    """The non-zero integers up to a size: `signed(2) == (-2, -1, 1, 2)`."""
    return tuple(value for value in range(-largest, largest + 1) if value)


def strip_instruction(question: str, instruction: str) -> str:
    """The question without its instruction.

    Raises:
        BadInput: the question starts otherwise.
    """
    if not question.startswith(instruction):
        raise BadInput(f"expected a question that starts with {instruction!r}, got {question!r}; is the family right?")
    return question[len(instruction) :]
