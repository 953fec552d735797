"""Sums of terms: `2x-3` is `((2, "x"), (-3, ""))`; formatting, parsing, and canonical forms of equations in x."""

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import gcd

from mathppo.errors import BadInput

Term = tuple[int | Fraction, str]
"""A coefficient and the symbol it multiplies; "" is the constant term."""

_TERM = re.compile(r"([+-]?)(\d{0,18})(x\^2|x|y)?")


def format_terms(terms: Iterable[Term]) -> str:
    """Format a sum in the order given; zero terms are omitted, and an empty sum is `0`.

    >>> format_terms([(2, "x"), (-3, "")])
    '2x-3'
    """
    pieces = []
    for coefficient, symbol in terms:
        if coefficient == 0:
            continue
        sign = "-" if coefficient < 0 else "+" if pieces else ""
        size = abs(coefficient)
        pieces.append(f"{sign}{symbol if symbol and size == 1 else f'{size}{symbol}'}")
    return "".join(pieces) or "0"


def parse_terms(text: str) -> tuple[tuple[int, str], ...]:
    """Parse the output of `format_terms` for integer coefficients.

    Raises:
        BadInput: the text is not a sum of terms.
    """
    terms, position = [], 0
    while position < len(text):
        match = _TERM.match(text, position)
        sign, digits, symbol = match.groups() if match else ("", "", None)
        if not (digits or symbol) or (terms and not sign):
            break
        terms.append((int(f"{sign}{digits or 1}"), symbol or ""))
        position += len(match.group()) if match else 0
    if not terms or position < len(text):
        raise BadInput(f"expected a sum of terms such as 2x-3, got {text!r}; check the family")
    return tuple(terms)


def parse_equation(text: str, symbols: Sequence[str] = ("x", "")) -> tuple[tuple[tuple[int, str], ...], ...]:
    """Parse the two sides of an equation.

    Raises:
        BadInput: the text is not an equation in these symbols.
    """
    sides = tuple(map(parse_terms, text.split("=")))
    if len(sides) != 2 or not {name for side in sides for _, name in side} <= set(symbols):
        raise BadInput(f"expected an equation in {', '.join(filter(None, symbols))}, got {text!r}; check the family")
    return sides


def coefficient(terms: Iterable[tuple[int, str]], symbol: str) -> int:
    """Return the sum of the coefficients of one symbol."""
    return sum(value for value, name in terms if name == symbol)


def canonical_equation(left: Sequence[int], right: Sequence[int]) -> str:
    """Return the canonical form of an equation whose sides are given by their coefficients, highest power first.

    Equations that differ in the order of terms, in the order of the sides, or by a factor on both sides share a form.
    Equations that differ by a moved term do not: `x+3=7` is not `x=4`. Otherwise all equations with the same root
    would be the same problem (M-problems-1).

    >>> canonical_equation((2, 3), (0, 11)) == canonical_equation((0, -22), (-4, -6))
    True
    """
    factor = gcd(*left, *right) or 1
    one = tuple(value // factor for value in left)
    other = tuple(value // factor for value in right)
    negated = tuple(-value for value in one), tuple(-value for value in other)
    first, second = max((one, other), (other, one), negated, negated[::-1])
    return f"equation {','.join(map(str, first))}={','.join(map(str, second))}"
