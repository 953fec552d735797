r"""Statements: labels in front of values, calculations, equations, inequalities and chains."""

from graders.equivalence.canonical.canonicalize import INEQUALITIES, assignments, is_collection, label_and_value
from graders.equivalence.compare.collections import compare_collections
from graders.equivalence.compare.comparison import Compare, Comparison, joined, mismatch
from graders.equivalence.compare.real_sets import compare_solutions, is_solution_set, pieces
from graders.equivalence.compare.scalars import close_enough, compare_equations, compare_scalars, is_scalar
from graders.equivalence.compare.unsolved_inequalities import compare_unsolved
from graders.parsing.tree import Apply, List, Name, Node, Relation, Text, names

_DY_DX = Name("dy/dx")


def compare_relations(compare: Compare, answer: Node, reference: Node) -> Comparison:
    """Compare two trees of which at least one is a statement."""
    if is_trivial(answer):
        return Comparison(False, "structure", "the statement holds for any value")
    if isinstance(answer, Relation) and isinstance(reference, Relation):
        return _two_relations(compare, answer, reference)
    if isinstance(reference, Relation):
        found = label_and_value(reference)
        if found is not None:
            if isinstance(answer, List) and assignments(reference) is not reference:
                return compare(answer, assignments(reference))
            return compare(answer, found[1])
    if isinstance(answer, Relation):
        found = label_and_value(answer)
        if found is not None and _consistent(answer):
            if isinstance(reference, List) and assignments(answer) is not answer:
                return compare(assignments(answer), reference)
            return compare(found[1], reference)
        computed = _computed(answer)
        if computed is not None:
            return compare(computed, reference)
    sets = is_solution_set(answer) or is_solution_set(reference)
    if not sets and (is_collection(answer) or is_collection(reference)):
        return compare_collections(compare, answer, reference)
    found = compare_solutions(answer, reference) or _unsolved(answer, reference)
    return found or mismatch(answer, reference)


def _consistent(chain: Relation) -> bool:
    """Whether the values of `x = a = b` are equal: a chain that contradicts itself states nothing."""
    values = chain.terms[1:] if len(chain.terms) > 2 else ()
    return all(
        close_enough(one, other) if sign == "≈" else compare_scalars(one, other).equal is not False
        for sign, one, other in zip(chain.ops[1:], values, values[1:], strict=False)
        if is_scalar(one) and is_scalar(other)
    )


def _computed(chain: Relation) -> Node | None:
    """The value of `2 + 3 = 5`, a calculation that holds; None for anything else."""
    if set(chain.ops) - {"=", "≈"} or not all(is_scalar(term) for term in chain.terms):
        return None
    exact = [term for term, sign in zip(chain.terms, ("=", *chain.ops), strict=True) if sign == "="]
    if not _consistent(Relation(("=", *chain.ops), (exact[0], *chain.terms))):
        return None
    return exact[-1]


def _two_relations(compare: Compare, answer: Relation, reference: Relation) -> Comparison:
    left, right = label_and_value(answer), label_and_value(reference)
    if left is not None and right is not None and _same_label(left, right):
        return compare(left[1], right[1])
    if set(answer.ops) == {"="} and set(reference.ops) == {"="} and len(answer.ops) == len(reference.ops) == 1:
        return compare_equations(_difference(answer), _difference(reference))
    if is_solution_set(answer) and is_solution_set(reference):
        found = compare_solutions(answer, reference)
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
    return joined([compare(a, b) for a, b in zip(one.terms, other.terms, strict=True)])


def _inequalities(answer: Relation, reference: Relation) -> Comparison:
    one, other = _ascending(answer), _ascending(reference)
    if one.ops != other.ops:
        return Comparison(False, "structure", "the relations have different signs")
    return compare_equations(_difference(one), _difference(other), positive=one.ops[0] != "≠")


def _unsolved(answer: Node, reference: Node) -> Comparison | None:
    """Compare an inequality that is not solved with a set that is; None where neither side is such an inequality."""
    for relation, other in ((answer, reference), (reference, answer)):
        if isinstance(relation, Relation) and pieces(relation) is None and (solved := pieces(other)) is not None:
            return compare_unsolved(relation, solved)
    return None


def is_trivial(node: Node) -> bool:
    """Whether the node is a statement such as `5 = 5`, which names no value."""
    return isinstance(node, Relation) and len(node.terms) == 2 and node.terms[0] == node.terms[1]


def _difference(relation: Relation) -> Node:
    return Apply("+", (relation.terms[0], Apply("neg", (relation.terms[1],))))


def _ascending(relation: Relation) -> Relation:
    """The chain turned so that its first sign is `<` or `≤`."""
    flipped = {">": "<", "≥": "≤", "<": ">", "≤": "≥"}
    if relation.ops[0] in (">", "≥"):
        return Relation(
            tuple(flipped.get(sign, sign) for sign in reversed(relation.ops)), tuple(reversed(relation.terms))
        )
    return relation


def _same_label(left: tuple[Node, Node], right: tuple[Node, Node]) -> bool:
    """Whether two labels may name one value: they are equal, one is words, or one is `y` and the other `f(x)`.

    So are `y'` and `f'(x)`, and `dy/dx` is either.
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
    """How often `y` is differentiated in `y`, `y'`, `dy/dx`; None for another label."""
    if label == _DY_DX:
        return 1
    letter, primes = _without_primes(label)
    return primes if letter == Name("y") else None


def _order_of_function(label: Node, value: Node) -> int | None:
    """How often a function is differentiated in `f(x)`, `f'(x)`; None for what is no function of the value's names."""
    return _without_primes(label.args[0])[1] if isinstance(label, Apply) and _is_applied(label, value) else None


def _without_primes(node: Node) -> tuple[Node, int]:
    """A name without its primes, and their number."""
    num_primes = 0
    while isinstance(node, Name) and node.text.endswith("prime"):
        node, num_primes = Name(node.text.removesuffix("prime")), num_primes + 1
    return node, num_primes


def _is_applied(label: Node, value: Node) -> bool:
    """Whether the label is a function of what its value depends on, as in `P(x) = 2x + 1`."""
    if not isinstance(label, Apply) or label.op not in ("call", "*"):
        return False
    inner = [name for argument in label.args[1:] for name in names(argument)]
    return bool(inner) and all(name in names(value) for name in inner)
