"""Number facts to evaluate, for small pretrained models.

    1  a+b  both up to 25
    2  a-b  both up to 25, with a positive difference
    3  a*b  up to 12 and up to 20

The canonical form has the smaller number of a sum or product first, so 3*7 and 7*3 are on the same side of the
held-out split.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mathppo.errors import BadInput
from mathppo.problems.families.family import Family

INSTRUCTION = "Evaluate: "

_FACT = re.compile(r"([1-9]\d{0,17})([+*-])([1-9]\d{0,17})")


@dataclass(frozen=True, slots=True)
class Fact:
    """Two natural numbers and the operation `+`, `-` or `*`."""

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
        """Return no names: no term moves."""
        return ()

    def derivation(self, slip: str | None = None) -> str:
        return f"\\boxed{{{self.reference}}}"


def _parse(text: str) -> Fact:
    match = _FACT.fullmatch(text)
    if match is None:
        raise BadInput(f"expected a fact such as 3*7, got {text!r}; check the family")
    return Fact(int(match[1]), match[2], int(match[3]))


def _build(level: int, numbers: Sequence[int]) -> Fact | None:
    left, right = numbers
    return None if level == 2 and left <= right else Fact(left, "+-*"[level - 1], right)


FACTS = Family(
    name="facts",
    instruction=INSTRUCTION,
    axes={
        1: (range(1, 26), range(1, 26)),
        2: (range(1, 26), range(1, 26)),
        3: (range(2, 13), range(2, 21)),
    },
    build=_build,
    parse_text=_parse,
)
