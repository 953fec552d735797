"""Sets given by a formula with an integer parameter: `x = 3k, k ∈ Z` equals `{3n | n ∈ Z}`."""

from fractions import Fraction
from typing import NamedTuple

from graders.equivalence.arithmetic.evaluate_tree import NoValue, TooLarge
from graders.equivalence.arithmetic.multiprecision import evaluate_multiprecision
from graders.equivalence.arithmetic.sample_points import variables
from graders.equivalence.canonical.alpha_equivalence import substitute
from graders.equivalence.canonical.canonicalize import strip_label
from graders.equivalence.compare.comparison import Comparison
from graders.equivalence.compare.scalars import compare_scalars, is_scalar
from graders.parsing.tree import Builder, List, Name, Node, Relation

_INTEGER_SETS = frozenset({"bb Z", "Z", "bb N", "N"})
_CLOSE = 1e-30


class ParametricSet(NamedTuple):
    """All values of a formula whose parameter runs over a set of integers."""

    value: Node
    parameter: str
    domain: str


def parametric_set(node: Node) -> ParametricSet | None:
    """Return the parametric set that a node describes, or None."""
    if isinstance(node, Builder):
        items, element = node.conditions, node.element
    elif isinstance(node, List) and strip_domain(node) is not node:
        element, items = node.items[0], node.items[1:]
    else:
        return None
    value = strip_label(element)
    domain: tuple[str, str] | None = None
    for item in items:
        if _is_membership(item):
            assert isinstance(item, Relation)
            domain = _set_name(item.terms[0]), _set_name(item.terms[1])
        elif isinstance(item, Relation) and item.ops == ("=",) and item.terms[0] == element:
            value = item.terms[1]
        else:
            return None
    return None if domain is None or not is_scalar(value) else ParametricSet(value, *domain)


def strip_domain(node: Node) -> Node:
    """Return the node without a final clause such as `k ∈ Z`."""
    if isinstance(node, List) and len(node.items) == 2 and _is_membership(node.items[1]):
        return node.items[0]
    return node


def _is_membership(node: Node) -> bool:
    return (
        isinstance(node, Relation)
        and node.ops == ("∈",)
        and isinstance(node.terms[0], Name)
        and isinstance(node.terms[1], Name)
        and node.terms[1].text in _INTEGER_SETS
    )


def _set_name(node: Node) -> str:
    assert isinstance(node, Name)
    return node.text.removeprefix("bb ")


def compare_parametric_sets(answer: Node, reference: Node) -> Comparison | None:
    """Compare two parametric sets; None if neither node is one."""
    left, right = parametric_set(answer), parametric_set(reference)
    if left is None and right is None:
        return None
    known = left or right
    assert known is not None
    left, right = left or _with_domain(answer, known), right or _with_domain(reference, known)
    if left is None or right is None or left.domain != right.domain:
        return Comparison(False, "structure", "a parametric set is compared with something else")
    value = substitute(left.value, left.parameter, Name(right.parameter))
    same = compare_scalars(value, right.value)
    if same.equal is not True and right.domain == "Z" and _is_same_progression(value, right.value, right.parameter):
        return Comparison(True, "numeric", "the same progression with a shifted index")
    return same


def _with_domain(node: Node, known: ParametricSet) -> ParametricSet | None:
    """Return a formula without a clause as a set over the domain of `known`; its single free name is the parameter."""
    value = strip_label(node)
    free = variables(value) if is_scalar(value) else []
    if known.parameter in free:
        return ParametricSet(value, known.parameter, known.domain)
    return ParametricSet(value, free[0], known.domain) if len(free) == 1 else None


def _is_same_progression(left: Node, right: Node, parameter: str) -> bool:
    """Return True if two arithmetic progressions over all integers have the same terms."""
    if set(variables(left, right)) != {parameter}:
        return False
    points = [{parameter: Fraction(at)} for at in range(3)]
    try:
        a0, a1, a2 = (evaluate_multiprecision(left, point) for point in points)
        b0, b1, b2 = (evaluate_multiprecision(right, point) for point in points)
    except (NoValue, ZeroDivisionError, OverflowError, TooLarge):
        return False
    step, other = a1 - a0, b1 - b0
    if step == 0 or abs(a2 - a1 - step) > _CLOSE or abs(b2 - b1 - other) > _CLOSE:
        return False
    shift = ((a0 - b0) / step).real
    return abs(abs(step) - abs(other)) < _CLOSE and abs(shift - round(float(shift))) < _CLOSE
