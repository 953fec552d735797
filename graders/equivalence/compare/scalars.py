"""Scalars: the ladder of rungs for two single values.

text        decides equal trees
exact       decides pairs of rationals and pairs with an infinity
rounded     accepts a value that rounds to a decimal reference, a decimal of full precision, or a value in tolerance
numeric     proves inequality with error balls
algebraic   decides by normal forms
numeric     decides by 60-digit values at sample points; constants that cannot be evaluated are undecided
symbolic    decides by a bounded sympy simplification, else undecided
"""

from fractions import Fraction

from graders.equivalence.arithmetic.evaluate_tree import NoValue, number_value
from graders.equivalence.arithmetic.rationals import exact_value
from graders.equivalence.arithmetic.sample_points import float_value, variables
from graders.equivalence.canonical.normal_form import proportional_forms, same_form
from graders.equivalence.compare.comparison import Comparison
from graders.equivalence.compare.values import proved_different, values_agree, values_proportional
from graders.parsing.tree import Apply, Name, Node, Number, Quantity, walk

MIN_DIGITS_EXACT_ANSWER = 2
MIN_DIGITS_DECIMAL_ANSWER = 3
FULL_PRECISION_DIGITS = 13


def compare_scalars(answer: Node, reference: Node, *, tolerance: Fraction | None = None) -> Comparison:
    """Compare two values.

    Args:
        answer: a tree without containers or relations.
        reference: a tree without containers or relations; if it is a decimal, an answer that rounds to it is equal.
        tolerance: largest accepted relative difference; None for exact comparison.
    """
    if answer == reference:
        return Comparison(True, "text", "the same expression")
    left, right = _exact(answer), _exact(reference)
    if left is not None and right is not None:
        if left == right:
            return Comparison(True, "exact", f"both are {_short(right)}")
        if _rounds(left, answer, reference) or _full_precision(left, right, answer):
            return Comparison(True, "rounded", f"{_short(left)} rounds to the decimal of the reference")
        if tolerance is not None and abs(left - right) <= tolerance * abs(right):
            return Comparison(True, "rounded", f"{_short(left)} is within {float(tolerance):g} of the reference")
        return Comparison(False, "exact", f"{_short(left)} is not {_short(right)}")
    if _is_infinite(answer) or _is_infinite(reference):
        return Comparison(_infinity(answer) == _infinity(reference), "exact", "infinite values are compared by sign")
    return _irrational(answer, reference, tolerance)


def _irrational(answer: Node, reference: Node, tolerance: Fraction | None) -> Comparison:
    if _decimal_of(answer, reference):
        return Comparison(True, "rounded", "the decimal equals the reference to the precision of a double")
    if proved_different(answer, reference):
        value = float_value(answer)
        if value is not None and (_rounds(Fraction(value), answer, reference) or _near(value, reference, tolerance)):
            return Comparison(True, "rounded", f"{value:.6g} rounds to the decimal of the reference")
        return Comparison(False, "numeric", "error balls are disjoint")
    if (same := same_form(answer, reference)) is not None:
        return Comparison(same, "algebraic", "the same normal form" if same else "different normal forms")
    agreed = values_agree(answer, reference)
    if agreed is not None:
        return Comparison(agreed, "numeric", f"60-digit values {'agree' if agreed else 'differ'}")
    if not variables(answer, reference):
        return Comparison(None, "numeric", "a value is undefined or cannot be evaluated")
    from graders.equivalence.compare.symbolic import symbolically_equal

    return Comparison(symbolically_equal(answer, reference), "symbolic", "decided by bounded simplification")


def compare_equations(answer: Node, reference: Node, *, positive: bool = False) -> Comparison:
    """Compare the equations `answer = 0` and `reference = 0`: equal up to a non-zero (or positive) factor."""
    if not positive and (same := proportional_forms(answer, reference)) is not None:
        return Comparison(same, "algebraic", "the equations are multiples" if same else "an equation is trivial")
    agreed = values_proportional(answer, reference, positive=positive)
    return Comparison(bool(agreed), "numeric", f"the ratio of the sides is {'' if agreed else 'not '}constant")


def _exact(node: Node) -> Fraction | None:
    if isinstance(node, Number):
        return number_value(node.text)
    try:
        return exact_value(node)
    except (NoValue, ZeroDivisionError):
        return None


