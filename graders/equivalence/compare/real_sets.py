r"""Sets of real numbers: intervals, unions, inequalities, set-builders and points, as one sorted union of pieces."""

import math
from typing import NamedTuple

from graders.equivalence.arithmetic.certified import float_value
from graders.equivalence.canonical.canonicalize import INEQUALITIES, lowered, open_interval
from graders.equivalence.compare.comparison import Comparison, joined
from graders.equivalence.compare.scalars import compare_scalars
from graders.parsing.tree import Apply, Builder, Interval, List, Name, Node, Relation, Set, Text, Tuple

INFINITY = Name("infinity")
MINUS_INFINITY = Apply("neg", (INFINITY,))
REALS = Interval(MINUS_INFINITY, INFINITY, False, False)
_FLIPPED = {"<": ">", ">": "<", "≤": "≥", "≥": "≤", "≠": "≠", "=": "="}
_NUMBER_SETS = frozenset({"bb R", "R"})


class Piece(NamedTuple):
    """An interval with its ends also as doubles; an end that is no constant has None."""

    low: Node
    low_closed: bool
    high: Node
    high_closed: bool
    low_float: float | None
    high_float: float | None


def is_solution_set(node: Node) -> bool:
    """Whether the node can only mean a set of real numbers."""
    if isinstance(node, Interval):
        return True
    if isinstance(node, Apply) and node.op in ("union", "intersection", "difference"):
        return True
    if isinstance(node, Apply) and node.op in ("and", "or"):
        return all(is_solution_set(item) or isinstance(item, Relation) for item in node.args)
    if isinstance(node, Name):
        return node.text == "bb R"
    if isinstance(node, Builder):
        return True
    return isinstance(node, Relation) and (node.ops[0] in INEQUALITIES or node.ops[0] == "∈")


def compare_solutions(answer: Node, reference: Node) -> Comparison | None:
    """Whether two descriptions give one set; None where one of them is no set of reals that is understood here."""
    left, right = pieces(answer), pieces(reference)
    if left is None or right is None:
        return None
    if len(left) != len(right):
        return Comparison(False, "structure", f"{len(left)} intervals against {len(right)}")
    if any(piece.low_float is None or piece.high_float is None for piece in (*left, *right)):
        return _match(left, right)
    return joined([_same(one, other) for one, other in zip(left, right, strict=True)])


def _match(left: list[Piece], right: list[Piece]) -> Comparison:
    rest = list(left)
    for piece in right:
        for candidate in rest:
            if _same(candidate, piece).equal:
                rest.remove(candidate)
                break
        else:
            return Comparison(False, "structure", "an interval of the reference is missing")
    return Comparison(True, "structure", "the same intervals")


def _same(one: Piece, other: Piece) -> Comparison:
    if (one.low_closed, one.high_closed) != (other.low_closed, other.high_closed):
        return Comparison(False, "structure", "an end is open on one side and closed on the other")
    return joined([compare_scalars(one.low, other.low), compare_scalars(one.high, other.high)])


def pieces(node: Node) -> list[Piece] | None:
    """The set as disjoint intervals in order, touching ones merged; None where it is not understood."""
    found = _raw(node)
    if found is None or any(piece.low_float is None or piece.high_float is None for piece in found):
        return found
    return _merged(found)


def _raw(node: Node) -> list[Piece] | None:
    node = open_interval(node)
    match node:
        case Interval(low=low, high=high):
            piece = _piece(low, node.low_closed, high, node.high_closed)
            return None if _is_reversed(piece) else [piece]
        case Name(text=text) if text in _NUMBER_SETS:
            return _raw(REALS)
        case Text(text="all real numbers"):
            return _raw(REALS)
        case Set(items=items):
            return [_piece(item, True, item, True) for item in items]
        case Apply(op="union", args=args) | Apply(op="or", args=args):
            return _union(args)
        case Apply(op="intersection", args=args) | Apply(op="and", args=args):
            return _intersection([pieces(item) for item in args])
        case Apply(op="difference", args=(whole, removed)):
            without = pieces(removed)
            return None if without is None else _intersection([pieces(whole), _complement(without)])
        case Builder():
            return _built(node)
        case Relation():
            return _related(node)
        case List(items=items) if all(isinstance(item, (Relation, Interval, Tuple)) for item in items):
            return _listed(items)
    return None


def _listed(items: tuple[Node, ...]) -> list[Piece] | None:
    """`x < 1, x > 2` is either, `x ≥ 2, x < 5` is both, for either would be anything; `x ≠ 3` is taken away."""
    excluded = [item for item in items if isinstance(item, Relation) and item.ops == ("≠",)]
    rest = tuple(item for item in items if item not in excluded)
    found = _union(rest) if rest else None
    if found is None:
        return None if rest else _intersection([pieces(item) for item in excluded])
    if any(piece.low_float is None or piece.high_float is None for piece in found):
        return None if excluded else found
    found = _merged(found)
    if len(rest) > 1 and found == _raw(REALS):
        found = _intersection([pieces(item) for item in rest])
    return _intersection([found, *(pieces(item) for item in excluded)]) if excluded else found


def _union(items: tuple[Node, ...]) -> list[Piece] | None:
    found: list[Piece] = []
    for item in items:
        part = _raw(item)
        if part is None:
            return None
        found.extend(part)
    return found


