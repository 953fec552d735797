r"""Sets given by a formula with integer parameters: `x = 3k, k ∈ Z` equals `{3n | n ∈ Z}`."""

from typing import Any, NamedTuple, cast

from graders.equivalence.arithmetic.certified import evaluate_at, variables
from graders.equivalence.canonical.canonicalize import value_of
from graders.equivalence.compare.comparison import Comparison
from graders.equivalence.compare.scalars import compare_scalars, is_scalar
from graders.parsing.tree import Apply, Builder, List, Name, Node, Relation

_WHOLE_SETS = frozenset({"bb Z", "Z", "bb N", "N"})
_CLOSE = 1e-30


class Family(NamedTuple):
    """A value and the parameter that runs over a set of whole numbers."""

    value: Node
    parameter: str
    domain: str


def family(node: Node) -> Family | None:
    """The family that a node describes, or None."""
    if isinstance(node, Builder):
        items, element = node.conditions, node.element
    elif isinstance(node, List) and without_parameters(node) is not node:
        element, items = node.items[0], node.items[1:]
    else:
        return None
    value = value_of(element)
    domain: tuple[str, str] | None = None
    for item in items:
        if _is_membership(item):
            assert isinstance(item, Relation)
            domain = _text(item.terms[0]), _text(item.terms[1])
        elif isinstance(item, Relation) and item.ops == ("=",) and item.terms[0] == element:
            value = item.terms[1]
        else:
            return None
    return None if domain is None or not is_scalar(value) else Family(value, *domain)


def without_parameters(node: Node) -> Node:
    """The node without a clause such as `k ∈ Z` behind it: the names in front keep their meaning."""
    if isinstance(node, List) and len(node.items) == 2 and _is_membership(node.items[1]):
        return node.items[0]
    return node


def _is_membership(node: Node) -> bool:
    return (
        isinstance(node, Relation)
        and node.ops == ("∈",)
        and isinstance(node.terms[0], Name)
        and isinstance(node.terms[1], Name)
        and node.terms[1].text in _WHOLE_SETS
    )


def _text(node: Node) -> str:
    assert isinstance(node, Name)
    return node.text.removeprefix("bb ")


def compare_families(answer: Node, reference: Node) -> Comparison | None:
    """Whether two families give one set; None where neither node is a family."""
    left, right = family(answer), family(reference)
    if left is None and right is None:
        return None  # neither a family of single values
    known = left or right
    assert known is not None
    left, right = left or _bare(answer, known), right or _bare(reference, known)
    if left is None or right is None or left.domain != right.domain:
        return Comparison(False, "structure", "a family of values against something else")
    value = _renamed(left.value, left.parameter, right.parameter)
    same = compare_scalars(value, right.value)
    if same.equal is not True and right.domain == "Z" and _same_progression(value, right.value, right.parameter):
        return Comparison(True, "numeric", "the same progression, counted from another place")
    return same


def _bare(node: Node, known: Family) -> Family | None:
    """A formula without a clause, read with the other side's: its one free name is the parameter."""
    value = value_of(node)
    free = variables(value) if is_scalar(value) else []
    if known.parameter in free:
        return Family(value, known.parameter, known.domain)
    return Family(value, free[0], known.domain) if len(free) == 1 else None


def _renamed(node: Node, old: str, new: str) -> Node:
    if isinstance(node, Name):
        return Name(new) if node.text == old else node
    if isinstance(node, Apply):
        return Apply(node.op, tuple(_renamed(argument, old, new) for argument in node.args))
    return node


def _same_progression(left: Node, right: Node, parameter: str) -> bool:
    """Whether two arithmetic progressions over all integers have one set of terms."""
    if set(variables(left, right)) != {parameter}:
        return False
    terms = [evaluate_at(node, {parameter: at}) for node in (left, right) for at in range(3)]
    if any(term is None for term in terms):
        return False
    a0, a1, a2, b0, b1, b2 = (cast(Any, term) for term in terms)
    step, other = a1 - a0, b1 - b0
    if step == 0 or abs(a2 - a1 - step) > _CLOSE or abs(b2 - b1 - other) > _CLOSE:
        return False
    shift = ((a0 - b0) / step).real
    return abs(abs(step) - abs(other)) < _CLOSE and abs(shift - round(float(shift))) < _CLOSE
