"""Renaming: unit vectors, constants of integration, period counters and arguments whose letter does not matter."""

from graders.equivalence.canonical.canonicalize import is_container, vector_entries
from graders.parsing.tree import Apply, List, Matrix, Name, Node, Number, Quantity, Relation, Tuple, names

_AXES = {f"{accent}{letter}": at for at, letter in enumerate("ijk") for accent in ("", "hat ", "vec ", "bar ")}
_AXES |= {"hat imath": 0, "hat jmath": 1, "vec imath": 0, "vec jmath": 1, "imath": 0, "jmath": 1}
_CONSTANTS = frozenset({"C", "c", "K", "C_1", "C_0", "c_1", "k"})
_OPTIONS = frozenset("ABCDEFGHIJ")
_PARAMETERS = frozenset("klmn")


def unify_names(answer: Node, reference: Node) -> tuple[Node, Node] | None:
    """Return the two nodes with interchangeable names made equal; None if nothing changes."""
    left, right = names(answer), names(reference)
    if not left and not right:
        return None
    found = _vectors(answer, reference) if (left | right) & _AXES.keys() else None
    if found is None and left & _CONSTANTS and right & _CONSTANTS:
        found = _integration_constants(answer, reference)
    if found is None and left & _PARAMETERS and right & _PARAMETERS:
        found = _parameters(answer, reference)
    if found is None and isinstance(answer, Relation) and isinstance(reference, Relation):
        found = _arguments(answer, reference)
    return found


def _vectors(answer: Node, reference: Node) -> tuple[Node, Node] | None:
    left, right = _components(answer), _components(reference)
    if left is not None and right is not None:
        pair = _tuple(left, 3), _tuple(right, 3)
        return None if pair[0] == pair[1] and answer == reference else pair
    if left is not None and (size := _dimension(reference)) and not any(left[size:]):
        return _tuple(left, size), reference
    if right is not None and (size := _dimension(answer)) and not any(right[size:]):
        return answer, _tuple(right, size)
    return None


def _dimension(node: Node) -> int | None:
    """Return the number of entries of a vector of two or three entries; None for anything else."""
    items = node.items if isinstance(node, Tuple) else vector_entries(node) if isinstance(node, Matrix) else None
    return len(items) if items is not None and len(items) in (2, 3) else None


def _tuple(parts: list[Node | None], size: int) -> Tuple:
    return Tuple(tuple(part or Number("0") for part in parts[:size]))


def _components(node: Node) -> list[Node | None] | None:
    """Return the coefficients of `a i + b j + c k`, or None for anything else.

    The sum needs at least two unit vectors, or one with an accent.
    """
    if is_container(node) or not names(node) & _AXES.keys():
        return None
    terms = node.args if isinstance(node, Apply) and node.op == "+" else (node,)
    parts: list[Node | None] = [None, None, None]
    for term in terms:
        found = _component(term)
        if found is None or parts[found[0]] is not None:
            return None
        parts[found[0]] = found[1]
    accented = any(" " in name or "math" in name for name in names(node) & _AXES.keys())
    return parts if accented or sum(part is not None for part in parts) > 1 else None


def _component(term: Node) -> tuple[int, Node] | None:
    if isinstance(term, Name):
        return (_AXES[term.text], Number("1")) if term.text in _AXES else None
    if not isinstance(term, Apply):
        return None
    if term.op in ("neg", "/") and (inner := _component(term.args[0])) is not None:
        if term.op == "/":
            return None if names(term.args[1]) & _AXES.keys() else (inner[0], Apply("/", (inner[1], term.args[1])))
        return inner[0], Apply("neg", (inner[1],))
    if term.op != "*":
        return None
    axes = [at for at, part in enumerate(term.args) if isinstance(part, Name) and part.text in _AXES]
    if len(axes) != 1:
        return None
    rest = term.args[: axes[0]] + term.args[axes[0] + 1 :]
    if any(names(part) & _AXES.keys() for part in rest):
        return None
    axis = term.args[axes[0]]
    assert isinstance(axis, Name)
    return _AXES[axis.text], rest[0] if len(rest) == 1 else Apply("*", rest)


