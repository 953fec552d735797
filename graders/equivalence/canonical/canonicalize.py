"""Canonical trees: labels dropped, `±` expanded into lists, "and" and "or" resolved into lists or conditions."""

from graders.parsing.tree import (
    Apply,
    Choice,
    Interval,
    List,
    Matrix,
    Name,
    Node,
    Number,
    Quantity,
    Ratio,
    Relation,
    Set,
    Text,
    Tuple,
    names,
)  # fmt: skip

INEQUALITIES = frozenset("< > ≤ ≥ ≠".split())
SET_OPERATIONS = frozenset({"union", "intersection", "difference"})
CONSTANTS = frozenset({"e", "pi", "i", "infinity"})


def canonicalize(node: Node) -> Node:
    """Return the tree with `±` expanded into lists and with "and" or "or" between plain values turned into lists."""
    if isinstance(node, (Number, Name, Text)):
        return node
    if isinstance(node, Apply):
        if node.op in ("and", "or"):
            items = tuple(canonicalize(item) for item in node.args)
            if any(_is_inequality(item) for item in items):
                return Apply(node.op, items)
            return _list(items)
        if node.op in SET_OPERATIONS:
            return Apply(node.op, tuple(canonicalize(item) for item in node.args))
        return _scaled_matrix(node) or _transposed(node) or _plus_minus(node)
    if isinstance(node, (List, Set, Tuple)):
        items = tuple(canonicalize(item) for item in node.items)
        return _list(items) if isinstance(node, List) else _spliced(node, items)
    if isinstance(node, Relation) and node.ops == ("=",):
        right = canonicalize(node.terms[1])
        return node if right == node.terms[1] else Relation(("=",), (node.terms[0], right))
    if isinstance(node, Quantity):
        value = canonicalize(node.value)
        if isinstance(value, List):
            return List(tuple(Quantity(item, node.unit) for item in value.items))
        return Quantity(value, node.unit)
    return node


def _spliced(node: Set | Tuple, items: tuple[Node, ...]) -> Node:
    if isinstance(node, Tuple):
        doubled = [at for at, item in enumerate(items) if isinstance(item, List) and item != node.items[at]]
        if len(doubled) != 1 or (both := items[doubled[0]]) is None or not isinstance(both, List):
            return Tuple(items)  # two signs in one tuple may be linked or independent
        at = doubled[0]
        return List(tuple(Tuple((*items[:at], value, *items[at + 1 :])) for value in both.items))
    return Set(_flattened(items))


def _list(items: tuple[Node, ...]) -> Node:
    flat = _flattened(items)
    return flat[0] if len(flat) == 1 else List(flat)


