"""Numeric rung: proves inequality with error balls, and decides equality by 60-digit values at sample points.

Two trees are proved different if their balls are disjoint at one point where both are defined and real. They count as
equal if their 60-digit values agree to 35 digits at every sample point: for rational functions of the degrees that
answers have, and for constants built from the usual functions, the probability of a chance agreement is below 1e-30.
If fewer than `MIN_POINTS` points can be evaluated, this rung leaves the pair to the symbolic rung.
"""

from graders.equivalence.arithmetic.balls import evaluate_ball
from graders.equivalence.arithmetic.evaluate_tree import NoValue, TooLarge
from graders.equivalence.arithmetic.multiprecision import AGREEMENT, evaluate_multiprecision, relative_gap
from graders.equivalence.arithmetic.sample_points import NUM_POINTS, sample_points
from graders.parsing.tree import Name, Node, walk

MIN_POINTS = 3


def proved_different(left: Node, right: Node) -> bool:
    """Return True if the error balls of the two trees are disjoint at some sample point; False proves nothing."""
    complex_valued = _contains_i(left) or _contains_i(right)
    for point in sample_points(left, right):
        try:
            one, other = evaluate_ball(left, point), evaluate_ball(right, point)
        except (NoValue, OverflowError, ZeroDivisionError):
            continue
        if point and not complex_valued and not (one.is_real and other.is_real):
            continue
        if abs(one.mid - other.mid) > 2 * (one.radius + other.radius):
            return True
        if not point:
            return False
    return False


def _contains_i(node: Node) -> bool:
    """Return True if the tree contains `i`: otherwise only points with real values count."""
    return any(current == Name("i") for current, _ in walk(node))


def values_agree(left: Node, right: Node) -> bool | None:
    """Return whether 60-digit values agree at every sample point; None if too few points can be evaluated.

    Raises:
        TooLarge: evaluation exceeds the bounds at every point that is otherwise defined.
    """
    num_points = 0
    complex_valued = _contains_i(left) or _contains_i(right)
    too_large: TooLarge | None = None
    for point in sample_points(left, right):
        try:
            one, other = evaluate_multiprecision(left, point), evaluate_multiprecision(right, point)
        except (NoValue, ZeroDivisionError, OverflowError):
            continue
        except TooLarge as error:
            too_large = error
            continue
        if point and not complex_valued and not (one.imag == 0 and other.imag == 0):
            continue
        if relative_gap(one, other) > AGREEMENT:
            return False
        num_points += 1
        if not point or num_points >= NUM_POINTS:
            return True
    if too_large is not None and not num_points:
        raise too_large
    return True if num_points >= MIN_POINTS else None


def values_proportional(left: Node, right: Node, *, positive: bool = False) -> bool | None:
    """Return whether `left / right` is one non-zero constant (positive, if asked) at the sample points.

    None if too few points can be evaluated.
    """
    ratio = None
    num_points = 0
    for point in sample_points(left, right):
        try:
            one, other = evaluate_multiprecision(left, point), evaluate_multiprecision(right, point)
        except (NoValue, ZeroDivisionError, OverflowError):
            continue
        if one.imag != 0 or other.imag != 0 or other == 0 or one == 0:
            if (one == 0) != (other == 0):
                return False
            continue
        if positive and one.real * other.real < 0:
            return False
        current = one / other
        if ratio is not None and relative_gap(current, ratio) > AGREEMENT:
            return False
        ratio = current
        num_points += 1
        if num_points >= NUM_POINTS:
            return True
    return True if num_points >= MIN_POINTS else None
