"""Sets of real numbers: intervals, unions, inequalities, set-builders and points as sorted disjoint intervals."""

import math
from typing import NamedTuple

from graders.equivalence.arithmetic.sample_points import float_value
from graders.equivalence.canonical.canonicalize import INEQUALITIES, canonicalize, pair_as_interval
from graders.equivalence.compare.comparison import Comparison, combine
from graders.equivalence.compare.scalars import compare_scalars
from graders.parsing.tree import Apply, Builder, Interval, List, Name, Node, Relation, Set, Text, Tuple

INFINITY = Name("infinity")
MINUS_INFINITY = Apply("neg", (INFINITY,))
REALS = Interval(MINUS_INFINITY, INFINITY, False, False)
_FLIPPED = {"<": ">", ">": "<", "≤": "≥", "≥": "≤", "≠": "≠", "=": "="}
_NUMBER_SETS = frozenset({"bb R", "R"})


class RealInterval(NamedTuple):
    """An interval with its ends also as doubles, which are None for ends that are not constants."""

    low: Node
    low_closed: bool
    high: Node
    high_closed: bool
    low_float: float | None
    high_float: float | None

    @property
    def is_numeric(self) -> bool:
        """True if both ends are constants."""
        return self.low_float is not None and self.high_float is not None


def is_real_set(node: Node) -> bool:
    """Return True if the node can only be a set of real numbers."""
    match node:
        case Interval() | Builder() | Name(text="bb R") | Apply(op="union" | "intersection" | "difference"):
            return True
        case Apply(op="and" | "or", args=args):
            return all(is_real_set(item) or isinstance(item, Relation) for item in args)
        case Relation(ops=(sign, *_)):
            return sign in INEQUALITIES or sign == "∈"
    return False


def compare_real_sets(answer: Node, reference: Node) -> Comparison | None:
    """Compare two sets of real numbers; None if one of the nodes is not such a set or is not supported."""
    left, right = as_intervals(answer), as_intervals(reference)
    if left is None or right is None:
        return None
    if len(left) != len(right):
        return Comparison(False, "structure", f"the answer has {len(left)} intervals; the reference has {len(right)}")
    if not all(interval.is_numeric for interval in (*left, *right)):
        return _match_unordered(left, right)
    return combine([_compare_ends(one, other) for one, other in zip(left, right, strict=True)])


def _match_unordered(left: list[RealInterval], right: list[RealInterval]) -> Comparison:
    rest = list(left)
    for interval in right:
        for candidate in rest:
            if _compare_ends(candidate, interval).equal:
                rest.remove(candidate)
                break
        else:
            return Comparison(False, "structure", "an interval of the reference is missing")
    return Comparison(True, "structure", "the same intervals")


def _compare_ends(one: RealInterval, other: RealInterval) -> Comparison:
    if (one.low_closed, one.high_closed) != (other.low_closed, other.high_closed):
        return Comparison(False, "structure", "an end is open in one interval and closed in the other")
    return combine([compare_scalars(one.low, other.low), compare_scalars(one.high, other.high)])


def as_intervals(node: Node) -> list[RealInterval] | None:
    """Return the set as sorted disjoint intervals, adjacent ones merged; None if the node is not supported."""
    found = _unmerged(node)
    return _merged(found) if found is not None and all(interval.is_numeric for interval in found) else found


def _unmerged(node: Node) -> list[RealInterval] | None:
    node = pair_as_interval(node)
    match node:
        case Interval(low=low, high=high):
            interval = _interval(low, node.low_closed, high, node.high_closed)
            return None if _is_reversed(interval) else [interval]
        case Name(text=text) if text in _NUMBER_SETS:
            return _unmerged(REALS)
        case Text(text="all real numbers"):
            return _unmerged(REALS)
        case Set(items=items):
            return [_interval(item, True, item, True) for item in items]
        case Apply(op="union", args=args) | Apply(op="or", args=args):
            return _union(args)
        case Apply(op="intersection", args=args) | Apply(op="and", args=args):
            return _intersection([as_intervals(item) for item in args])
        case Apply(op="difference", args=(whole, removed)):
            without = as_intervals(removed)
            return None if without is None else _intersection([as_intervals(whole), _complement(without)])
        case Builder():
            return _from_builder(node)
        case Relation():
            return _from_relation(node)
        case List(items=items) if all(isinstance(item, (Relation, Interval, Tuple)) for item in items):
            return _from_list(items)
    return None


def _from_list(items: tuple[Node, ...]) -> list[RealInterval] | None:
    """Return the union of the items, minus points excluded by `x ≠ 3`.

    If the union is the whole real line, as for `x ≥ 2, x < 5`, return the intersection instead.
    """
    excluded = [item for item in items if isinstance(item, Relation) and item.ops == ("≠",)]
    rest = tuple(item for item in items if item not in excluded)
    found = _union(rest) if rest else None
    if found is None:
        return None if rest else _intersection([as_intervals(item) for item in excluded])
    if not all(interval.is_numeric for interval in found):
        return None if excluded else found
    found = _merged(found)
    if len(rest) > 1 and found == _unmerged(REALS):
        found = _intersection([as_intervals(item) for item in rest])
    return _intersection([found, *(as_intervals(item) for item in excluded)]) if excluded else found