def _built(node: Builder) -> list[Piece] | None:
    if not isinstance(node.element, (Name, Relation)):
        return None
    conditions = [item for item in node.conditions if not _is_membership_of_reals(item)]
    if isinstance(node.element, Relation) and not _is_membership_of_reals(node.element):
        return None
    if not conditions:
        return _raw(REALS)
    return _intersection([pieces(lowered(item)) for item in conditions])


def _is_membership_of_reals(node: Node) -> bool:
    return isinstance(node, Relation) and node.ops == ("∈",) and node.terms[1] in (Name("bb R"), Name("R"))


def _related(node: Relation) -> list[Piece] | None:
    """`x < 2`, `1 ≤ x < 2`, `x ≠ 3`, `x ∈ S`, `x = 2`: the unknown stands alone in one term."""
    if node.ops == ("∈",):
        return _raw(node.terms[1]) if isinstance(node.terms[0], Name) else None
    unknown = [at for at, term in enumerate(node.terms) if isinstance(term, Name) and term != INFINITY]
    if len(node.terms) == 2 and len(unknown) == 1:
        at = unknown[0]
        sign = node.ops[0] if at == 0 else _FLIPPED.get(node.ops[0])
        return _half_line(sign, node.terms[1 - at])
    if len(node.terms) == 2 and unknown and float_value(node.terms[1]) is None:
        return _half_line(node.ops[0], node.terms[1])
    if len(node.terms) == 3 and isinstance(node.terms[1], Name):
        low, _, high = node.terms
        signs = node.ops
        if signs[0] in (">", "≥"):
            low, high, signs = high, low, (_FLIPPED[signs[1]], _FLIPPED[signs[0]])
        if signs[0] in ("<", "≤") and signs[1] in ("<", "≤"):
            return [_piece(low, signs[0] == "≤", high, signs[1] == "≤")]
    return None


def _half_line(sign: str | None, bound: Node) -> list[Piece] | None:
    match sign:
        case "<" | "≤":
            return [_piece(MINUS_INFINITY, False, bound, sign == "≤")]
        case ">" | "≥":
            return [_piece(bound, sign == "≥", INFINITY, False)]
        case "≠":
            return [_piece(MINUS_INFINITY, False, bound, False), _piece(bound, False, INFINITY, False)]
        case "=":
            return [_piece(bound, True, bound, True)]
    return None


def _piece(low: Node, low_closed: bool, high: Node, high_closed: bool) -> Piece:
    return Piece(low, low_closed, high, high_closed, _float(low, -math.inf), _float(high, math.inf))


def _float(node: Node, infinite: float) -> float | None:
    if node in (INFINITY, Apply("+", (INFINITY,))):
        return math.inf
    if node == MINUS_INFINITY:
        return -math.inf
    return float_value(node)


def _merged(found: list[Piece]) -> list[Piece]:
    ordered = sorted(found, key=lambda piece: (piece.low_float or 0.0, not piece.low_closed, piece.high_float or 0.0))
    result: list[Piece] = []
    for piece in ordered:
        assert piece.low_float is not None and piece.high_float is not None
        if piece.low_float > piece.high_float or (_is_point(piece) and not (piece.low_closed and piece.high_closed)):
            continue
        last = result[-1] if result else None
        if last is not None and _touches(last, piece):
            if _reaches_further(piece, last):
                result[-1] = last._replace(high=piece.high, high_closed=piece.high_closed, high_float=piece.high_float)
            continue
        result.append(piece)
    return result


def _is_reversed(piece: Piece) -> bool:
    """Whether the ends stand the wrong way round: then it was never meant as an interval."""
    return piece.low_float is not None and piece.high_float is not None and piece.low_float > piece.high_float


def _is_point(piece: Piece) -> bool:
    return piece.low_float == piece.high_float


def _touches(last: Piece, piece: Piece) -> bool:
    assert last.high_float is not None and piece.low_float is not None
    if math.isclose(last.high_float, piece.low_float, rel_tol=1e-12):
        return last.high_closed or piece.low_closed
    return piece.low_float < last.high_float


def _reaches_further(piece: Piece, last: Piece) -> bool:
    assert last.high_float is not None and piece.high_float is not None
    if piece.high_float == last.high_float:
        return piece.high_closed and not last.high_closed
    return piece.high_float > last.high_float


def _complement(found: list[Piece]) -> list[Piece] | None:
    result: list[Piece] = []
    low, low_closed = MINUS_INFINITY, False
    for piece in found:
        if piece.low_float != -math.inf:
            result.append(_piece(low, low_closed, piece.low, not piece.low_closed))
        low, low_closed = piece.high, not piece.high_closed
        if piece.high_float == math.inf:
            return result
    result.append(_piece(low, low_closed, INFINITY, False))
    return result


def _intersection(parts: list[list[Piece] | None]) -> list[Piece] | None:
    result: list[Piece] | None = None
    for part in parts:
        if part is None or any(piece.low_float is None or piece.high_float is None for piece in part):
            if part is not None and len(parts) == 1:
                return part
            return None
        result = part if result is None else [_overlap(one, other) for one in result for other in part]
    return _merged(result) if result is not None else None


def _overlap(one: Piece, other: Piece) -> Piece:
    def key_low(piece: Piece) -> tuple[float, bool]:
        return (piece.low_float or 0.0, not piece.low_closed)

    def key_high(piece: Piece) -> tuple[float, bool]:
        return (piece.high_float or 0.0, piece.high_closed)

    low, high = max(one, other, key=key_low), min(one, other, key=key_high)
    return Piece(low.low, low.low_closed, high.high, high.high_closed, low.low_float, high.high_float)
