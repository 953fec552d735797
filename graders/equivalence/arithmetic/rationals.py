"""Exact rational arithmetic: integers, fractions, powers, factorials, finite sums.

Sizes are bounded before a value is computed.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType

from graders.equivalence.arithmetic.evaluate_tree import MAX_BITS, Arithmetic, NoValue, TooLarge
from graders.parsing.tree import Node

MAX_FACTORIAL = 3_000

_NO_NAMES: Mapping[str, Fraction] = MappingProxyType({})


def exact_value(node: Node) -> Fraction:
    """Return the rational value of a tree without free names.

    Raises:
        NoValue: the value is not a rational, or the exact rules do not compute it.
        TooLarge: computing the value would exceed the bounds.
        ZeroDivisionError: the tree divides by zero.
    """
    return EXACT.evaluate(node, _NO_NAMES)


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
        NoValue: the power is irrational or complex.
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
        raise NoValue
    top, bottom = integer_root(value.numerator, degree), integer_root(value.denominator, degree)
    if top is None or bottom is None:
        raise NoValue
    return Fraction(top, bottom)


def _root(value: Fraction, index: Fraction) -> Fraction:
    if index.denominator != 1 or not 1 <= index <= 64:
        raise NoValue
    if value < 0 and index % 2:
        return -_rational_root(-value, int(index))
    return _rational_root(value, int(index))


def _natural(value: Fraction, limit: int) -> int:
    if value.denominator != 1 or value < 0:
        raise NoValue
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
        raise NoValue
    for denominator in range(1, 7):
        approximate = _ln(value) / _ln(base) * denominator
        numerator = round(approximate)
        close = abs(approximate - numerator) < 1e-9 and abs(numerator) < 2_000
        if close and power(value, Fraction(denominator)) == power(base, Fraction(numerator)):
            return Fraction(numerator, denominator)
    raise NoValue


def _double_factorial(value: Fraction) -> Fraction:
    return Fraction(math.prod(range(_natural(value, MAX_FACTORIAL), 0, -2)))


def _modulo(value: Fraction, modulus: Fraction) -> Fraction:
    return value - modulus * (value // modulus)


def _integers(values: tuple[Fraction, ...]) -> list[int]:
    if any(value.denominator != 1 for value in values):
        raise NoValue
    return [int(value) for value in values]


_RULES: Mapping[str, Callable[..., Fraction]] = MappingProxyType(
    {
        "+": lambda first, *rest: sum(rest, first),
        "*": lambda first, *rest: math.prod(rest, start=first),
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
        "lcm": lambda *values: Fraction(math.lcm(*_integers(values))),
        "min": min,
        "max": max,
    }
)


def _with_bounded_result(rule: Callable[..., Fraction]) -> Callable[..., Fraction]:
    def apply(*values: Fraction) -> Fraction:
        value = rule(*values)
        if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
            raise TooLarge(f"expected a value of at most {MAX_BITS} bits")
        return value

    return apply


EXACT = Arithmetic(
    lambda value: value,
    MappingProxyType({}),
    MappingProxyType({name: _with_bounded_result(rule) for name, rule in _RULES.items()}),
)
