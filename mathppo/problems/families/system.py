"""Two linear equations in x and y with one solution.

    1  the first coefficient 1, an integer solution
    2  coefficients from 2, an integer solution
    3  a fractional solution

A derivation scales both equations to the same x term, subtracts, solves for y, and substitutes y into the first
equation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd

from mathppo.errors import BadInput
from mathppo.problems.families.family import Family, nonzero_integers
from mathppo.problems.families.terms import coefficient, format_terms, parse_terms

INSTRUCTION = "Solve for x and y: "


@dataclass(frozen=True, slots=True)
class System:
    """ax + by = e and cx + dy = f with a, c positive and ad != bc."""

    a: int
    b: int
    e: int
    c: int
    d: int
    f: int

    @property
    def question(self) -> str:
        return f"{INSTRUCTION}{_equation(self.a, self.b, self.e)}; {_equation(self.c, self.d, self.f)}"

    @property
    def reference(self) -> str:
        determinant = self.a * self.d - self.b * self.c
        x = Fraction(self.e * self.d - self.b * self.f, determinant)
        y = Fraction(self.a * self.f - self.e * self.c, determinant)
        return f"({x}, {y})"

    @property
    def canonical(self) -> str:
        """Independent of the order of the equations and of a factor on each."""
        rows = sorted(_primitive(row) for row in ((self.a, self.b, self.e), (self.c, self.d, self.f)))
        return "system " + ";".join(",".join(map(str, row)) for row in rows)

    def slips(self) -> tuple[str, ...]:
        """`y` and `constant` keep their sign when subtracted; `back` keeps that of the y term of the first equation."""
        y_survives = self.b * self.c + self.d * self.a != 0
        goes_back = self.a * self.f != self.e * self.c
        possible = (("y", y_survives), ("constant", self.f != 0), ("back", goes_back))
        return tuple(name for name, holds in possible if holds)

    def derivation(self, slip: str | None = None) -> str:
        a, b, c, d, e, f = self.a, self.b, self.c, self.d, self.e, self.f
        upper = (a, b, e) if a == c else (a * c, b * c, e * c)
        lower = (c, d, f) if a == c else (a * c, d * a, f * a)
        lines = [] if a == c else [f"{_equation(*upper)}; {_equation(*lower)}"]
        moved_y = lower[1] if slip == "y" else -lower[1]
        moved_constant = lower[2] if slip == "constant" else -lower[2]
        lines.append(
            f"{format_terms([(upper[1], 'y'), (moved_y, 'y')])}={format_terms([(upper[2], ''), (moved_constant, '')])}"
        )
        y = _solve(upper[1] + moved_y, "y", upper[2] + moved_constant, lines)
        back = b * y if slip == "back" else -b * y
        lines.append(f"{format_terms([(a, 'x')])}={format_terms([(e, ''), (back, '')])}")
        x = _solve(a, "x", e + back, lines)
        return "\n".join([*lines, f"\\boxed{{({x}, {y})}}"])


def _parse(text: str) -> System:
    rows = []
    for equation in text.split("; "):
        left, _, right = equation.partition("=")
        left, right = parse_terms(left), parse_terms(right)
        if {name for _, name in left} == {"x", "y"} and {name for _, name in right} == {""}:
            rows.append((coefficient(left, "x"), coefficient(left, "y"), coefficient(right, "")))
    if len(rows) != 2 or min(rows[0][0], rows[1][0]) < 1 or rows[0][0] * rows[1][1] == rows[0][1] * rows[1][0]:
        raise BadInput(f"expected two equations in x and y with one solution, got {text!r}; check the family")
    return System(*rows[0], *rows[1])


def _equation(a: int, b: int, e: int) -> str:
    return f"{format_terms([(a, 'x'), (b, 'y')])}={e}"


def _primitive(row: tuple[int, ...]) -> tuple[int, ...]:
    factor = gcd(*row) if row[0] > 0 else -gcd(*row)
    return tuple(value // factor for value in row)


def _solve(factor: int, symbol: str, value: int | Fraction, lines: list[str]) -> Fraction:
    """Append the reduced line and, if they differ, the solved one; return the solution."""
    solution = Fraction(value) / factor
    for line in (f"{format_terms([(factor, symbol)])}={value}", f"{symbol}={solution}"):
        if line != lines[-1]:
            lines.append(line)
    return solution


def _build(level: int, numbers: Sequence[int]) -> System | None:
    a, b, c, d, first, second = numbers
    determinant = a * d - b * c
    if determinant == 0:
        return None
    if level < 3:
        return System(a, b, a * first + b * second, c, d, c * first + d * second)
    integer = (first * d - b * second) % determinant == 0 and (a * second - first * c) % determinant == 0
    return None if integer else System(a, b, first, c, d, second)


SYSTEM = Family(
    name="system",
    instruction=INSTRUCTION,
    axes={
        1: ((1,), nonzero_integers(3), range(1, 4), nonzero_integers(3), range(-5, 6), range(-5, 6)),
        2: (range(2, 5), nonzero_integers(4), range(2, 5), nonzero_integers(4), range(-4, 5), range(-4, 5)),
        3: (range(1, 4), nonzero_integers(3), range(1, 4), nonzero_integers(3), range(1, 10), range(1, 10)),
    },
    build=_build,
    parse_text=_parse,
)
