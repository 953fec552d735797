"""Ball arithmetic: complex doubles with an error radius, for fast proofs that two values differ.

Every operation widens the radius by a first-order bound on the errors of its arguments and its rounding. Callers
double the sum of two radii before they call two values different.
"""

import cmath
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from graders.equivalence.arithmetic.evaluate_tree import Arithmetic, NoValue
from graders.equivalence.arithmetic.rationals import EXACT
from graders.parsing.tree import Node

EPS = 2.0**-51


class Ball(NamedTuple):
    """All complex numbers within `radius` of `mid`."""

    mid: complex
    radius: float

    @property
    def is_real(self) -> bool:
        """True if the ball meets the real axis."""
        return abs(self.mid.imag) <= self.radius


def evaluate_ball(node: Node, point: Mapping[str, Fraction]) -> Ball:
    """Return the value of the tree as a ball.

    Raises:
        NoValue: the value is undefined, overflows a double, or is too close to a singularity.
        TooLarge: the evaluation takes too many steps.
    """
    ball = _arithmetic().evaluate(node, point)
    if not (cmath.isfinite(ball.mid) and math.isfinite(ball.radius)):
        raise NoValue
    return ball


@cache
def _arithmetic() -> Arithmetic[Ball]:
    constants = {"pi": _around(math.pi), "e": _around(math.e), "i": Ball(1j, 0.0)}
    return Arithmetic(_rational, MappingProxyType(constants), _OPERATIONS, EXACT)


def _around(value: complex, radius: float = 0.0) -> Ball:
    return Ball(complex(value), radius + EPS * abs(value))


def _rational(value: Fraction) -> Ball:
    return _around(complex(float(value)))


def _add(*terms: Ball) -> Ball:
    total = sum(term.mid for term in terms)
    return Ball(total, sum(term.radius for term in terms) + EPS * sum(abs(term.mid) for term in terms))


def _multiply(*factors: Ball) -> Ball:
    mid, radius = complex(1), 0.0
    for factor in factors:
        radius = abs(mid) * factor.radius + abs(factor.mid) * radius + radius * factor.radius
        mid *= factor.mid
        radius += EPS * abs(mid)
    return Ball(mid, radius)


def _divide(top: Ball, bottom: Ball) -> Ball:
    clear = abs(bottom.mid) - bottom.radius
    if clear <= 0:
        raise NoValue
    mid = top.mid / bottom.mid
    return Ball(mid, (top.radius + abs(mid) * bottom.radius) / clear + EPS * abs(mid))


def _exp(value: Ball) -> Ball:
    if value.mid.real > 700:
        raise NoValue
    mid = cmath.exp(value.mid)
    return Ball(mid, abs(mid) * (math.expm1(min(value.radius, 1.0)) + EPS * (1 + abs(value.mid))))


def _log(value: Ball, base: Ball | None = None) -> Ball:
    clear = abs(value.mid) - value.radius
    if clear <= 0 or _crosses_cut(value):
        raise NoValue
    mid = cmath.log(_upper(value.mid))
    result = Ball(mid, value.radius / clear + EPS * (1 + abs(mid)))
    return result if base is None else _divide(result, _log(base))


def _crosses_cut(value: Ball) -> bool:
    return value.mid.real < 0 and 0 < abs(value.mid.imag) <= 4 * value.radius


def _power(base: Ball, exponent: Ball) -> Ball:
    whole = (
        exponent.mid.imag == 0 and exponent.mid.real.is_integer() and exponent.radius < 1e-12 * (1 + abs(exponent.mid))
    )
    count = exponent.mid.real
    if whole and abs(count) <= 200:
        if count < 0:
            return _divide(_around(1), _power(base, Ball(-exponent.mid, 0.0)))
        mid = base.mid ** int(count)
        clear = max(abs(base.mid) + base.radius, 1e-300)
        return Ball(mid, count * clear ** (count - 1) * base.radius + EPS * (count + 1) * abs(mid))
    if base.mid == 0:
        if exponent.mid.real > 0 and base.radius == 0:
            return Ball(0j, 0.0)
        raise NoValue
    return _exp(_multiply(exponent, _log(base)))


def _root(value: Ball, index: Ball) -> Ball:
    degree = index.mid.real
    if not degree.is_integer() or index.mid.imag or degree < 1:
        return _power(value, _divide(_around(1), index))
    if value.mid.real < 0 and degree % 2 and abs(value.mid.imag) <= value.radius:
        positive = _root(Ball(complex(-value.mid.real), value.radius), index)
        return Ball(-positive.mid, positive.radius)
    if abs(value.mid) <= 2 * value.radius:
        return Ball(0j, (3 * value.radius) ** (1 / degree))
    if _crosses_cut(value):
        raise NoValue
    mid = cmath.sqrt(_upper(value.mid)) if degree == 2 else _upper(value.mid) ** (1 / degree)
    return Ball(mid, abs(mid) * (value.radius / (abs(value.mid) - value.radius) / degree + 4 * EPS))


