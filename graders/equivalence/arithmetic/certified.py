"""Certified numerics: values with error bounds at sample points, in doubles first and then with 60 digits.

Two trees are proved different where their error balls are disjoint at one point where both are defined and real.
They are held equal where 60-digit values agree to 35 digits at every sample point: for rational functions of the
degrees that answers have, and for constants built from the usual functions, a chance agreement is below 1e-30.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from graders.equivalence.arithmetic.balls import Ball, evaluate_ball
from graders.equivalence.arithmetic.evaluate_tree import Undecided
from graders.equivalence.arithmetic.multiprecision import evaluate_digits, relative_gap
from graders.equivalence.arithmetic.rationals import TooLarge
from graders.parsing.tree import Apply, Name, Node, walk

CONSTANT_NAMES = frozenset({"pi", "e", "i", "infinity"})
NUM_POINTS = 8
MIN_POINTS = 3
AGREEMENT = 1e-35
_INTEGER_OPS = frozenset(
    {"factorial", "double_factorial", "binomial", "permutations", "sum", "prod", "gcd", "lcm", "mod"}
)
_INTEGER_NAMES = frozenset("i j k l m n N M K p q r a b".split())


def variables(*nodes: Node) -> list[str]:
    """The free names of the trees, sorted; bound indices and named constants are not free."""
    found: set[str] = set()
    bound: set[str] = set()
    for node in nodes:
        for current, _ in walk(node):
            if isinstance(current, Name) and current.text not in CONSTANT_NAMES:
                found.add(current.text)
            elif isinstance(current, Apply) and current.op in ("sum", "prod") and isinstance(current.args[1], Name):
                bound.add(current.args[1].text)
    return sorted(found - bound)


def sample_points(*nodes: Node) -> Iterator[dict[str, Fraction]]:
    """Rational values for the free names: the same for the same names, on every machine.

    One name alone takes both signs, so that `sqrt(x^2)` is not `x`; several names are the parameters of a formula and
    positive, unless an absolute value asks for both.
    """
    free = variables(*nodes)
    if not free:
        yield {}
        return
    whole = any(_wants_integers(node) for node in nodes)
    signed = len(free) == 1 or any(_has_absolute_value(node) for node in nodes)
    state = 88172645463325252
    for at in range(2 * NUM_POINTS):
        point: dict[str, Fraction] = {}
        for name in free:
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            draw = state >> 33
            if whole:
                point[name] = Fraction(2 + draw % 9)
            else:
                size = Fraction(draw % 9973 + 1013, 4099)
                point[name] = -size if signed and at % 2 and draw % 3 else size
        yield point


def _has_absolute_value(node: Node) -> bool:
    return any(isinstance(current, Apply) and current.op in ("abs", "sgn") for current, _ in walk(node))


def _wants_integers(node: Node) -> bool:
    for current, _ in walk(node):
        if not isinstance(current, Apply):
            continue
        if current.op in _INTEGER_OPS:
            return True
        base = current.args[0]
        if current.op == "^" and isinstance(base, Apply) and base.op == "neg" and variables(current.args[1]):
            return True
        if current.op in ("floor", "ceil") and set(variables(current)) <= _INTEGER_NAMES and variables(current):
            return True
    return False


def different(left: Node, right: Node) -> bool:
    """Whether double-precision balls prove that the two differ at some sample point."""
    complex_valued = _is_complex(left) or _is_complex(right)
    for point in sample_points(left, right):
        try:
            one, other = evaluate_ball(left, point), evaluate_ball(right, point)
        except (Undecided, OverflowError, ZeroDivisionError):
            continue
        if point and not complex_valued and not (_is_real(one) and _is_real(other)):
            continue
        if abs(one.mid - other.mid) > 2 * (one.radius + other.radius):
            return True
        if not point:
            return False
    return False


def _is_complex(node: Node) -> bool:
    """Whether the tree speaks of complex numbers: only then may a value at real points be one."""
    return any(current == Name("i") for current, _ in walk(node))


def _is_real(ball: Ball) -> bool:
    return abs(ball.mid.imag) <= ball.radius


def agree(left: Node, right: Node) -> bool | None:
    """Whether 60-digit values agree at every sample point; None where too few points can be evaluated.

    Raises:
        TooLarge: evaluation would exceed the bounds.
    """
    counted = 0
    complex_valued = _is_complex(left) or _is_complex(right)
    refused: TooLarge | None = None
    for point in sample_points(left, right):
        try:
            one, other = evaluate_digits(left, point), evaluate_digits(right, point)
        except (Undecided, ZeroDivisionError, OverflowError):
            continue
        except TooLarge as error:
            refused = error
            continue
        if point and not complex_valued and not (one.imag == 0 and other.imag == 0):
            continue
        if relative_gap(one, other) > AGREEMENT:
            return False
        counted += 1
        if not point or counted >= NUM_POINTS:
            return True
    if refused is not None and not counted:
        raise refused
    return True if counted >= MIN_POINTS else None


def proportional(left: Node, right: Node, *, positive: bool = False) -> bool | None:
    """Whether `left` is a constant non-zero multiple of `right` at the sample points (a positive one, if asked)."""
    ratio = None
    counted = 0
    for point in sample_points(left, right):
        try:
            one, other = evaluate_digits(left, point), evaluate_digits(right, point)
        except (Undecided, ZeroDivisionError, OverflowError):
            continue
        if one.imag != 0 or other.imag != 0 or other == 0 or one == 0:
            if (one == 0) != (other == 0):
                return False
            continue
        if positive and one.real * other.real < 0:
            return False
        current = one / other
        if ratio is not None and relative_gap(current, ratio) > AGREEMENT:
            return False
        ratio = current
        counted += 1
        if counted >= NUM_POINTS:
            return True
    return True if counted >= MIN_POINTS else None


def float_value(node: Node, point: Mapping[str, Fraction] | None = None) -> float | None:
    """A real double close to the value, for ordering; None where there is none."""
    try:
        ball = evaluate_ball(node, point or {})
    except (Undecided, OverflowError, ZeroDivisionError, TooLarge):
        return None
    return ball.mid.real if _is_real(ball) else None


def evaluate_at(node: Node, point: Mapping[str, int]) -> Any | None:
    """The 60-digit value at whole arguments, or None where there is none."""
    try:
        return evaluate_digits(node, {name: Fraction(value) for name, value in point.items()})
    except (Undecided, ZeroDivisionError, OverflowError, TooLarge):
        return None