def _short(value: Fraction) -> str:
    if value.numerator.bit_length() + value.denominator.bit_length() > 160:
        return "a long number"
    return str(value)


def decimal_literal(node: Node) -> tuple[str, int] | None:
    """Return the numeral and sign of a decimal literal or of `a * 10^n`; None for anything else."""
    sign = 1
    if isinstance(node, Apply) and node.op == "neg":
        sign, node = -1, node.args[0]
    if isinstance(node, Number):
        return node.text, sign
    if isinstance(node, Apply) and node.op == "*" and len(node.args) == 2:
        mantissa, scale = node.args
        inner = decimal_literal(mantissa)
        if inner is None or not (isinstance(scale, Apply) and scale.op == "^" and scale.args[0] == Number("10")):
            return None
        power = _exact(scale.args[1])
        if power is not None and power.denominator == 1 and "e" not in inner[0] and abs(power) < 400:
            return f"{inner[0]}e{power}", sign * inner[1]
    return None


def _rounds(value: Fraction, answer: Node, reference: Node) -> bool:
    """Return True if `value` rounds to the reference, a decimal literal, at its last digit.

    The reference needs two significant digits if the answer is exact and three if it is a decimal: with fewer digits,
    the reference is more likely to be exact than rounded.
    """
    written = decimal_literal(reference)
    if written is None or not ("." in written[0] or "e" in written[0]) or "(" in written[0]:
        return False
    mantissa, _, exponent = written[0].replace(",", "").partition("e")
    digits = mantissa.replace(".", "").lstrip("0")
    own = decimal_literal(answer)
    needed = MIN_DIGITS_EXACT_ANSWER
    if own is not None:
        needed = MIN_DIGITS_DECIMAL_ANSWER
        if _places(own[0]) <= _places(written[0]):
            return False
    if len(digits) < needed:
        return False
    unit = Fraction(1, 10 ** len(mantissa.partition(".")[2])) * Fraction(10) ** int(exponent or 0)
    return abs(value - written[1] * number_value(written[0])) <= unit / 2


def _places(text: str) -> int:
    mantissa, _, exponent = text.partition("e")
    return len(mantissa.partition(".")[2]) - int(exponent or 0)


def _full_precision(left: Fraction, right: Fraction, answer: Node) -> bool:
    """Return True if a decimal answer equals a rational reference to the precision of a double."""
    written = decimal_literal(answer)
    if written is None or "." not in written[0] or right == 0:
        return False
    digits = len(written[0].partition("e")[0].replace(".", "").lstrip("0"))
    return digits > FULL_PRECISION_DIGITS and abs(left - right) <= abs(right) * Fraction(1, 10**FULL_PRECISION_DIGITS)


def _decimal_of(answer: Node, reference: Node) -> bool:
    left = _exact(answer) if decimal_literal(answer) is not None else None
    value = float_value(reference) if left is not None else None
    if value is None or left is None:
        return False
    return _full_precision(left, Fraction(value), answer)


def _near(value: float, reference: Node, tolerance: Fraction | None) -> bool:
    target = float_value(reference)
    return tolerance is not None and target is not None and abs(value - target) <= tolerance * abs(target)


def approximately_equal(exact: Node, approximate: Node) -> bool:
    """Return True if `exact ≈ approximate` holds within one per cent or by rounding, or cannot be evaluated."""
    value, other = float_value(exact), float_value(approximate)
    if value is None or other is None:
        return True
    return abs(value - other) <= abs(value) / 100 or _rounds(Fraction(value), exact, approximate)


def _is_infinite(node: Node) -> bool:
    return any(current == Name("infinity") for current, _ in walk(node))


def _infinity(node: Node) -> str:
    sign = 1
    while isinstance(node, Apply) and node.op in ("neg", "pm") and len(node.args) == 1:
        sign, node = -sign, node.args[0]
    return f"{sign}" if node == Name("infinity") else f"other {node}"


def is_scalar(node: Node) -> bool:
    """Return True if the node can be a single value."""
    return isinstance(node, (Number, Name, Quantity)) or (
        isinstance(node, Apply)
        and node.op not in ("and", "or", "union", "intersection", "difference", "pm", "mp", "pmod")
    )
