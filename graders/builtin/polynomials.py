"""Polynomials with rational coefficients: arithmetic, real roots by Sturm's theorem, rank of a linear system."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from graders.equivalence.arithmetic.evaluate_tree import number_value
from graders.parsing.tree import Apply, Name, Node, Number

MAX_DEGREE = 24
MAX_TERMS = 400
CONSTANTS = frozenset({"pi", "e"})
"""Names of numbers, not of unknowns; Sturm's theorem needs rational coefficients, so polynomials exclude them."""

Polynomial = dict[tuple[str, ...], Fraction]
"""Coefficient of each monomial; a monomial is the sorted tuple of its factors: `x^2 y` is `("x", "x", "y")`."""


class NotPolynomialError(Exception):
    """The tree is not a polynomial with rational coefficients, or the polynomial is too large."""


def polynomial(node: Node) -> Polynomial:
    """Return the polynomial of a tree, without zero coefficients.

    Raises:
        NotPolynomialError: the tree is not a polynomial, or exceeds `MAX_DEGREE` or `MAX_TERMS`.
    """
    if isinstance(node, Number):
        return _clean({(): number_value(node.text)})
    if isinstance(node, Name):
        if node.text in CONSTANTS:
            raise NotPolynomialError(f"{node.text}, which is not a rational number")
        return {(node.text,): Fraction(1)}
    if not isinstance(node, Apply):
        raise NotPolynomialError(type(node).__name__)
    if node.op == "^":
        return _power(polynomial(node.args[0]), _constant(node.args[1]))
    parts = [polynomial(argument) for argument in node.args]
    if node.op == "+":
        return _sum(parts)
    if node.op == "neg":
        return {monomial: -coefficient for monomial, coefficient in parts[0].items()}
    if node.op == "*":
        product: Polynomial = {(): Fraction(1)}
        for part in parts:
            product = _product(product, part)
        return product
    if node.op == "/" and len(parts) == 2 and set(parts[1]) == {()}:
        return {monomial: coefficient / parts[1][()] for monomial, coefficient in parts[0].items()}
    raise NotPolynomialError(node.op)


def difference(left: Polynomial, right: Polynomial) -> Polynomial:
    return _sum([left, {monomial: -coefficient for monomial, coefficient in right.items()}])


def num_real_roots(coefficients: Sequence[Fraction]) -> int:
    """Return the number of distinct real roots, by Sturm's theorem.

    Args:
        coefficients: coefficients, lowest power first; the last one is not zero.
    """
    chain = [list(coefficients), [k * c for k, c in enumerate(coefficients)][1:]]
    while len(chain[-1]) > 1:
        rest = _remainder(chain[-2], chain[-1])
        if not rest:
            break
        chain.append([-c for c in rest])
    chain = [row for row in chain if row]
    below = [row[-1] * (-1) ** (len(row) - 1) for row in chain]
    above = [row[-1] for row in chain]
    return _sign_changes(below) - _sign_changes(above)


def rank(rows: Sequence[Sequence[Fraction]]) -> int:
    """Return the rank of a matrix."""
    left = [list(row) for row in rows]
    found = 0
    for column in range(len(left[0]) if left else 0):
        pivot = next((row for row in left[found:] if row[column]), None)
        if pivot is None:
            continue
        left.remove(pivot)
        left.insert(found, pivot)
        for row in left[found + 1 :]:
            factor = row[column] / pivot[column]
            row[:] = [value - factor * other for value, other in zip(row, pivot, strict=True)]
        found += 1
    return found


def _clean(terms: Polynomial) -> Polynomial:
    if len(terms) > MAX_TERMS or any(len(monomial) > MAX_DEGREE for monomial in terms):
        raise NotPolynomialError(f"more than {MAX_TERMS} terms or degree {MAX_DEGREE}")
    return {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}


def _sum(parts: Sequence[Polynomial]) -> Polynomial:
    total: Polynomial = {}
    for part in parts:
        for monomial, coefficient in part.items():
            total[monomial] = total.get(monomial, Fraction(0)) + coefficient
    return _clean(total)


def _product(left: Polynomial, right: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for first, a in left.items():
        for second, b in right.items():
            monomial = tuple(sorted(first + second))
            total[monomial] = total.get(monomial, Fraction(0)) + a * b
    return _clean(total)


def _power(base: Polynomial, exponent: Fraction) -> Polynomial:
    if exponent.denominator != 1 or not 0 <= exponent <= MAX_DEGREE:
        raise NotPolynomialError(f"exponent {exponent}")
    power: Polynomial = {(): Fraction(1)}
    for _ in range(int(exponent)):
        power = _product(power, base)
    return power


def _constant(node: Node) -> Fraction:
    value = polynomial(node)
    if set(value) - {()}:
        raise NotPolynomialError("an exponent with an unknown")
    return value.get((), Fraction(0))


def _remainder(top: Sequence[Fraction], bottom: Sequence[Fraction]) -> list[Fraction]:
    rest = list(top)
    while len(rest) >= len(bottom):
        factor = rest[-1] / bottom[-1]
        shift = len(rest) - len(bottom)
        for k, coefficient in enumerate(bottom):
            rest[shift + k] -= factor * coefficient
        rest.pop()
    while rest and not rest[-1]:
        rest.pop()
    return rest


def _sign_changes(values: Sequence[Fraction]) -> int:
    signs = [value > 0 for value in values if value]
    return sum(a != b for a, b in pairwise(signs))
