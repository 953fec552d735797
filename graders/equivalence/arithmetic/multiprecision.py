"""Multiprecision values of 60 significant digits, for values that doubles cannot distinguish.

mpmath is imported on first use; its precision is set in a private context, never globally.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from types import MappingProxyType
from typing import Any

from graders.equivalence.arithmetic.evaluate_tree import Arithmetic, NoValue, TooLarge
from graders.equivalence.arithmetic.rationals import EXACT
from graders.parsing.tree import Node

DIGITS = 60
MAX_EXPONENT = 1_000_000
MAX_ANGLE = 10**12
MAX_GAMMA = 20_000
TINY = 1e-45
AGREEMENT = 1e-35
"""Largest relative gap of two values that count as equal."""


def evaluate_multiprecision(node: Node, point: Mapping[str, Fraction]) -> Any:
    """Return the value of the tree as an mpmath complex number, without an imaginary part that is only rounding.

    Raises:
        NoValue: the value is undefined or infinite.
        TooLarge: the evaluation would exceed the bounds.
    """
    arithmetic, mp = _arithmetic()
    try:
        value = mp.mpc(arithmetic.evaluate(node, point))
    except (ValueError, mp.NoConvergence) as error:
        raise NoValue from error
    if not mp.isfinite(value):
        raise NoValue
    if abs(value.imag) <= abs(value.real) * mp.mpf(10) ** (10 - DIGITS) or abs(value.imag) < mp.mpf(10) ** (5 - DIGITS):
        return mp.mpc(value.real, 0)
    return value


def relative_gap(left: Any, right: Any) -> Any:
    """Return the distance of two values relative to the larger, or the absolute distance if both are close to zero."""
    gap = abs(left - right)
    size = max(abs(left), abs(right))
    return gap if min(abs(left), abs(right)) < TINY and size < TINY * 10**5 else gap / size


@cache
def _arithmetic() -> tuple[Arithmetic[Any], Any]:
    from mpmath.ctx_mp import MPContext

    mp = MPContext()
    mp.dps = DIGITS
    constants = {"pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1)}
    return Arithmetic(_rational(mp), MappingProxyType(constants), MappingProxyType(_operations(mp)), EXACT), mp


def _rational(mp: Any) -> Callable[[Fraction], Any]:
    return lambda value: mp.mpf(value.numerator) / value.denominator


def _operations(mp: Any) -> dict[str, Callable[..., Any]]:
    def power(base: Any, exponent: Any) -> Any:
        if base == 0:
            if mp.re(exponent) > 0:
                return mp.mpf(0)
            raise NoValue
        if abs(mp.log(abs(base)) * exponent) > MAX_EXPONENT or abs(exponent) > 10**12:
            raise TooLarge(f"expected a power below e^{MAX_EXPONENT}")
        return base**exponent

    def exponential(value: Any) -> Any:
        return power(mp.e, value)

    def angle(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def apply(value: Any) -> Any:
            if abs(value) > MAX_ANGLE:
                raise TooLarge(f"expected an angle below {MAX_ANGLE}")
            return function(value)

        return apply

    def real_root(value: Any, index: Any) -> Any:
        if mp.im(value) == 0 and mp.re(value) < 0 and mp.isint(index) and int(mp.re(index)) % 2:
            return -power(-value, 1 / index)
        return power(value, 1 / index) if index != 2 else mp.sqrt(value)

    def logarithm(value: Any, base: Any = None) -> Any:
        if value == 0 or base in (0, 1):
            raise NoValue
        return mp.log(value) if base is None else mp.log(value) / mp.log(base)

    def gamma(value: Any) -> Any:
        if abs(value) > MAX_GAMMA:
            raise TooLarge(f"expected a factorial of at most {MAX_GAMMA}")
        return mp.gamma(value)

    def nearest(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def apply(value: Any) -> Any:
            if mp.im(value) != 0:
                raise NoValue
            real = mp.re(value)
            close = mp.nint(real)
            return close if abs(real - close) < mp.mpf(10) ** (20 - DIGITS) else function(real)

        return apply

    def binomial(total: Any, chosen: Any) -> Any:
        if max(abs(total), abs(chosen)) > MAX_GAMMA:
            raise TooLarge(f"expected a binomial of at most {MAX_GAMMA}")
        return mp.binomial(total, chosen)

    simple = {name: angle(getattr(mp, name)) for name in "sin cos tan cot sec csc sinh cosh tanh coth".split()}
    inverse = {"arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan, "arccot": mp.acot, "arcsec": mp.asec}
    inverse |= {"arccsc": mp.acsc, "arsinh": mp.asinh, "arcosh": mp.acosh, "artanh": mp.atanh}
    return (
        simple
        | inverse
        | {"+": lambda *terms: mp.fsum(terms), "*": lambda *factors: mp.fprod(factors), "/": lambda a, b: a / b}
        | {"neg": lambda a: -a, "^": power, "root": real_root, "abs": abs, "exp": exponential}
        | {"sqrt": lambda a: real_root(a, 2), "cbrt": lambda a: real_root(a, 3), "ln": logarithm, "log": logarithm}
        | {
            "log10": lambda a: logarithm(a, 10),
            "log2": lambda a: logarithm(a, 2),
            "gamma": gamma,
            "Re": mp.re,
            "Im": mp.im,
        }
        | {
            "factorial": lambda a: gamma(a + 1),
            "binomial": binomial,
            "floor": nearest(mp.floor),
            "ceil": nearest(mp.ceil),
        }
        | {"permutations": lambda n, k: binomial(n, k) * gamma(k + 1), "min": min, "max": max, "sgn": mp.sign}
        | {"mod": lambda a, b: a - b * mp.floor(a / b), "double_factorial": lambda a: mp.fac2(_small(a))}
    )


def _small(value: Any) -> Any:
    if abs(value) > MAX_GAMMA or not math.isfinite(float(abs(value))):
        raise TooLarge(f"expected a double factorial of at most {MAX_GAMMA}")
    return value