def _union(items: tuple[Node, ...]) -> list[RealInterval] | None:
    found: list[RealInterval] = []
    for item in items:
        part = _unmerged(item)
        if part is None:
            return None
        found.extend(part)
    return found


def _from_builder(node: Builder) -> list[RealInterval] | None:
    if not isinstance(node.element, (Name, Relation)):
        return None
    conditions = [item for item in node.conditions if not _is_membership_of_reals(item)]
    if isinstance(node.element, Relation) and not _is_membership_of_reals(node.element):
        return None
    if not conditions:
        return _unmerged(REALS)
    return _intersection([as_intervals(canonicalize(item)) for item in conditions])


def _is_membership_of_reals(node: Node) -> bool:
    return isinstance(node, Relation) and node.ops == ("∈",) and node.terms[1] in (Name("bb R"), Name("R"))


def _from_relation(node: Relation) -> list[RealInterval] | None:
    """Return the set of `x < 2`, `1 ≤ x < 2`, `x ≠ 3`, `x ∈ S` or `x = 2`, where one term is the unknown itself."""
    if node.ops == ("∈",):
        return _unmerged(node.terms[1]) if isinstance(node.terms[0], Name) else None
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
            return [_interval(low, signs[0] == "≤", high, signs[1] == "≤")]
    return None


def _half_line(sign: str | None, bound: Node) -> list[RealInterval] | None:
    match sign:
        case "<" | "≤":
            return [_interval(MINUS_INFINITY, False, bound, sign == "≤")]
        case ">" | "≥":
            return [_interval(bound, sign == "≥", INFINITY, False)]
        case "≠":
            return [_interval(MINUS_INFINITY, False, bound, False), _interval(bound, False, INFINITY, False)]
        case "=":
            return [_interval(bound, True, bound, True)]
    return None


def _interval(low: Node, low_closed: bool, high: Node, high_closed: bool) -> RealInterval:
    return RealInterval(low, low_closed, high, high_closed, _float(low), _float(high))


def _float(node: Node) -> float | None:
    if node in (INFINITY, Apply("+", (INFINITY,))):
        return math.inf
    if node == MINUS_INFINITY:
        return -math.inf
    return float_value(node)


def _merged(found: list[RealInterval]) -> list[RealInterval]:
    result: list[RealInterval] = []
    for one in sorted(found, key=lambda one: (one.low_float or 0.0, not one.low_closed, one.high_float or 0.0)):
        if _is_reversed(one) or (_is_point(one) and not (one.low_closed and one.high_closed)):
            continue
        last = result[-1] if result else None
        if last is None or not _touches(last, one):
            result.append(one)
        elif _reaches_further(one, last):
            result[-1] = last._replace(high=one.high, high_closed=one.high_closed, high_float=one.high_float)
    return result


def _is_reversed(interval: RealInterval) -> bool:
    """Return True if the low end is above the high end, so the node is not an interval."""
    low, high = interval.low_float, interval.high_float
    return low is not None and high is not None and low > high


def _is_point(interval: RealInterval) -> bool:
    return interval.low_float == interval.high_float


def _touches(last: RealInterval, interval: RealInterval) -> bool:
    assert last.high_float is not None and interval.low_float is not None
    if math.isclose(last.high_float, interval.low_float, rel_tol=1e-12):
        return last.high_closed or interval.low_closed
    return interval.low_float < last.high_float


def _reaches_further(interval: RealInterval, last: RealInterval) -> bool:
    assert last.high_float is not None and interval.high_float is not None
    if interval.high_float == last.high_float:
        return interval.high_closed and not last.high_closed
    return interval.high_float > last.high_float


def _complement(found: list[RealInterval]) -> list[RealInterval] | None:
    result: list[RealInterval] = []
    low, low_closed = MINUS_INFINITY, False
    for interval in found:
        if interval.low_float != -math.inf:
            result.append(_interval(low, low_closed, interval.low, not interval.low_closed))
        low, low_closed = interval.high, not interval.high_closed
        if interval.high_float == math.inf:
            return result
    result.append(_interval(low, low_closed, INFINITY, False))
    return result


def _intersection(parts: list[list[RealInterval] | None]) -> list[RealInterval] | None:
    result: list[RealInterval] | None = None
    for part in parts:
        if part is None or not all(interval.is_numeric for interval in part):
            return part if len(parts) == 1 else None
        result = part if result is None else [_overlap(one, other) for one in result for other in part]
    return _merged(result) if result is not None else None


def _overlap(one: RealInterval, other: RealInterval) -> RealInterval:
    def key_low(interval: RealInterval) -> tuple[float, bool]:
        return (interval.low_float or 0.0, not interval.low_closed)

    def key_high(interval: RealInterval) -> tuple[float, bool]:
        return (interval.high_float or 0.0, interval.high_closed)

    low, high = max(one, other, key=key_low), min(one, other, key=key_high)
    return RealInterval(low.low, low.low_closed, high.high, high.high_closed, low.low_float, high.high_float)