def _integration_constants(answer: Node, reference: Node) -> tuple[Node, Node] | None:
    """Rename a constant that is added once: `x^2 + C` equals `x^2 + K`."""
    left, right = _added_constant(answer), _added_constant(reference)
    if left is None or right is None or left == right:
        return None
    return (substitute(answer, left, Name(right)), reference) if right not in names(answer) else None


def _added_constant(node: Node) -> str | None:
    if not (isinstance(node, Apply) and node.op == "+"):
        return None
    found = [term.text for term in node.args if isinstance(term, Name) and term.text in _CONSTANTS]
    if len(found) != 1 or sum(_count(term, found[0]) for term in node.args) != 1:
        return None
    return found[0] if len(names(node)) > 1 else None


def _count(node: Node, name: str) -> int:
    if isinstance(node, Name):
        return node.text == name
    return sum(_count(part, name) for part in node.args) if isinstance(node, Apply) else 0


def _parameters(answer: Node, reference: Node) -> tuple[Node, Node] | None:
    """Rename the counter of a period: `pi/4 + k pi` equals `pi/4 + n pi`."""
    left, right = _period_counter(answer), _period_counter(reference)
    if left is None or right is None or left == right:
        return None
    return substitute(answer, left, Name(right)), reference


def _period_counter(node: Node) -> str | None:
    found = names(node) - {"pi", "e", "i"}
    if len(found) != 1 or not found <= _PARAMETERS or not _is_periodic(node):
        return None
    return next(iter(found))


def _is_periodic(node: Node) -> bool:
    if isinstance(node, Quantity):
        return node.unit == "degree"
    if isinstance(node, Apply):
        return node.op in ("+", "*", "/", "neg") and ("pi" in names(node) or any(map(_is_periodic, node.args)))
    return False


def _arguments(answer: Node, reference: Node) -> tuple[Node, Node] | None:
    """Rename the argument of a function: `f(t) = t^2` equals `f(x) = x^2`."""
    left, right = _argument(answer), _argument(reference)
    if left is None or right is None or left == right or right in names(answer):
        return None
    return substitute(answer, left, Name(right)), reference


def _argument(node: Node) -> str | None:
    match node:
        case Relation(ops=("=",), terms=(Apply(op="call" | "*", args=(Name(), Name(text=text))), _)):
            return text
    return None


def substitute(node: Node, name: str, value: Node) -> Node:
    """Return the node with a name replaced by a tree."""
    if isinstance(node, Name):
        return value if node.text == name else node
    if isinstance(node, Apply):
        return Apply(node.op, tuple(substitute(argument, name, value) for argument in node.args))
    if isinstance(node, Relation):
        return Relation(node.ops, tuple(substitute(term, name, value) for term in node.terms))
    if isinstance(node, Quantity):
        return Quantity(substitute(node.value, name, value), node.unit)
    if isinstance(node, List):
        return List(tuple(substitute(item, name, value) for item in node.items))
    return node


def strip_point_names(answer: Node, reference: Node) -> tuple[Node, Node]:
    """Return the pair with `P(1, 2)` as a tuple beside a tuple, and `AC` as a list beside a list of letters."""
    if isinstance(reference, Tuple):
        return _point(answer), reference
    if isinstance(answer, Tuple):
        return answer, _point(reference)
    letters = [item.text for item in reference.items if isinstance(item, Name)] if isinstance(reference, List) else []
    if letters and isinstance(reference, List) and len(letters) == len(reference.items):
        parts = answer.args if isinstance(answer, Apply) and answer.op == "*" else ()
        if all(letter in _OPTIONS for letter in letters) and all(isinstance(part, Name) for part in parts) and parts:
            return List(parts), reference
    return answer, reference


def _point(node: Node) -> Node:
    match node:
        case Apply(op="*", args=(Name(text=text), Tuple() as point)) if len(text) == 1 and text.isupper():
            return point
        case Apply(op="permutations" | "binomial", args=args):
            return Tuple(args)
    return node


def residue(node: Node) -> tuple[Node, Node] | None:
    """Return the value and the modulus of `3 (mod 7)` or `x = 3 (mod 7)`; None for anything else."""
    match node:
        case Apply(op="*", args=(*factors, Apply(op="pmod", args=(modulus,)))) if factors:
            return factors[0] if len(factors) == 1 else Apply("*", tuple(factors)), modulus
        case Relation(ops=("≡",) | ("=",), terms=(Name(), right)):
            return residue(right)
    return None
