"""Relations: labelled values, calculations, equations, inequalities and chains."""

from graders.equivalence.canonical.canonicalize import INEQUALITIES, is_container, split_assignment, split_label
from graders.equivalence.compare.comparison import Compare, Comparison, combine, incomparable
from graders.equivalence.compare.containers import compare_containers
from graders.equivalence.compare.real_sets import as_intervals, compare_real_sets, is_real_set
from graders.equivalence.compare.scalars import approximately_equal, compare_equations, compare_scalars, is_scalar
from graders.equivalence.compare.unsolved_inequalities import compare_unsolved_inequality
from graders.parsing.tree import Apply, List, Name, Node, Relation, Text, names

_DY_DX = Name("dy/dx")


def compare_relations(compare: Compare, answer: Node, reference: Node) -> Comparison:
    """Compare two trees of which at least one is a relation."""
    if is_trivial(answer):
        return Comparison(False, "structure", "the two sides of the relation are identical, so it states no value")
    if isinstance(answer, Relation) and isinstance(reference, Relation):
        return _two_relations(compare, answer, reference)
    if isinstance(reference, Relation):
        found = split_label(reference)
        if found is not None:
            if isinstance(answer, List) and split_assignment(reference) is not reference:
                return compare(answer, split_assignment(reference))
            return compare(answer, found[1])
    if isinstance(answer, Relation):
        found = split_label(answer)
        if found is not None and _consistent(answer):
            if isinstance(reference, List) and split_assignment(answer) is not answer:
                return compare(split_assignment(answer), reference)
            return compare(found[1], reference)
        computed = _computed(answer)
        if computed is not None:
            return compare(computed, reference)
    sets = is_real_set(answer) or is_real_set(reference)
    if not sets and (is_container(answer) or is_container(reference)):
        return compare_containers(compare, answer, reference)
    found = compare_real_sets(answer, reference) or _unsolved(answer, reference)
    return found or incomparable(answer, reference)


def _consistent(chain: Relation) -> bool:
    """Return False if two neighbouring values of a chain such as `x = a = b` are known to differ."""
    values = chain.terms[1:] if len(chain.terms) > 2 else ()
    return all(
        approximately_equal(one, other) if sign == "≈" else compare_scalars(one, other).equal is not False
        for sign, one, other in zip(chain.ops[1:], values, values[1:], strict=False)
        if is_scalar(one) and is_scalar(other)
    )


def _computed(chain: Relation) -> Node | None:
    """Return the value of a correct calculation such as `2 + 3 = 5`; None for anything else."""
    if set(chain.ops) - {"=", "≈"} or not all(is_scalar(term) for term in chain.terms):
        return None
    exact = [term for term, sign in zip(chain.terms, ("=", *chain.ops), strict=True) if sign == "="]
    if not _consistent(Relation(("=", *chain.ops), (exact[0], *chain.terms))):
        return None
    return exact[-1]


def _two_relations(compare: Compare, answer: Relation, reference: Relation) -> Comparison:
    left, right = split_label(answer), split_label(reference)
    if left is not None and right is not None and _same_label(left, right):
        return compare(left[1], right[1])
    if set(answer.ops) == {"="} and set(reference.ops) == {"="} and len(answer.ops) == len(reference.ops) == 1:
        return compare_equations(_difference(answer), _difference(reference))
    if is_real_set(answer) and is_real_set(reference):
        found = compare_real_sets(answer, reference)
        if found is not None:
            return found
    unsolved = _unsolved(answer, reference)
    if unsolved is not None:
        return unsolved
    if len(answer.ops) == len(reference.ops) == 1 and answer.ops[0] in INEQUALITIES:
        return _inequalities(answer, reference)
    one, other = _ascending(answer), _ascending(reference)
    if one.ops != other.ops:
        return Comparison(False, "structure", "the relations have different signs")
    return combine([compare(a, b) for a, b in zip(one.terms, other.terms, strict=True)])


def _inequalities(answer: Relation, reference: Relation) -> Comparison:
    one, other = _ascending(answer), _ascending(reference)
    if one.ops != other.ops:
        return Comparison(False, "structure", "the relations have different signs")
    return compare_equations(_difference(one), _difference(other), positive=one.ops[0] != "≠")


def _unsolved(answer: Node, reference: Node) -> Comparison | None:
    """Compare an unsolved inequality with a solution set; None if neither side is an unsolved inequality."""
    for relation, other in ((answer, reference), (reference, answer)):
        if isinstance(relation, Relation) and as_intervals(relation) is None:
            solved = as_intervals(other)
            if solved is not None:
                return compare_unsolved_inequality(relation, solved)
    return None


def is_trivial(node: Node) -> bool:
    """Return True for a relation between identical terms, such as `5 = 5`."""
    return isinstance(node, Relation) and len(node.terms) == 2 and node.terms[0] == node.terms[1]


def _difference(relation: Relation) -> Node:
    return Apply("+", (relation.terms[0], Apply("neg", (relation.terms[1],))))


def _ascending(relation: Relation) -> Relation:
    """Return the chain reversed if its first sign is `>` or `≥`."""
    flipped = {">": "<", "≥": "≤", "<": ">", "≤": "≥"}
    if relation.ops[0] in (">", "≥"):
        return Relation(
            tuple(flipped.get(sign, sign) for sign in reversed(relation.ops)), tuple(reversed(relation.terms))
        )
    return relation


def _same_label(left: tuple[Node, Node], right: tuple[Node, Node]) -> bool:
    """Return True if two labels may name the same value.

    They may if they are equal, if one is words, or if they are `y` and `f(x)`, or `y'` or `dy/dx` and `f'(x)`.
    """
    (one, value), (other, other_value) = left, right
    if one == other or isinstance(one, Text) or isinstance(other, Text):
        return True
    orders = [_order_of_y(one), _order_of_y(other)]
    if orders == [None, None]:
        return False
    if orders[0] is None:
        orders[0] = _order_of_function(one, value)
    if orders[1] is None:
        orders[1] = _order_of_function(other, other_value)
    return orders[0] is not None and orders[0] == orders[1]


def _order_of_y(label: Node) -> int | None:
    """Return the order of the derivative in `y`, `y'` or `dy/dx`; None for another label."""
    if label == _DY_DX:
        return 1
    letter, primes = _without_primes(label)
    return primes if letter == Name("y") else None


def _order_of_function(label: Node, value: Node) -> int | None:
    """Return the order of the derivative in `f(x)` or `f'(x)`; None if `f` is not a function of names in the value."""
    return _without_primes(label.args[0])[1] if isinstance(label, Apply) and _is_applied(label, value) else None


def _without_primes(node: Node) -> tuple[Node, int]:
    """Return a name without its primes, and the number of primes."""
    num_primes = 0
    while isinstance(node, Name) and node.text.endswith("prime"):
        node, num_primes = Name(node.text.removesuffix("prime")), num_primes + 1
    return node, num_primes


def _is_applied(label: Node, value: Node) -> bool:
    """Return True if the label is a function of names in its value, as in `P(x) = 2x + 1`."""
    if not isinstance(label, Apply) or label.op not in ("call", "*"):
        return False
    inner = [name for argument in label.args[1:] for name in names(argument)]
    return bool(inner) and all(name in names(value) for name in inner)
