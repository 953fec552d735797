"""Number facts to evaluate: what a small pretrained model half knows.

    1  a+b  up to 25 each
    2  a-b  up to 25, the difference positive
    3  a*b  up to 12 and 20

The canonical form puts the smaller number of a sum or product first, so that 3*7 and 7*3 are one fact, on one side of
the held-out split.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mathppo.errors import BadInput
from mathppo.problems.family import Family, strip_instruction

INSTRUCTION = "Evaluate: "

_FACT = re.compile(r"([1-9]\d{0,17})([+*-])([1-9]\d{0,17})")


@dataclass(frozen=True, slots=True)
class Fact:
    """Two natural numbers and what to do with them: `+`, `-` or `*`."""

    left: int
    operation: str
    right: int

    @property
    def question(self) -> str:
        return f"{INSTRUCTION}{self.left}{self.operation}{self.right}"

    @property
    def reference(self) -> str:
        if self.operation == "*":
            return str(self.left * self.right)
        return str(self.left + self.right if self.operation == "+" else self.left - self.right)

    @property
    def canonical(self) -> str:
        numbers = (self.left, self.right) if self.operation == "-" else sorted((self.left, self.right))
        return f"facts {self.operation.join(map(str, numbers))}"

    def slips(self) -> tuple[str, ...]:
        """None: nothing moves."""
        return ()

    def derivation(self, slip: str | None = None) -> str:
        return f"\\boxed{{{self.reference}}}"


def parse(question: str) -> Fact:
    """The item of a question of this family.

    Raises:
        BadInput: the text is no such question.
    """
    match = _FACT.fullmatch(strip_instruction(question, INSTRUCTION))
    if match is None:
        raise BadInput(f"expected a fact such as 3*7, got {question!r}; is the family right?")
    return Fact(int(match[1]), match[2], int(match[3]))


def _build(level: int, numbers: Sequence[int]) -> Fact | None:
    left, right = numbers
    return None if level == 2 and left <= right else Fact(left, "+-*"[level - 1], right)


FACTS = Family(
    name="facts",
    axes={
        1: (range(1, 26), range(1, 26)),
        2: (range(1, 26), range(1, 26)),
        3: (range(2, 13), range(2, 21)),
    },
    build=_build,
    parse=parse,
)
