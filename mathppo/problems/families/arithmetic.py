"""Arithmetic expressions to evaluate.

    1  a-(b+c)       integers
    2  a-k*(b+c)     integers
    3  a-(b+c)       fractions

with either sign at each place, except before the bracket of levels 1 and 3. A derivation expands the bracket, brings
fractions to a common denominator, and adds from the left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

from mathppo.errors import BadInput
from mathppo.problems.families.expression import (
    Group,
    canonical_groups,
    expand,
    format_groups,
    last_negative,
    parse_groups,
)
from mathppo.problems.families.family import Family, nonzero_integers
from mathppo.problems.families.terms import format_terms

INSTRUCTION = "Evaluate: "


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A sum of numbers and of brackets of numbers."""

    groups: tuple[Group, ...]

    @property
    def question(self) -> str:
        return f"{INSTRUCTION}{format_groups(self.groups, times='*')}"

    @property
    def reference(self) -> str:
        return str(sum(self._numbers(None)))

    @property
    def canonical(self) -> str:
        return canonical_groups("arithmetic", self.groups)

    def slips(self) -> tuple[str, ...]:
        """`bracket`: the last number of a bracket after a minus keeps its sign."""
        return ("bracket",) if last_negative(self.groups) is not None else ()

    def derivation(self, slip: str | None = None) -> str:
        numbers = self._numbers(slip)
        lines = [format_terms((number, "") for number in numbers)]
        denominator = lcm(*(number.denominator for number in numbers))
        numerators = [int(number * denominator) for number in numbers]
        over = "" if denominator == 1 else f"/{denominator}"
        if over:
            lines.append(_sum_text(numerators, over))
        while len(numerators) > 2:
            numerators = [numerators[0] + numerators[1], *numerators[2:]]
            lines.append(_sum_text(numerators, over))
        return "\n".join([*lines, f"\\boxed{{{sum(numbers)}}}"])

    def _numbers(self, slip: str | None) -> list[Fraction]:
        return [Fraction(value) for value, _ in expand(self.groups, with_slip=slip == "bracket")]


def _sum_text(numerators: Sequence[int], over: str) -> str:
    first, *others = numerators
    return f"{first}{over}" + "".join(f"{'-' if value < 0 else '+'}{abs(value)}{over}" for value in others)


def _parse(text: str) -> Arithmetic:
    groups = parse_groups(text)
    if any(symbol for group in groups for _, symbol in group.terms):
        raise BadInput(f"expected an expression of numbers, got {text!r}; check the family")
    return Arithmetic(groups)


def _build(level: int, numbers: Sequence[int]) -> Arithmetic | None:
    if level == 3:
        values = numbers[1:]
        if any(gcd(values[i], values[i + 1]) > 1 or values[i] >= values[i + 1] for i in (0, 2, 4)):
            return None
        a, b, c = (Fraction(values[i], values[i + 1]) for i in (0, 2, 4))
        return Arithmetic((Group(None, ((a, ""),)), Group(-1, ((b, ""), (numbers[0] * c, "")))))
    factor, a, b, c = numbers
    return Arithmetic((Group(None, ((a, ""),)), Group(factor, ((b, ""), (c, "")))))


_NUMERATORS, _DENOMINATORS = range(1, 6), range(2, 7)

ARITHMETIC = Family(
    name="arithmetic",
    instruction=INSTRUCTION,
    axes={
        1: ((-1,), range(1, 21), range(1, 21), nonzero_integers(20)),
        2: ((-5, -4, -3, -2, 2, 3, 4, 5), range(1, 10), range(1, 10), nonzero_integers(9)),
        3: ((-1, 1), *(_NUMERATORS, _DENOMINATORS) * 3),
    },
    build=_build,
    parse_text=_parse,
)
