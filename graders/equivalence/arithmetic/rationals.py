"""Exact rational arithmetic: integers, fractions, powers, factorials, finite sums.

Sizes are bounded before a value is computed.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType

from graders.errors import GraderError
from graders.parsing.tree import Apply, Name, Node, Number, Quantity

MAX_BITS = 40_000
MAX_TERMS = 2_000
MAX_FACTORIAL = 3_000
MAX_STEPS = 20_000


class NotExact(Exception):
    """The tree has no rational value, or contains a free name, a radical or a function that is not evaluated here."""


class TooLarge(GraderError):
    """Evaluating the tree would exceed the bounds on size or work."""


def number_value(text: str) -> Fraction:
    """Return the value of a numeral in the notation of `Number`.

    Raises:
        TooLarge: the exponent is out of bounds.
    """
    if text.isdigit():
        return Fraction(int(text))
    mantissa, _, exponent = text.replace(",", "").partition("e")
    power = int(exponent or 0)
    if abs(power) > MAX_BITS // 4:
        raise TooLarge(f"expected an exponent of at most {MAX_BITS // 4}, got {text[:40]}")
    mantissa, _, repeating = mantissa.rstrip(")").partition("(")
    whole, _, decimals = mantissa.partition(".")
    value = Fraction(int(whole + decimals or "0"), 10 ** len(decimals))
    if repeating:
        value += Fraction(int(repeating), (10 ** len(repeating) - 1) * 10 ** len(decimals))
    return value * Fraction(10) ** power if power else value


def number_tree(value: Fraction) -> Node:
    """Return a rational as a tree."""
    top: Node = Number(str(abs(value.numerator)))
    if value < 0:
        top = Apply("neg", (top,))
    return top if value.denominator == 1 else Apply("/", (top, Number(str(value.denominator))))


def exact_value(node: Node, point: Mapping[str, Fraction] = MappingProxyType({})) -> Fraction:
    """Return the rational value of a tree, its free names bound by `point`.

    Raises:
        NotExact: the value is not a rational, or the exact rules do not compute it.
        TooLarge: computing the value would exceed the bounds.
        ZeroDivisionError: the tree divides by zero.
    """
    return _Evaluation().value(node, point)


class _Evaluation:
    """One evaluation, bounded in its number of steps."""

    def __init__(self) -> None:
        self.steps = 0

    def value(self, node: Node, bound: Mapping[str, Fraction]) -> Fraction:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise TooLarge(f"expected at most {MAX_STEPS} steps of arithmetic")
        if isinstance(node, Number):
            return number_value(node.text)
        if isinstance(node, Name):
            if node.text in bound:
                return bound[node.text]
            raise NotExact
        if isinstance(node, Quantity) and node.unit == "%":
            return self.value(node.value, bound) / 100
        if not isinstance(node, Apply):
            raise NotExact
        if node.op in ("sum", "prod"):
            return self._series(node, bound)
        rule = _RULES.get(node.op)
        if rule is None:
            raise NotExact
        return bounded(rule(*[self.value(argument, bound) for argument in node.args]))

    def _series(self, node: Apply, bound: Mapping[str, Fraction]) -> Fraction:
        body, index, low, high = node.args
        assert isinstance(index, Name)
        first, last = self.value(low, bound), self.value(high, bound)
        if first.denominator != 1 or last.denominator != 1:
            raise NotExact
        if last - first >= MAX_TERMS:
            raise TooLarge(f"expected at most {MAX_TERMS} terms, got {int(last - first) + 1}")
        total = Fraction(0 if node.op == "sum" else 1)
        for at in range(int(first), int(last) + 1):
            term = self.value(body, {**bound, index.text: Fraction(at)})
            total = bounded(total + term if node.op == "sum" else total * term)
        return total


def bounded(value: Fraction) -> Fraction:
    """Return the value, or raise `TooLarge` if it has more than `MAX_BITS` bits."""
    if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
        raise TooLarge(f"expected a value of at most {MAX_BITS} bits")
    return value


def integer_root(value: int, degree: int) -> int | None:
    """Return the exact `degree`-th root of a non-negative integer, or None if it is irrational."""
    if value < 2:
        return value
    if degree == 2:
        root = math.isqrt(value)
    elif value.bit_length() > 1_000 or degree > 100:
        return None
    else:
        root, closer = 1 << -(-value.bit_length() // degree), 0
        while True:  # Newton's iteration from above decreases to the floor of the root
            closer = ((degree - 1) * root + value // root ** (degree - 1)) // degree
            if closer >= root:
                break
            root = closer
    return root if root**degree == value else None


def power(base: Fraction, exponent: Fraction) -> Fraction:
    """Return `base ** exponent` if it is rational.

    Raises:
        NotExact: the power is irrational or complex.
        TooLarge: the result would exceed `MAX_BITS`.
    """
    if exponent.denominator != 1:
        return power(_rational_root(base, exponent.denominator), Fraction(exponent.numerator))
    count = exponent.numerator
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) != 1 and base != 0 and bits * abs(count) > 2 * MAX_BITS:
        raise TooLarge(f"expected a power of at most {MAX_BITS} bits")
    if base in (1, -1):
        return base if count % 2 else Fraction(1)
    if base == 0 and count <= 0:
        raise ZeroDivisionError
    return base**count


def _rational_root(value: Fraction, degree: int) -> Fraction:
    if value < 0 or degree > 64:
        raise NotExact
    top, bottom = integer_root(value.numerator, degree), integer_root(value.denominator, degree)
    if top is None or bottom is None:
        raise NotExact
    return Fraction(top, bottom)


def _root(value: Fraction, index: Fraction) -> Fraction:
    if index.denominator != 1 or not 1 <= index <= 64:
        raise NotExact
    if value < 0 and index % 2:
        return -_rational_root(-value, int(index))
    return _rational_root(value, int(index))


def _natural(value: Fraction, limit: int) -> int:
    if value.denominator != 1 or value < 0:
        raise NotExact
    if value > limit:
        raise TooLarge(f"expected a number of at most {limit}, got a larger one")
    return int(value)


def _binomial(total: Fraction, chosen: Fraction) -> Fraction:
    return Fraction(math.comb(_natural(total, MAX_FACTORIAL), _natural(chosen, MAX_FACTORIAL)))


def _ln(value: Fraction) -> float:
    return math.log(value.numerator) - math.log(value.denominator)


def _logarithm(value: Fraction, base: Fraction = Fraction(0)) -> Fraction:
    """Return the logarithm of a rational to a rational base if it is rational, by comparing integer powers."""
    if value == 1:
        return Fraction(0)
    if base <= 0 or base == 1 or value <= 0:
        raise NotExact
    for denominator in range(1, 7):
        approximate = _ln(value) / _ln(base) * denominator
        numerator = round(approximate)
        close = abs(approximate - numerator) < 1e-9 and abs(numerator) < 2_000
        if close and power(value, Fraction(denominator)) == power(base, Fraction(numerator)):
            return Fraction(numerator, denominator)
    raise NotExact


def _double_factorial(value: Fraction) -> Fraction:
    return Fraction(math.prod(range(_natural(value, MAX_FACTORIAL), 0, -2)))


def _modulo(value: Fraction, modulus: Fraction) -> Fraction:
    return value - modulus * (value // modulus)


def _integers(values: tuple[Fraction, ...]) -> list[int]:
    if any(value.denominator != 1 for value in values):
        raise NotExact
    return [int(value) for value in values]


_RULES: Mapping[str, Callable[..., Fraction]] = MappingProxyType(
    {
        "+": lambda *terms: sum(terms, Fraction(0)),
        "*": lambda *factors: math.prod(factors, start=Fraction(1)),
        "/": lambda top, bottom: top / bottom,
        "neg": lambda value: -value,
        "^": power,
        "root": _root,
        "sqrt": lambda value: _root(value, Fraction(2)),
        "cbrt": lambda value: _root(value, Fraction(3)),
        "abs": lambda value: abs(value),
        "floor": lambda value: Fraction(math.floor(value)),
        "ceil": lambda value: Fraction(math.ceil(value)),
        "factorial": lambda value: Fraction(math.factorial(_natural(value, MAX_FACTORIAL))),
        "double_factorial": _double_factorial,
        "binomial": _binomial,
        "permutations": lambda total, k: Fraction(
            math.perm(_natural(total, MAX_FACTORIAL), _natural(k, MAX_FACTORIAL))
        ),
        "log": _logarithm,
        "log10": lambda value: _logarithm(value, Fraction(10)),
        "log2": lambda value: _logarithm(value, Fraction(2)),
        "mod": _modulo,
        "gcd": lambda *values: Fraction(math.gcd(*_integers(values))),
        "lcm": lambda *values: bounded(Fraction(math.lcm(*_integers(values)))),
        "min": min,
        "max": max,
    }
)
