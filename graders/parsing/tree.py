"""Answer tree: the typed nodes that the parser returns, and their bounds.

    Number · Name · Apply              numbers, symbols, and every operation on them
    Relation · Interval · Builder      statements, and the sets that they describe
    Set · List · Tuple · Matrix        collections: unordered, unordered and bare, ordered, rows
    Ratio · Clock · Quantity           ratios, times of day, values with a unit: 3:4, 5:30 pm, 12 cm
    Cases · Choice · Text              piecewise values, option letters, words

A tree represents what was written; nothing is evaluated here.
"""

import re
from collections.abc import Iterator

import msgspec

from graders.errors import BadInput

MAX_TREE_NODES = 5_000
MAX_TREE_DEPTH = 120
MAX_DIGITS = 2_500

_NUMBER = re.compile(r"(?=[\d.]*\d)\d*(?:,\d{3})*(?:\.\d*(?:\(\d+\))?)?(?:e[+-]?\d{1,6})?")


class Number(msgspec.Struct, frozen=True, tag="number", forbid_unknown_fields=True):
    """A non-negative numeral as written: `12`, `1,000`, `0.50`, `0.1(6)` for a repeating block, `1.7e4`."""

    text: str


class Name(msgspec.Struct, frozen=True, tag="name", forbid_unknown_fields=True):
    """A variable or constant: `x`, `x_1`, `alpha`, `pi`, `e`, `i`, `infinity`."""

    text: str


class Apply(msgspec.Struct, frozen=True, tag="apply", forbid_unknown_fields=True):
    """An operation on its arguments: `+ * / ^ neg pm`, a function such as `sin`, or `union`, `sum`, `call`, ..."""

    op: str
    args: "tuple[Node, ...]"


class Relation(msgspec.Struct, frozen=True, tag="relation", forbid_unknown_fields=True):
    """A chain of n + 1 terms joined by n of `= ≠ < > ≤ ≥ ≈ ∈`."""

    ops: tuple[str, ...]
    terms: "tuple[Node, ...]"


class Interval(msgspec.Struct, frozen=True, tag="interval", forbid_unknown_fields=True):
    """The numbers from `low` to `high`; at least one end is written closed, or the context requires an interval."""

    low: "Node"
    high: "Node"
    low_closed: bool
    high_closed: bool


class Builder(msgspec.Struct, frozen=True, tag="builder", forbid_unknown_fields=True):
    """`{element | conditions}`."""

    element: "Node"
    conditions: "tuple[Node, ...]"


class Set(msgspec.Struct, frozen=True, tag="set", forbid_unknown_fields=True):
    """Items in braces: order and repetition do not matter."""

    items: "tuple[Node, ...]"


class List(msgspec.Struct, frozen=True, tag="list", forbid_unknown_fields=True):
    """Items without brackets, joined by commas, "and" or "or": order does not matter, repetition does."""

    items: "tuple[Node, ...]"


class Tuple(msgspec.Struct, frozen=True, tag="tuple", forbid_unknown_fields=True):
    """Items in parentheses or angle brackets: order matters."""

    items: "tuple[Node, ...]"


class Ratio(msgspec.Struct, frozen=True, tag="ratio", forbid_unknown_fields=True):
    """`a:b:c`: order matters, a common factor does not."""

    items: "tuple[Node, ...]"


class Matrix(msgspec.Struct, frozen=True, tag="matrix", forbid_unknown_fields=True):
    """Rows of equal length; a vector is a matrix of one column or one row."""

    rows: "tuple[tuple[Node, ...], ...]"


class Cases(msgspec.Struct, frozen=True, tag="cases", forbid_unknown_fields=True):
    """Pairs of a value and the condition under which it holds."""

    branches: "tuple[tuple[Node, Node], ...]"


class Clock(msgspec.Struct, frozen=True, tag="clock", forbid_unknown_fields=True):
    """A time of day, as seconds since midnight; `half` is `am`, `pm` or empty if not stated."""

    seconds: int
    half: str


class Choice(msgspec.Struct, frozen=True, tag="choice", forbid_unknown_fields=True):
    """An option letter and the text of the option, if any."""

    letter: str
    content: "Node | None" = None


class Text(msgspec.Struct, frozen=True, tag="text", forbid_unknown_fields=True):
    """Words in canonical form: lower case, single spaces, no punctuation."""

    text: str


class Quantity(msgspec.Struct, frozen=True, tag="quantity", forbid_unknown_fields=True):
    """A value with a unit: `cm^2`, `%`, `degree`, `$`, `base 9`, or any counted word."""

    value: "Node"
    unit: str


Node = (
    Number
    | Name
    | Apply
    | Relation
    | Interval
    | Builder
    | Set
    | List
    | Tuple
    | Ratio
    | Matrix
    | Cases
    | Clock
    | Choice
    | Text
    | Quantity
)


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes directly below `node`, left to right."""
    match node:
        case Apply(args=items) | Set(items=items) | List(items=items) | Tuple(items=items) | Ratio(items=items):
            return items
        case Relation(terms=terms):
            return terms
        case Interval(low=low, high=high):
            return (low, high)
        case Builder(element=element, conditions=conditions):
            return (element, *conditions)
        case Matrix(rows=rows):
            return tuple(item for row in rows for item in row)
        case Cases(branches=branches):
            return tuple(item for pair in branches for item in pair)
        case Choice(content=content):
            return () if content is None else (content,)
        case Quantity(value=value):
            return (value,)
    return ()


def walk(node: Node) -> Iterator[tuple[Node, int]]:
    """Yield every node of the tree with its depth, first the root at depth 1."""
    stack: list[tuple[Node, int]] = [(node, 1)]
    while stack:
        current, depth = stack.pop()
        yield current, depth
        stack.extend((child, depth + 1) for child in children(current))


def names(node: Node) -> frozenset[str]:
    """Return the text of every `Name` in the tree."""
    return frozenset(current.text for current, _ in walk(node) if isinstance(current, Name))


def check_tree(node: Node) -> None:
    """Check a tree against the bounds on nodes, depth and digits.

    Raises:
        BadInput: the tree exceeds a bound or is malformed.
    """
    for count, (current, depth) in enumerate(walk(node), start=1):
        if count > MAX_TREE_NODES:
            raise BadInput(f"tree: expected at most {MAX_TREE_NODES} nodes, got more")
        if depth > MAX_TREE_DEPTH:
            raise BadInput(f"tree: expected a depth of at most {MAX_TREE_DEPTH}, got more")
        if isinstance(current, Number) and not (len(current.text) <= MAX_DIGITS and _NUMBER.fullmatch(current.text)):
            raise BadInput(f"tree: expected a numeral of at most {MAX_DIGITS} digits, got {current.text[:40]!r}")
        if isinstance(current, Relation) and len(current.terms) != len(current.ops) + 1:
            raise BadInput(f"tree: expected {len(current.ops) + 1} terms in a relation, got {len(current.terms)}")
        if isinstance(current, Matrix) and len({len(row) for row in current.rows}) > 1:
            raise BadInput("tree: expected matrix rows of equal length, got a ragged matrix")