def _entire(function: Callable[[complex], complex]) -> Callable[[Ball], Ball]:
    """Lift a function whose derivative is bounded by cosh of the imaginary part (of the real part if hyperbolic)."""

    def apply(value: Ball) -> Ball:
        if abs(value.mid) > 1e8:
            raise NoValue
        slope = math.cosh(min(max(abs(value.mid.imag), abs(value.mid.real) * _is_hyperbolic(function)) + 1, 700))
        mid = function(value.mid)
        return Ball(mid, slope * (value.radius + EPS * abs(value.mid)) + EPS * (abs(mid) + 1))

    return apply


def _is_hyperbolic(function: Callable[[complex], complex]) -> bool:
    return function in (cmath.sinh, cmath.cosh)


def _inverse(function: Callable[[complex], complex], slope: Callable[[complex], complex]) -> Callable[[Ball], Ball]:
    """Lift an inverse function; it raises `NoValue` near points of infinite slope."""

    def apply(value: Ball) -> Ball:
        steepness = abs(slope(value.mid))
        if steepness < 1e-3 or (value.radius > 0 and steepness < 1e3 * value.radius):
            raise NoValue
        mid = function(value.mid)
        return Ball(mid, 2 * value.radius / steepness + 4 * EPS * (1 + abs(mid)))

    return apply


_SIN, _COS = _entire(cmath.sin), _entire(cmath.cos)
_SINH, _COSH = _entire(cmath.sinh), _entire(cmath.cosh)
_ONE = Ball(1 + 0j, 0.0)


def _upper(value: complex) -> complex:
    """Return the value with a negative zero made positive: the upper side of a branch cut."""
    return complex(value.real, value.imag + 0.0)


def _negate(value: Ball) -> Ball:
    return Ball(-value.mid, value.radius)


def _absolute(value: Ball) -> Ball:
    return Ball(complex(abs(value.mid)), value.radius)


def _step(function: Callable[[float], int]) -> Callable[[Ball], Ball]:
    def apply(value: Ball) -> Ball:
        low, high = function(value.mid.real - value.radius), function(value.mid.real + value.radius)
        if value.mid.imag or low != high:
            raise NoValue
        return Ball(complex(low), 0.0)

    return apply


def _factorial(value: Ball) -> Ball:
    count = value.mid.real
    if value.mid.imag or not count.is_integer() or not 0 <= count <= 170:
        raise NoValue
    return _around(complex(math.factorial(int(count))))


def _binomial(total: Ball, chosen: Ball) -> Ball:
    n, k = total.mid.real, chosen.mid.real
    if not (n.is_integer() and k.is_integer() and k >= 0 and 0 <= n <= 1000):
        raise NoValue
    return _around(complex(math.comb(int(n), int(k))))


def _extreme(choose: Callable[..., Ball]) -> Callable[..., Ball]:
    def apply(*values: Ball) -> Ball:
        if any(value.mid.imag for value in values):
            raise NoValue
        return choose(values, key=lambda value: value.mid.real)._replace(radius=max(value.radius for value in values))

    return apply


_OPERATIONS: Mapping[str, Callable[..., Ball]] = MappingProxyType(
    {
        **{"+": _add, "*": _multiply, "/": _divide, "neg": _negate, "^": _power, "root": _root, "abs": _absolute},
        **{"sqrt": lambda x: _root(x, _around(2)), "cbrt": lambda x: _root(x, _around(3))},
        **{"exp": _exp, "ln": _log, "log": _log, "sin": _SIN, "cos": _COS, "sinh": _SINH, "cosh": _COSH},
        "log10": lambda x: _log(x, _around(10)),
        "log2": lambda x: _log(x, _around(2)),
        "tan": lambda x: _divide(_SIN(x), _COS(x)),
        "cot": lambda x: _divide(_COS(x), _SIN(x)),
        "sec": lambda x: _divide(_ONE, _COS(x)),
        "csc": lambda x: _divide(_ONE, _SIN(x)),
        "tanh": lambda x: _divide(_SINH(x), _COSH(x)),
        "coth": lambda x: _divide(_COSH(x), _SINH(x)),
        "arcsin": _inverse(cmath.asin, lambda z: cmath.sqrt(1 - z * z)),
        "arccos": _inverse(cmath.acos, lambda z: cmath.sqrt(1 - z * z)),
        "arctan": _inverse(cmath.atan, lambda z: 1 + z * z),
        "arsinh": _inverse(cmath.asinh, lambda z: cmath.sqrt(1 + z * z)),
        "arcosh": _inverse(cmath.acosh, lambda z: cmath.sqrt(z * z - 1)),
        "artanh": _inverse(cmath.atanh, lambda z: 1 - z * z),
        **{"floor": _step(math.floor), "ceil": _step(math.ceil), "factorial": _factorial, "binomial": _binomial},
        **{"min": _extreme(min), "max": _extreme(max)},
        "Re": lambda x: Ball(complex(x.mid.real), x.radius),
        "Im": lambda x: Ball(complex(x.mid.imag), x.radius),
    }
)
