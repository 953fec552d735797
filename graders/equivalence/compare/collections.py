r"""Collections: lists and sets without order, tuples, matrices and ratios with one."""

from graders.equivalence.arithmetic.certified import float_value
from graders.equivalence.canonical.canonicalize import is_collection, label_and_value, regrouped, value_of, vector_items
from graders.equivalence.compare.comparison import Compare, Comparison, joined, mismatch
from graders.equivalence.compare.scalars import is_scalar
from graders.parsing.tree import Apply, Interval, List, Matrix, Node, Quantity, Ratio, Set, Tuple


def compare_collections(compare: Compare, answer: Node, reference: Node) -> Comparison:
    """Compare two trees of which at least one holds several values."""
    answer, reference = regrouped(answer), regrouped(reference)
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
    if all(label_and_value(item) for item in left) != all(label_and_value(item) for item in right):
        left, right = tuple(map(value_of, left)), tuple(map(value_of, right))
    if _is_ordered(reference) or _is_ordered(answer):
        if isinstance(answer, Set) or isinstance(reference, Set):
            return Comparison(False, "structure", "a set has no order and a tuple has one")
        return ordered(compare, left, right)
    if isinstance(reference, Set) or isinstance(answer, Set):
        left, right = _distinct(compare, left), _distinct(compare, right)
    return unordered(compare, left, right)


def _single(compare: Compare, answer: Node, reference: Node) -> Comparison:
    """A collection of one value is that value."""
    for node, other, forward in ((answer, reference, True), (reference, answer, False)):
        repeats = isinstance(node, Set) or (isinstance(node, List) and node is answer)  # `-2, -2` asks for both
        if isinstance(node, (Set, List)) and repeats and not is_collection(other):
            distinct = _distinct(compare, node.items)
            if len(distinct) == 1:
                return compare(distinct[0], other) if forward else compare(other, distinct[0])
    return mismatch(answer, reference)


def _distinct(compare: Compare, items: tuple[Node, ...]) -> tuple[Node, ...]:
    """The items without repetitions."""
    kept: list[tuple[Node, float | None]] = []
    for item in items:
        size = _size(item)
        if not any(_may_be_equal(size, other, 1e-6) and compare(item, node).equal for node, other in kept):
            kept.append((item, size))
    return tuple(node for node, _ in kept)


def ordered(compare: Compare, left: tuple[Node, ...], right: tuple[Node, ...]) -> Comparison:
    """Whether the items are equal one by one."""
    if len(left) != len(right):
        return Comparison(False, "structure", f"{len(left)} items against {len(right)}")
    parts: list[Comparison] = []
    for one, other in zip(left, right, strict=True):
        parts.append(compare(one, other))
        if parts[-1].equal is False:
            break
    return joined(parts)


def unordered(compare: Compare, left: tuple[Node, ...], right: tuple[Node, ...]) -> Comparison:
    """Whether the items can be paired so that each pair is equal."""
    if len(left) != len(right):
        return Comparison(False, "structure", f"{len(left)} items against {len(right)}")
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
    return joined(parts)


def _matrices(compare: Compare, answer: Matrix, reference: Matrix) -> Comparison:
    if (len(answer.rows), len(answer.rows[0])) != (len(reference.rows), len(reference.rows[0])):
        return Comparison(False, "structure", "the matrices have different shapes")
    return ordered(
        compare,
        tuple(item for row in answer.rows for item in row),
        tuple(item for row in reference.rows for item in row),
    )


def _ratios(compare: Compare, answer: Node, reference: Node) -> Comparison:
    """Ratios are equal up to a common factor; a ratio of two is also a quotient."""
    if isinstance(answer, Ratio) and isinstance(reference, Ratio):
        if len(answer.items) != len(reference.items):
            return Comparison(False, "structure", f"{len(answer.items)} terms against {len(reference.items)}")
        crossed = [
            compare(Apply("*", (one, reference.items[0])), Apply("*", (other, answer.items[0])))
            for one, other in zip(answer.items, reference.items, strict=True)
        ]
        return joined(crossed)
    ratio, other = (answer, reference) if isinstance(answer, Ratio) else (reference, answer)
    if isinstance(ratio, Ratio) and len(ratio.items) == 2 and is_scalar(other):
        quotient = Apply("/", ratio.items)
        return compare(quotient, other) if ratio is answer else compare(other, quotient)
    return mismatch(answer, reference)


def _size(node: Node) -> float | None:
    """A double close to a plain value; None for anything else, and for quantities, which have more than one reading."""
    return float_value(node) if is_scalar(node) and not isinstance(node, Quantity) else None


def _may_be_equal(one: float | None, other: float | None, apart: float) -> bool:
    """Whether two items are worth comparing: they are not where they are further apart than any rounding."""
    return one is None or other is None or abs(one - other) <= apart * max(abs(one), abs(other)) + 1e-9


def _items(node: Node) -> tuple[Node, ...] | None:
    if isinstance(node, (List, Set, Tuple)):
        return node.items
    return vector_items(node)


def _is_ordered(node: Node) -> bool:
    return isinstance(node, (Tuple, Matrix))
