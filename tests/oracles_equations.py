"""Float64 oracles for the problem families, which share no code with them.

Text is made into a Python expression over exact fractions and evaluated at a few points; coefficients follow from the
values. Only text that the tests made themselves may come here.
"""

import re
from collections import Counter
from fractions import Fraction


def value(text: str, x: Fraction | int = 0, y: Fraction | int = 0) -> Fraction:
    """Value of an expression such as `3(x-2)+x^2` at a point."""
    assert re.fullmatch(r"[\dxy+\-*/^() ]+", text), text
    spelt = re.sub(r"(?<=[\dxy)])(?=[xy(])", "*", text).replace("^2", "**Z")
    spelt = re.sub(r"\d+", lambda digits: f"Fraction({digits.group()})", spelt).replace("Z", "2")
    return Fraction(eval(spelt, {"__builtins__": {}}, {"Fraction": Fraction, "x": Fraction(x), "y": Fraction(y)}))


def polynomial(text: str) -> tuple[Fraction, Fraction, Fraction]:
    """Coefficients of x^2, x and 1, from the values at 0, 1 and -1."""
    at_zero, at_one, at_minus_one = value(text, 0), value(text, 1), value(text, -1)
    square = (at_one + at_minus_one) / 2 - at_zero
    return square, at_one - at_zero - square, at_zero


def sides(equation: str) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
    left, right = equation.split("=")
    return polynomial(left), polynomial(right)


def root(equation: str) -> Fraction | str:
    """Root of a linear equation in x, or which of the two other things holds."""
    (left_square, a, b), (right_square, c, d) = sides(equation)
    assert left_square == right_square == 0, equation
    if a != c:
        return (d - b) / (a - c)
    return "all real numbers" if b == d else "no solution"


def equation_key(equation: str) -> frozenset[tuple[Fraction, ...]]:
    """The same for equations in x that differ by the order of terms, swapped sides, or a factor on both sides."""
    left, right = sides(equation)
    keys = set()
    for coefficients in (left + right, right + left):
        first = next((value for value in coefficients if value), Fraction(1))
        keys.add(tuple(value / first for value in coefficients))
    return frozenset(keys)


def system_key(system: str) -> frozenset[tuple[Fraction, ...]]:
    """The same for systems that differ by the order of equations or terms, or by a factor on an equation."""
    rows = set()
    for equation in system.split("; "):
        left, right = equation.split("=")
        constant = value(right) - value(left)
        row = (
            value(left, 1) - value(left) - value(right, 1) + value(right),
            value(left, 0, 1) - value(left) - value(right, 0, 1) + value(right),
            constant,
        )
        first = next(coefficient for coefficient in row if coefficient)
        rows.add(tuple(coefficient / first for coefficient in row))
    return frozenset(rows)


def summands(expression: str) -> list[str]:
    """The signed summands of an expression, split outside brackets: `9-2(x-5)` gives `+9` and `-2(x-5)`."""
    depth, parts = 0, [""]
    for character in expression if expression[0] in "+-" else f"+{expression}":
        if character in "+-" and depth == 0 and parts[-1]:
            parts.append("")
        depth += (character == "(") - (character == ")")
        parts[-1] += character
    return parts


def expression_key(expression: str) -> frozenset[tuple[str, int]]:
    """The same for expressions that differ by the order of summands, outside brackets and within."""
    parts = []
    for part in summands(expression):
        factor, bracket, inside = part.partition("(")
        parts.append(f"{factor}({','.join(sorted(summands(inside[:-1])))})" if bracket else part)
    return frozenset(Counter(parts).items())


def fact_key(fact: str) -> tuple[str, Fraction, frozenset[str]]:
    """The same for a sum or product with its numbers swapped: the sign, what it comes to, and the numbers."""
    left, sign, right = re.split(r"([+*-])", fact)
    return sign, value(fact), frozenset((left, right))
