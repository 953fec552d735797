"""Unsolved inequalities in one unknown, such as `|x - 2| < 3`, compared with a set of intervals.

The two are compared at each end of the intervals, at both sides of it, between the ends and at fixed points from
-5000/7 to 5000/7. They must agree at every point.
"""

from fractions import Fraction
from itertools import pairwise

from graders.equivalence.arithmetic.evaluate_tree import NoValue, TooLarge
from graders.equivalence.arithmetic.multiprecision import AGREEMENT, evaluate_multiprecision, relative_gap
from graders.equivalence.arithmetic.sample_points import variables
from graders.equivalence.canonical.alpha_equivalence import substitute
from graders.equivalence.compare.comparison import Comparison
from graders.equivalence.compare.real_sets import RealInterval
from graders.parsing.tree import Apply, Name, Node, Relation

_SPREAD = tuple(sign * Fraction(size, 7) for size in (1, 3, 11, 40, 97, 700, 5_000) for sign in (1, -1))
_STEP = Fraction(1, 10**6)
MAX_INTERVALS = 12


def compare_unsolved_inequality(relation: Relation, intervals: list[RealInterval]) -> Comparison | None:
    """Compare an inequality with its solution set; None if the relation is not an inequality in one unknown."""
    free = variables(relation)
    if len(free) != 1 or len(intervals) > MAX_INTERVALS or set(relation.ops) - set("<>≤≥"):
        return None
    if not all(interval.is_numeric for interval in intervals):
        return None
    try:
        same = _agree(relation, free[0], intervals)
    except (NoValue, TooLarge, OverflowError, ZeroDivisionError):
        return None
    return Comparison(
        same, "numeric", f"the inequality and the intervals {'agree' if same else 'differ'} where compared"
    )


def _agree(relation: Relation, unknown: str, intervals: list[RealInterval]) -> bool:
    ends = [(one.low, one.low_closed) for one in intervals] + [(one.high, one.high_closed) for one in intervals]
    for end, closed in ends:
        at_end = Relation(relation.ops, tuple(substitute(term, unknown, end) for term in relation.terms))
        if _is_finite(end) and _holds(at_end, {}) != closed:
            return False
    finite = sorted(
        Fraction(value)
        for interval in intervals
        for value in (interval.low_float, interval.high_float)
        if value is not None and abs(value) < 1e12
    )
    points = [*_SPREAD, *(end + side * _STEP for end in finite for side in (1, -1))]
    points += [(one + other) / 2 for one, other in pairwise(finite)]
    return all(
        _holds(relation, {unknown: point}) == _contains(intervals, point) for point in points if point not in finite
    )


def _is_finite(node: Node) -> bool:
    return Name("infinity") not in (node, node.args[0] if isinstance(node, Apply) and node.args else node)


def _contains(intervals: list[RealInterval], point: Fraction) -> bool:
    return any(float(interval.low_float or 0) < point < float(interval.high_float or 0) for interval in intervals)


def _holds(relation: Relation, point: dict[str, Fraction]) -> bool:
    try:
        values = [evaluate_multiprecision(term, point) for term in relation.terms]
    except (NoValue, ZeroDivisionError):
        return False
    return all(_ordered(sign, *pair) for sign, pair in zip(relation.ops, pairwise(values), strict=True))


def _ordered(sign: str, left: object, right: object) -> bool:
    one, other = left.real, right.real  # type: ignore[attr-defined]
    if left.imag != 0 or right.imag != 0:  # type: ignore[attr-defined]
        return False
    equal = relative_gap(one, other) <= AGREEMENT
    if sign in "≤≥" and equal:
        return True
    return not equal and (one < other if sign in "<≤" else one > other)
