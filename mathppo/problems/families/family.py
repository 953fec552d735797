"""Problem families: the interface of a problem and the space of problems per level."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol, TypeVar

from mathppo.errors import BadInput, BadSetting

T = TypeVar("T")


class Item(Protocol):
    """A problem in exact numbers, from which its record is built."""

    @property
    def question(self) -> str:
        """Text of the question."""
        ...

    @property
    def reference(self) -> str:
        """Exact answer as text."""
        ...

    @property
    def canonical(self) -> str:
        """Canonical form; two problems with the same form count as the same problem."""
        ...

    def slips(self) -> tuple[str, ...]:
        """Return the names of the possible slips: signs that may stay unflipped and still lead to an answer."""
        ...

    def derivation(self, slip: str | None = None) -> str:
        """Return worked lines that end in the boxed answer. After a slip, all later lines follow from it."""
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """Problems of one kind, by level.

    Args:
        name: the family's name.
        instruction: the start of every question, such as `Solve for x: `.
        axes: per level, the values that each number of a problem may take; their product is the level's space.
        build: builds the item of `(level, numbers)`; None if the numbers are not a problem of that level.
        parse_text: parses a question without its instruction; raises `BadInput` for the text of another family.
    """

    name: str
    instruction: str
    axes: Mapping[int, tuple[Sequence[int], ...]]
    build: Callable[[int, Sequence[int]], Item | None]
    parse_text: Callable[[str], Item]

    def draw(self, level: int, rng: random.Random) -> Item:
        """Draw a problem uniformly from the level's space."""
        axes = self.axes_of(level)
        while True:
            item = self.build(level, [pick(rng, axis) for axis in axes])
            if item is not None:
                return item

    def space(self, level: int) -> Iterator[Item]:
        """Yield every problem of the level, in a fixed order."""
        for numbers in product(*self.axes_of(level)):
            item = self.build(level, numbers)
            if item is not None:
                yield item

    def axes_of(self, level: int) -> tuple[Sequence[int], ...]:
        """Return the axes of a level.

        Raises:
            BadSetting: the family has no such level.
        """
        if level not in self.axes:
            raise BadSetting(f"family {self.name!r}: expected a level among {sorted(self.axes)}, got {level}")
        return self.axes[level]

    def parse(self, question: str) -> Item:
        """Parse a question of this family.

        Raises:
            BadInput: the text is not a question of this family.
        """
        if not question.startswith(self.instruction):
            raise BadInput(
                f"expected a question that starts with {self.instruction!r}, got {question!r}; check the family"
            )
        return self.parse_text(question[len(self.instruction) :])


def pick(rng: random.Random, options: Sequence[T]) -> T:
    """Draw one option uniformly.

    Only `rng.random()` is used: Python guarantees its sequence, while that of `choice` may change between versions.
    """
    return options[int(rng.random() * len(options))]


def nonzero_integers(largest: int) -> tuple[int, ...]:
    """Return the non-zero integers up to an absolute value: `nonzero_integers(2) == (-2, -1, 1, 2)`."""
    return tuple(value for value in range(-largest, largest + 1) if value)