def _flattened(items: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(part for item in items for part in (item.items if isinstance(item, List) else (item,)))


def _scaled_matrix(node: Apply) -> Matrix | None:
    """Return `c * M`, `M / c` and `-M` as one matrix; None for anything else."""
    matrices = [argument for argument in node.args if isinstance(argument, Matrix)]
    if len(matrices) != 1 or node.op not in ("*", "/", "neg") or (node.op == "/" and node.args[0] is not matrices[0]):
        return None
    rows = [
        [Apply(node.op, tuple(cell if part is matrices[0] else part for part in node.args)) for cell in row]
        for row in matrices[0].rows
    ]
    return Matrix(tuple(tuple(row) for row in rows))


def _transposed(node: Apply) -> Node | None:
    """Return `M^T` as the transposed matrix and `(a, b)^T` as the vector; None for anything else."""
    if node.op != "^" or node.args[1] not in (Name("T"), Name("top"), Name("intercal")):
        return None
    match node.args[0]:
        case Matrix(rows=rows):
            return Matrix(tuple(zip(*rows, strict=True)))
        case Tuple() as vector:
            return vector
        case Interval(low=low, high=high, low_closed=True, high_closed=True):
            return Tuple((low, high))
    return None


def _plus_minus(node: Apply) -> Node:
    if not _has_plus_minus(node):
        return node
    upper, lower = _with_sign(node, 1), _with_sign(node, -1)
    return List((upper, lower)) if upper != lower else upper


def _has_plus_minus(node: Node) -> bool:
    return isinstance(node, Apply) and (node.op in ("pm", "mp") or any(map(_has_plus_minus, node.args)))


def _with_sign(node: Node, sign: int) -> Node:
    if not isinstance(node, Apply):
        return node
    arguments = tuple(_with_sign(argument, sign) for argument in node.args)
    if node.op not in ("pm", "mp"):
        return Apply(node.op, arguments)
    first, second = arguments
    positive = (sign > 0) == (node.op == "pm")
    signed = second if positive else Apply("neg", (second,))
    return signed if first == Number("0") else Apply("+", (first, signed))


def _is_inequality(node: Node) -> bool:
    return isinstance(node, Relation) and (node.ops[0] in INEQUALITIES or node.ops[0] == "∈")


def split_label(node: Node) -> tuple[Node, Node] | None:
    """Return the label and the value of `x = 5`, `f(x) = x + 1`, `(x, y) = (1, 2)`, `5 = x`, `x = 2 + 3 = 5`, `x ∈ S`.

    In a chain, the first term is the label and the last term the value. None for anything else.
    """
    if not isinstance(node, Relation):
        return None
    if node.ops == ("∈",) and isinstance(node.terms[0], Name):
        return node.terms[0], node.terms[1]
    if set(node.ops) - {"=", "≈"}:
        return None
    if is_label(node.terms[0], node.terms[1:]):
        return node.terms[0], node.terms[-1] if "≈" not in node.ops else node.terms[max(node.ops.index("≈"), 1)]
    if len(node.terms) == 2 and is_label(node.terms[1], node.terms[:1]):
        return node.terms[1], node.terms[0]
    return None


def is_label(node: Node, others: tuple[Node, ...]) -> bool:
    """Return True if `node` can name the value `others`: a symbol or an applied symbol that does not occur in them."""
    heads = _label_heads(node)
    if heads is None or heads & CONSTANTS:
        return False
    return not any(heads & names(other) for other in others)


def _label_heads(node: Node) -> frozenset[str] | None:
    """Return the symbols that make a node a label, none for words; None if it is not a label."""
    match node:
        case Text():
            return frozenset()
        case Choice(letter=letter):
            return frozenset(letter)
        case Name(text=text):
            return frozenset((text,))
        case Apply(
            op="call" | "sin" | "cos" | "tan" | "cot" | "log" | "ln" | "floor" | "ceil", args=(Name() as head, *_)
        ):
            return names(head)
        case Apply(op="*", args=(Apply(op="^", args=(Name() as head, Apply(op="neg"))), _)):
            return names(head)  # the inverse function, `f^{-1}(3)`
        case Apply(op="*", args=(Name() as head, *rest)) if len(rest) <= 2:
            return names(head) if all(isinstance(part, (Name, Tuple, Relation)) for part in rest) else None
        case Apply(op="abs" | "norm" | "prime", args=(inner,)) if _is_named(inner):
            return names(inner)
        case Apply(op="/", args=(Apply(op="*", args=(Name(text="d"), *_)), Apply(op="*", args=(Name(text="d"), *_)))):
            return frozenset()  # a derivative, `dy/dx`
        case Apply(op="+", args=terms) if all(_is_signed_name(term) for term in terms):
            return names(node)
        case Apply(op="/", args=(top, bottom)) if _is_named(top) and _is_named(bottom):
            return names(node)
        case Tuple(items=items) if all(isinstance(item, Name) for item in items):
            return names(node)
    return None


def _is_signed_name(node: Node) -> bool:
    return isinstance(node.args[0] if isinstance(node, Apply) and node.op == "neg" else node, Name)


def _is_named(node: Node) -> bool:
    """Return True for a symbol or a product of symbols such as `AB`."""
    if isinstance(node, Apply) and node.op == "*":
        return all(isinstance(part, Name) for part in node.args)
    return isinstance(node, Name)


def split_assignment(node: Node) -> Node:
    """Return `(x, y) = (1, 2)` as the list `x = 1, y = 2`; anything else unchanged."""
    if isinstance(node, Relation) and node.ops == ("=",):
        left, right = node.terms
        if isinstance(left, Tuple) and isinstance(right, Tuple) and len(left.items) == len(right.items):
            pairs = zip(left.items, right.items, strict=True)
            return List(tuple(Relation(("=",), (name, value)) for name, value in pairs))
    return node


def strip_label(node: Node) -> Node:
    """Return the node without its label."""
    found = split_label(node)
    return node if found is None else found[1]


def choice_as_name(node: Node) -> Node:
    """Return a bare option letter as a symbol; anything else unchanged."""
    return Name(node.letter) if isinstance(node, Choice) and node.content is None else node


def is_container(node: Node) -> bool:
    """Return True for a list, set, tuple, matrix or ratio."""
    return isinstance(node, (List, Set, Tuple, Matrix, Ratio))


def vector_entries(node: Node) -> tuple[Node, ...] | None:
    """Return the entries of a matrix of one row or one column; None for anything else."""
    if not isinstance(node, Matrix):
        return None
    if len(node.rows) == 1:
        return node.rows[0]
    return tuple(row[0] for row in node.rows) if len(node.rows[0]) == 1 else None


def split_at_commas(node: Node) -> Node:
    """Return `1,234` as the list `1, 234`, for a comparison with another list; anything else unchanged."""
    sign = isinstance(node, Apply) and node.op == "neg"
    inner = node.args[0] if isinstance(node, Apply) and sign else node
    if isinstance(inner, Number) and "," in inner.text:
        first, *rest = (Number(part) for part in inner.text.split(","))
        return List((Apply("neg", (first,)) if sign else first, *rest))
    return node


def pair_as_interval(node: Node) -> Node:
    """Return `(a, b)` as an open interval, for a comparison with sets of numbers; anything else unchanged."""
    if isinstance(node, Tuple) and len(node.items) == 2:
        return Interval(node.items[0], node.items[1], False, False)
    return node
