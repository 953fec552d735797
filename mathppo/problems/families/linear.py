"""Linear equations in x with one root, in five levels.

    1  x+b=c         integer root
    2  ax=c          any root
    3  ax+b=c        integer root
    4  ax+b=c        fractional root
    5  ax+b=cx+d     any root

Coefficients go up to 5, constants on the same side as x up to 9, and other constants up to 20. A derivation shows the
moved terms, the reduced line and the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mathppo.errors import BadInput
from mathppo.problems.families.family import Family, nonzero_integers
from mathppo.problems.families.terms import canonical_equation, coefficient, format_terms, parse_equation

INSTRUCTION = "Solve for x: "


@dataclass(frozen=True, slots=True)
class Linear:
    """The equation ax + b = cx + d with a != c."""

    a: int
    b: int
    c: int
    d: int

    @property
    def question(self) -> str:
        left, right = format_terms([(self.a, "x"), (self.b, "")]), format_terms([(self.c, "x"), (self.d, "")])
        return f"{INSTRUCTION}{left}={right}"

    @property
    def reference(self) -> str:
        return str(Fraction(self.d - self.b, self.a - self.c))

    @property
    def canonical(self) -> str:
        return canonical_equation((self.a, self.b), (self.c, self.d))

    def slips(self) -> tuple[str, ...]:
        """`constant` and `x`: the term that changes sides and keeps its sign. No term changes sides in ax = c."""
        constant = ("constant",) if self.b else ()
        return (*constant, "x") if self.c and self.a + self.c else constant

    def derivation(self, slip: str | None = None) -> str:
        moved_x = self.c if slip == "x" else -self.c
        moved_constant = self.b if slip == "constant" else -self.b
        lines = []
        if self.b or self.c:
            left, right = [(self.a, "x"), (moved_x, "x")], [(self.d, ""), (moved_constant, "")]
            lines.append(f"{format_terms(left)}={format_terms(right)}")
        a, d = self.a + moved_x, self.d + moved_constant
        lines += [f"{format_terms([(a, 'x')])}={d}", f"\\boxed{{{Fraction(d, a)}}}"]
        return "\n".join(lines)


def _parse(text: str) -> Linear:
    a, b, c, d = (coefficient(side, symbol) for side in parse_equation(text) for symbol in ("x", ""))
    if a == c:
        raise BadInput(f"expected a linear equation with one root, got {text!r}; check the family")
    return Linear(a, b, c, d)


def _build(level: int, numbers: Sequence[int]) -> Linear | None:
    a, b, c, d = numbers
    if a == c:
        return None
    has_integer_root = (d - b) % (a - c) == 0
    if (level == 3 and not has_integer_root) or (level == 4 and has_integer_root):
        return None
    return Linear(a, b, c, d)


_ALONE = tuple(range(-20, 21))

LINEAR = Family(
    name="linear",
    instruction=INSTRUCTION,
    axes={
        1: ((1,), nonzero_integers(9), (0,), _ALONE),
        2: (range(2, 6), (0,), (0,), _ALONE),
        3: (range(2, 6), nonzero_integers(9), (0,), _ALONE),
        4: (range(2, 6), nonzero_integers(9), (0,), _ALONE),
        5: (range(1, 6), nonzero_integers(9), range(1, 6), nonzero_integers(9)),
    },
    build=_build,
    parse_text=_parse,
)
