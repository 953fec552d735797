"""Answer tree: serialisation, traversal and bounds."""

import msgspec
import pytest

from graders.errors import BadInput
from graders.parsing.parse import parse
from graders.parsing.tree import (
    Apply,
    Matrix,
    Name,
    Node,
    Number,
    Relation,
    check_tree,
    children,
    names,
    walk,
)

ANSWERS = (
    "3",
    "x^2+1",
    "x=5",
    "[1,2)",
    r"\{x \mid x > 2\}",
    r"\{1,2\}",
    "1,2",
    "(1,2)",
    "3:4",
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    r"\begin{cases}1&x>0\\2&x<0\end{cases}",
    "3:30 pm",
    "(B) 12",
    r"\text{even}",
    "12 cm",
)


@pytest.mark.parametrize("answer", ANSWERS)
def test_every_kind_of_node_survives_serialisation(answer: str) -> None:
    node = parse(answer)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(node), type=Node) == node


def test_walk_yields_every_node_with_its_depth() -> None:
    node = parse("(x+1)/2")
    assert sorted((type(current).__name__, depth) for current, depth in walk(node)) == [
        ("Apply", 1),
        ("Apply", 2),
        ("Name", 3),
        ("Number", 2),
        ("Number", 3),
    ]
    assert names(node) == {"x"}
    assert children(Number("1")) == ()


def chain(depth: int) -> Node:
    node: Node = Name("x")
    for _ in range(depth):
        node = Apply("neg", (node,))
    return node


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (chain(200), "depth of at most"),
        (Apply("+", (Number("1"),) * 6_000), "at most 5000 nodes"),
        (Number("1" * 3_000), "numeral of at most"),
        (Number("12a"), "numeral of at most"),
        (Relation(("=",), (Number("1"),)), "expected 2 terms"),
        (Matrix(((Number("1"),), (Number("1"), Number("2")))), "equal length"),
    ],
)
def test_tree_beyond_a_bound_is_rejected(node: Node, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_tree(node)
