"""Containers: unordered lists and sets; ordered tuples, matrices and ratios."""

from graders.equivalence.arithmetic.sample_points import float_value
from graders.equivalence.canonical.canonicalize import (
    is_container,
    split_at_commas,
    split_label,
    strip_label,
    vector_entries,
)
from graders.equivalence.compare.comparison import Compare, Comparison, combine, incomparable
from graders.equivalence.compare.scalars import is_scalar
from graders.parsing.tree import Apply, Interval, List, Matrix, Node, Quantity, Ratio, Set, Tuple


def compare_containers(compare: Compare, answer: Node, reference: Node) -> Comparison:
    """Compare two trees of which at least one is a container."""
    answer, reference = split_at_commas(answer), split_at_commas(reference)
    if isinstance(answer, Ratio) or isinstance(reference, Ratio):
        return _ratios(compare, answer, reference)
    if isinstance(answer, Matrix) and isinstance(reference, Matrix):
        return _matrices(compare, answer, reference)
    listed = isinstance(answer, Interval) and not isinstance(reference, Tuple)
    if listed and isinstance(answer, Interval) and answer.low_closed and answer.high_closed:
        answer = List((answer.low, answer.high))
    left, right = _items(answer), _items(reference)
    if left is None or right is None:
        return _single(compare, answer, reference)
    if all(split_label(item) for item in left) != all(split_label(item) for item in right):
        left, right = tuple(map(strip_label, left)), tuple(map(strip_label, right))
    if _is_ordered(reference) or _is_ordered(answer):
        if isinstance(answer, Set) or isinstance(reference, Set):
            return Comparison(False, "structure", "a set has no order and a tuple has one")
        return ordered(compare, left, right)
    if isinstance(reference, Set) or isinstance(answer, Set):
        left, right = _distinct(compare, left), _distinct(compare, right)
    return unordered(compare, left, right)


def _single(compare: Compare, answer: Node, reference: Node) -> Comparison:
    """Compare a container of one distinct value with a value."""
    for node, other, forward in ((answer, reference, True), (reference, answer, False)):
        # A reference `-2, -2` requires both values; an answer may repeat one.
        repeats = isinstance(node, Set) or (isinstance(node, List) and node is answer)
        if isinstance(node, (Set, List)) and repeats and not is_container(other):
            distinct = _distinct(compare, node.items)
            if len(distinct) == 1:
                return compare(distinct[0], other) if forward else compare(other, distinct[0])
    return incomparable(answer, reference)


def _distinct(compare: Compare, items: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the items without repetitions."""
    kept: list[tuple[Node, float | None]] = []
    for item in items:
        size = _size(item)
        if not any(_may_be_equal(size, other, 1e-6) and compare(item, node).equal for node, other in kept):
            kept.append((item, size))
    return tuple(node for node, _ in kept)


def ordered(compare: Compare, left: tuple[Node, ...], right: tuple[Node, ...]) -> Comparison:
    """Compare the items pairwise, in order."""
    if len(left) != len(right):
        return _different_lengths(left, right)
    parts: list[Comparison] = []
    for one, other in zip(left, right, strict=True):
        parts.append(compare(one, other))
        if parts[-1].equal is False:
            break
    return combine(parts)


def unordered(compare: Compare, left: tuple[Node, ...], right: tuple[Node, ...]) -> Comparison:
    """Find for each item of `right` an equal item of `left`, without using one twice."""
    if len(left) != len(right):
        return _different_lengths(left, right)
    rest, parts = [(item, _size(item)) for item in left], []
    for item in right:
        size = _size(item)
        for at, (candidate, other) in enumerate(rest):
            found = compare(candidate, item) if _may_be_equal(size, other, 0.05) else None
            if found is not None and found.equal:
                parts.append(found)
                del rest[at]
                break
        else:
            return Comparison(False, "structure", "an item of the reference is missing from the answer")
    return combine(parts)


def _matrices(compare: Compare, answer: Matrix, reference: Matrix) -> Comparison:
    if (len(answer.rows), len(answer.rows[0])) != (len(reference.rows), len(reference.rows[0])):
        return Comparison(False, "structure", "the matrices have different shapes")
    return ordered(
        compare,
        tuple(item for row in answer.rows for item in row),
        tuple(item for row in reference.rows for item in row),
    )


def _ratios(compare: Compare, answer: Node, reference: Node) -> Comparison:
    """Compare ratios up to a common factor, and a ratio of two terms with a quotient."""
    if isinstance(answer, Ratio) and isinstance(reference, Ratio):
        if len(answer.items) != len(reference.items):
            return _different_lengths(answer.items, reference.items)
        crossed = [
            compare(Apply("*", (one, reference.items[0])), Apply("*", (other, answer.items[0])))
            for one, other in zip(answer.items, reference.items, strict=True)
        ]
        return combine(crossed)
    ratio, other = (answer, reference) if isinstance(answer, Ratio) else (reference, answer)
    if isinstance(ratio, Ratio) and len(ratio.items) == 2 and is_scalar(other):
        quotient = Apply("/", ratio.items)
        return compare(quotient, other) if ratio is answer else compare(other, quotient)
    return incomparable(answer, reference)


def _size(node: Node) -> float | None:
    """Return a double close to a plain value; None for anything else, and for quantities, which may be converted."""
    return float_value(node) if is_scalar(node) and not isinstance(node, Quantity) else None


def _may_be_equal(one: float | None, other: float | None, max_gap: float) -> bool:
    """Return False if two values differ by more than any rounding, so a comparison is unnecessary."""
    return one is None or other is None or abs(one - other) <= max_gap * max(abs(one), abs(other)) + 1e-9


def _items(node: Node) -> tuple[Node, ...] | None:
    if isinstance(node, (List, Set, Tuple)):
        return node.items
    return vector_entries(node)


def _different_lengths(left: tuple[Node, ...], right: tuple[Node, ...]) -> Comparison:
    return Comparison(False, "structure", f"the answer has {len(left)} items; the reference has {len(right)}")


def _is_ordered(node: Node) -> bool:
    return isinstance(node, (Tuple, Matrix))
