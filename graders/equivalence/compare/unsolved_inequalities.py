r"""An inequality in one unknown that is not solved, against a set of intervals: compared at the ends and between them.

`|x - 2| < 3` and `x^2 <= 4` describe sets without naming their ends. The other side's ends say where to look: at each
end, just beside it, between the ends, and at spread points; the two must agree at every one.
"""

from fractions import Fraction
from itertools import pairwise

from graders.equivalence.arithmetic.certified import AGREEMENT, variables
from graders.equivalence.arithmetic.evaluate_tree import Undecided
from graders.equivalence.arithmetic.multiprecision import evaluate_digits, relative_gap
from graders.equivalence.arithmetic.rationals import TooLarge
from graders.equivalence.compare.comparison import Comparison
from graders.equivalence.compare.real_sets import Piece
from graders.parsing.tree import Apply, Name, Node, Relation

_SPREAD = tuple(sign * Fraction(size, 7) for size in (1, 3, 11, 40, 97, 700, 5_000) for sign in (1, -1))
_STEP = Fraction(1, 10**6)
MAX_PIECES = 12


def compare_unsolved(relation: Relation, pieces: list[Piece]) -> Comparison | None:
    """Whether the relation holds exactly on the pieces; None where it is not an inequality in one unknown."""
    free = variables(relation)
    if len(free) != 1 or len(pieces) > MAX_PIECES or set(relation.ops) - set("<>≤≥"):
        return None
    if any(piece.low_float is None or piece.high_float is None for piece in pieces):
        return None
    try:
        same = _agree(relation, free[0], pieces)
    except (Undecided, TooLarge, OverflowError, ZeroDivisionError):
        return None
    return Comparison(
        same, "numeric", f"the inequality and the intervals {'agree' if same else 'differ'} where compared"
    )


def _agree(relation: Relation, unknown: str, pieces: list[Piece]) -> bool:
    ends = [(piece.low, piece.low_closed) for piece in pieces] + [(piece.high, piece.high_closed) for piece in pieces]
    for end, closed in ends:
        if _is_finite(end) and _holds(_bound(relation, unknown, end), {}) != closed:
            return False
    finite = sorted(
        Fraction(value)
        for piece in pieces
        for value in (piece.low_float, piece.high_float)
        if value is not None and abs(value) < 1e12
    )
    points = [*_SPREAD, *(end + side * _STEP for end in finite for side in (1, -1))]
    points += [(one + other) / 2 for one, other in pairwise(finite)]
    return all(
        _holds(relation, {unknown: point}) == _contains(pieces, point) for point in points if point not in finite
    )


def _is_finite(node: Node) -> bool:
    return Name("infinity") not in (node, node.args[0] if isinstance(node, Apply) and node.args else node)


def _bound(node: Relation, unknown: str, value: Node) -> Relation:
    return Relation(node.ops, tuple(_replaced(term, unknown, value) for term in node.terms))


def _replaced(node: Node, unknown: str, value: Node) -> Node:
    if isinstance(node, Name):
        return value if node.text == unknown else node
    if isinstance(node, Apply):
        return Apply(node.op, tuple(_replaced(argument, unknown, value) for argument in node.args))
    return node


def _contains(pieces: list[Piece], point: Fraction) -> bool:
    return any(float(piece.low_float or 0) < point < float(piece.high_float or 0) for piece in pieces)


def _holds(relation: Relation, point: dict[str, Fraction]) -> bool:
    try:
        values = [evaluate_digits(term, point) for term in relation.terms]
    except (Undecided, ZeroDivisionError):
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
