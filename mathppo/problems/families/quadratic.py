"""Quadratic equations in x with rational roots.

    1  x^2+bx+c=0            integer roots
    2  terms on both sides   integer roots
    3  ax^2+bx+c=0           a fractional root

A derivation moves all terms to the left, factors, and moves each factor's constant to the right. The answer is a set
in ascending order such as `{-3, 1/2}`, or a single number for a double root.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, isqrt

from mathppo.errors import BadInput
from mathppo.problems.families.family import Family
from mathppo.problems.families.terms import canonical_equation, coefficient, format_terms, parse_equation

INSTRUCTION = "Solve for x: "
_SYMBOLS = ("x^2", "x", "")

Coefficients = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Quadratic:
    """The equation left = right; a side is its coefficients of x^2, x and 1."""

    left: Coefficients
    right: Coefficients

    @property
    def question(self) -> str:
        return f"{INSTRUCTION}{_side(self.left)}={_side(self.right)}"

    @property
    def reference(self) -> str:
        return _answer(self._roots(None))

    @property
    def canonical(self) -> str:
        return canonical_equation(self.left, self.right)

    def slips(self) -> tuple[str, ...]:
        """A term of the right side or a factor's constant that changes sides and keeps its sign."""
        crossing = [name for name, value in zip(_SYMBOLS, self.right, strict=True) if value]
        moved = [name or "constant" for name in crossing if rational_roots(self._moved(name or "constant"))]
        roots = self._roots(None)
        return (*moved, *(f"root {index}" for index, root in enumerate(roots) if root))

    def derivation(self, slip: str | None = None) -> str:
        roots = self._roots(slip)
        moved = self._moved(slip)
        lines = [f"{_side(moved)}=0"] if any(self.right) else []
        factors = ["x" if root == 0 else f"({_factor(root)})" for root in _doubled(roots)]
        factors.sort(key=lambda text: text != "x")  # x(x-3), never (x-3)x
        common = gcd(*moved) if moved[0] > 0 else -gcd(*moved)
        lines.append(f"{'' if common == 1 else '-' if common == -1 else common}{''.join(factors)}=0")
        if slip and slip.startswith("root"):
            index = int(slip.removeprefix("root "))
            roots = tuple(-root if i == index else root for i, root in enumerate(roots))
        lines.append(", ".join(f"{format_terms([(root.denominator, 'x')])}={root.numerator}" for root in roots))
        if any(root.denominator > 1 for root in roots):
            lines.append(", ".join(f"x={root}" for root in roots))
        return "\n".join([*lines, f"\\boxed{{{_answer(roots)}}}"])

    def _moved(self, slip: str | None) -> Coefficients:
        """Move all terms to the left; the slipped term of the right side keeps its sign."""
        signs = (1 if slip == (name or "constant") else -1 for name in _SYMBOLS)
        a, b, c = (value + sign * other for value, other, sign in zip(self.left, self.right, signs, strict=True))
        return a, b, c

    def _roots(self, slip: str | None) -> tuple[Fraction, ...]:
        return rational_roots(self._moved(slip))


def rational_roots(coefficients: Coefficients) -> tuple[Fraction, ...]:
    """Return the roots of ax^2 + bx + c in ascending order: two, one if double, none if irrational or if a is 0."""
    a, b, c = coefficients
    square = b * b - 4 * a * c
    if a == 0 or square < 0 or isqrt(square) ** 2 != square:
        return ()
    return tuple(sorted({Fraction(-b - isqrt(square), 2 * a), Fraction(-b + isqrt(square), 2 * a)}))


def _parse(text: str) -> Quadratic:
    left, right = parse_equation(text, _SYMBOLS)
    (a, d), (b, e), (c, f) = ((coefficient(left, name), coefficient(right, name)) for name in _SYMBOLS)
    if rational_roots((a - d, b - e, c - f)):
        return Quadratic((a, b, c), (d, e, f))
    raise BadInput(f"expected a quadratic equation with rational roots, got {text!r}; check the family")


def _side(coefficients: Coefficients) -> str:
    return format_terms(zip(coefficients, _SYMBOLS, strict=True))


def _factor(root: Fraction) -> str:
    return format_terms([(root.denominator, "x"), (-root.numerator, "")])


def _doubled(roots: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    return roots * 2 if len(roots) == 1 else roots


def _answer(roots: tuple[Fraction, ...]) -> str:
    values = sorted(set(roots))
    return str(values[0]) if len(values) == 1 else f"{{{', '.join(map(str, values))}}}"


def _build(level: int, numbers: Sequence[int]) -> Quadratic | None:
    p, q, r, s, x_moves, constant_moves = numbers  # (qx - p)(sx - r)
    a, b, c = q * s, -(p * s + r * q), p * r
    reducible = gcd(p, q) > 1 or gcd(r, s) > 1
    repeated = p * s > r * q
    if reducible or repeated or (b == 0 and c == 0) or (level == 3 and a == 1):
        return None
    item = Quadratic((a, b * (1 - x_moves), c * (1 - constant_moves)), (0, -b * x_moves, -c * constant_moves))
    return None if level == 2 and not any(item.right) else item


_INTEGER_ROOTS = range(-9, 10)
_NO, _EITHER = (0,), (0, 1)

QUADRATIC = Family(
    name="quadratic",
    instruction=INSTRUCTION,
    axes={
        1: (_INTEGER_ROOTS, (1,), _INTEGER_ROOTS, (1,), _NO, _NO),
        2: (_INTEGER_ROOTS, (1,), _INTEGER_ROOTS, (1,), _EITHER, _EITHER),
        3: (range(-5, 6), range(1, 4), range(-5, 6), range(1, 4), _NO, _NO),
    },
    build=_build,
    parse_text=_parse,
)
