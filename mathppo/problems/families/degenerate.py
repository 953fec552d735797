"""Linear equations in x with no solution or with every number as a solution.

    1  no root       ax+b=ax+d, or ax+b+cx=ex+d with e = a + c
    2  every number  ax+b=ax+b, or ax+b+cx=ex+b with e = a + c

A derivation moves all terms in x to the left and all constants to the right; the reduced line shows the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mathppo.errors import BadInput
from mathppo.problems.families.family import Family, nonzero_integers
from mathppo.problems.families.terms import canonical_equation, coefficient, format_terms, parse_equation

INSTRUCTION = "Solve for x: "
NO_SOLUTION = "no solution"
ALL_NUMBERS = "all real numbers"


def answer_of(a: int | Fraction, d: int | Fraction) -> str:
    """Return the answer to ax = d; a may be 0."""
    if a != 0:
        return str(Fraction(d) / a)
    return ALL_NUMBERS if d == 0 else NO_SOLUTION


@dataclass(frozen=True, slots=True)
class Degenerate:
    """An equation whose sides have the same coefficient of x; the sides are terms in the order written."""

    left: tuple[tuple[int, str], ...]
    right: tuple[tuple[int, str], ...]

    @property
    def question(self) -> str:
        return f"{INSTRUCTION}{format_terms(self.left)}={format_terms(self.right)}"

    @property
    def reference(self) -> str:
        return answer_of(0, coefficient(self.right, "") - coefficient(self.left, ""))

    @property
    def canonical(self) -> str:
        left, right = ((coefficient(side, "x"), coefficient(side, "")) for side in (self.left, self.right))
        return canonical_equation(left, right)

    def slips(self) -> tuple[str, ...]:
        """`constant` and `x`: the terms that change sides and keep their signs."""
        return ("constant", "x") if coefficient(self.left, "") else ("x",)

    def derivation(self, slip: str | None = None) -> str:
        x_sign, constant_sign = (1 if slip == kind else -1 for kind in ("x", "constant"))
        left = [term for term in self.left if term[1]] + [(x_sign * value, "x") for value, name in self.right if name]
        right = [term for term in self.right if not term[1]]
        right += [(constant_sign * value, "") for value, name in self.left if not name]
        a, d = coefficient(left, "x"), coefficient(right, "")
        lines = [f"{format_terms(left)}={format_terms(right)}", f"{format_terms([(a, 'x')])}={d}"]
        return "\n".join([*lines, f"\\boxed{{{answer_of(a, d)}}}"])


def _parse(text: str) -> Degenerate:
    left, right = parse_equation(text)
    if coefficient(left, "x") == coefficient(right, "x"):
        return Degenerate(left, right)
    raise BadInput(f"expected an equation with the same x on both sides, got {text!r}; check the family")


def _build(_: int, numbers: Sequence[int]) -> Degenerate | None:
    a, c, b, shift = numbers
    left = ((a, "x"), (b, ""), (c, "x")) if c else ((a, "x"), (b, ""))
    d = b + shift
    return Degenerate(left, ((a + c, "x"), (d, "")) if d else ((a + c, "x"),))


DEGENERATE = Family(
    name="degenerate",
    instruction=INSTRUCTION,
    axes={
        1: (range(1, 6), range(6), nonzero_integers(9), nonzero_integers(9)),
        2: (range(1, 6), range(6), nonzero_integers(20), (0,)),
    },
    build=_build,
    parse_text=_parse,
)
