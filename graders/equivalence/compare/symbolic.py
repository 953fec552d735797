"""Symbolic rung: decides by a sympy simplification of the difference of two small trees.

The trees are converted to sympy objects and never passed as text; sympy is imported on first use. A pair that is too
large, contains other operations, or has a difference that does not simplify to zero or a non-zero value is undecided.
"""

from typing import Any

from graders.equivalence.arithmetic.evaluate_tree import TooLarge, number_value
from graders.parsing.tree import Apply, Name, Node, Number, walk

MAX_NODES = 32
MAX_INTEGER_BITS = 256
MAX_EXPONENT = 12
_FUNCTIONS = frozenset("sin cos tan cot sec csc sinh cosh tanh coth exp floor gamma factorial binomial".split())
_RENAMED = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "ln": "log", "log": "log", "abs": "Abs"}
_RENAMED |= {"ceil": "ceiling", "arsinh": "asinh", "arcosh": "acosh", "artanh": "atanh", "sqrt": "sqrt", "cbrt": "cbrt"}


class _NotSymbolic(Exception):
    """The tree contains a node that is not converted to sympy."""


def symbolically_equal(left: Node, right: Node) -> bool | None:
    """Return whether sympy simplifies the difference of two trees to zero; None if undecided."""
    nodes = [current for node in (left, right) for current, _ in walk(node)]
    if len(nodes) > MAX_NODES or not all(_is_convertible(node) for node in nodes):
        return None
    import sympy

    try:
        difference = _convert(left, sympy) - _convert(right, sympy)
    except (_NotSymbolic, TooLarge):
        return None
    if difference == 0:
        return True
    if difference.count_ops() > MAX_NODES:
        return None
    simplified = sympy.simplify(difference, ratio=1)
    return True if simplified == 0 else (False if simplified.is_nonzero else None)


def _is_convertible(node: Node) -> bool:
    if isinstance(node, Apply):
        return node.op in _FUNCTIONS or node.op in _RENAMED or node.op in ("+", "*", "/", "neg", "^", "root")
    return isinstance(node, (Number, Name))


def _convert(node: Node, sympy: Any) -> Any:
    if isinstance(node, Number):
        value = number_value(node.text)
        if value.numerator.bit_length() + value.denominator.bit_length() > MAX_INTEGER_BITS:
            raise _NotSymbolic
        return sympy.Rational(value.numerator, value.denominator)
    if isinstance(node, Name):
        constants = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "infinity": sympy.oo}
        return constants.get(node.text) or sympy.Symbol(node.text, real=True)
    if not isinstance(node, Apply):
        raise _NotSymbolic
    arguments = [_convert(argument, sympy) for argument in node.args]
    match node.op:
        case "+":
            return sympy.Add(*arguments)
        case "*":
            return sympy.Mul(*arguments)
        case "/":
            return arguments[0] / arguments[1]
        case "neg":
            return -arguments[0]
        case "^":
            if arguments[1].is_number and abs(arguments[1]) > MAX_EXPONENT:
                raise _NotSymbolic
            return arguments[0] ** arguments[1]
        case "root":
            return sympy.root(arguments[0], arguments[1])
    name = _RENAMED.get(node.op, node.op if node.op in _FUNCTIONS else "")
    if not name:
        raise _NotSymbolic
    return getattr(sympy, name)(*arguments)
