"""Sums of terms as text and back: `2x-3` is `((2, "x"), (-3, ""))`; and the canonical form of an equation in x."""

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import gcd

from mathppo.errors import BadInput

Term = tuple[int | Fraction, str]
"""A coefficient and the symbol it multiplies; "" is the constant term."""

_TERM = re.compile(r"([+-]?)(\d{0,18})(x\^2|x|y)?")


def join_terms(terms: Iterable[Term]) -> str:
    """Text of a sum, in the order given; terms that are zero are left out, and an empty sum is `0`.

    >>> join_terms([(2, "x"), (-3, "")])
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
    """Read back what `join_terms` wrote with integer coefficients.

    Raises:
        BadInput: the text is anything else.
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
        raise BadInput(f"expected a sum of terms such as 2x-3, got {text!r}; only the built-in families' text is read")
    return tuple(terms)


def has_symbols_among(terms: Iterable[tuple[int, str]], symbols: Iterable[str]) -> bool:
    """Whether every term is of one of these symbols."""
    return {name for _, name in terms} <= set(symbols)


def coefficient(terms: Iterable[tuple[int, str]], symbol: str) -> int:
    """Sum of the coefficients of one symbol."""
    return sum(value for value, name in terms if name == symbol)


def canonical_equation(left: Sequence[int], right: Sequence[int]) -> str:
    """Canonical form of an equation whose sides are given by their coefficients, highest power first.

    Equations that differ by the order of terms, by swapping the sides, or by a factor on both sides share it.
    Moving a term to the other side gives another problem: `x+3=7` is not `x=4`, or only roots would be left to learn
    (M-problems-1).

    >>> canonical_equation((2, 3), (0, 11)) == canonical_equation((0, -22), (-4, -6))
    True
    """
    factor = gcd(*left, *right) or 1
    one = tuple(value // factor for value in left)
    other = tuple(value // factor for value in right)
    negated = tuple(-value for value in one), tuple(-value for value in other)
    first, second = max((one, other), (other, one), negated, negated[::-1])
    return f"equation {','.join(map(str, first))}={','.join(map(str, second))}"
