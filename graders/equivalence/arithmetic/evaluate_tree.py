"""Walking a tree with some arithmetic: the part that balls and digits share."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Generic, TypeVar

from graders.equivalence.arithmetic.rationals import MAX_TERMS, NotExact, TooLarge, exact_value, number_value
from graders.parsing.tree import Apply, Name, Node, Number, Quantity

V = TypeVar("V")
MAX_STEPS = 20_000


class Undecided(Exception):
    """The value is undefined, infinite, or not known here."""


class Field(Generic[V]):
    """An arithmetic: how a rational and a constant become a value, and what each operation does.

    Args:
        rational: the value of an exact rational.
        constants: the values of `pi`, `e` and `i`.
        operations: from operation name to function of values.
    """

    def __init__(
        self,
        rational: Callable[[Fraction], V],
        constants: Mapping[str, V],
        operations: Mapping[str, Callable[..., V]],
    ) -> None:
        self.rational = rational
        self.constants = constants
        self.operations = operations

    def evaluate(self, node: Node, point: Mapping[str, Fraction]) -> V:
        """The value of the tree with its free names bound by `point`.

        Raises:
            Undecided: it is undefined there, or holds something that is not a number.
            TooLarge: it takes too many steps or grows out of bounds.
        """
        return self._value(node, point, [0])

    def _value(self, node: Node, point: Mapping[str, Fraction], steps: list[int]) -> V:
        steps[0] += 1
        if steps[0] > MAX_STEPS:
            raise TooLarge(f"expected at most {MAX_STEPS} steps of arithmetic")
        if isinstance(node, Number):
            return self.rational(number_value(node.text))
        if isinstance(node, Name):
            if node.text in point:
                return self.rational(point[node.text])
            if node.text in self.constants:
                return self.constants[node.text]
            raise Undecided
        if isinstance(node, Quantity) and node.unit in ("%", "degree"):
            value = self._value(node.value, point, steps)
            if node.unit == "%":
                return self.operations["/"](value, self.rational(Fraction(100)))
            return self.operations["*"](value, self.operations["/"](self.constants["pi"], self.rational(Fraction(180))))
        if not isinstance(node, Apply):
            raise Undecided
        if node.op in ("sum", "prod"):
            return self._series(node, point, steps)
        operation = self.operations.get(node.op)
        if operation is None:
            raise Undecided
        return operation(*[self._value(argument, point, steps) for argument in node.args])

    def _series(self, node: Apply, point: Mapping[str, Fraction], steps: list[int]) -> V:
        body, index, low, high = node.args
        assert isinstance(index, Name)
        first, last = _whole(low, point), _whole(high, point)
        if last - first >= MAX_TERMS:
            raise TooLarge(f"expected at most {MAX_TERMS} terms, got {last - first + 1}")
        combine = self.operations["+" if node.op == "sum" else "*"]
        total = self.rational(Fraction(0 if node.op == "sum" else 1))
        for at in range(first, last + 1):
            total = combine(total, self._value(body, {**point, index.text: Fraction(at)}, steps))
        return total


def _whole(node: Node, point: Mapping[str, Fraction]) -> int:
    value = point.get(node.text) if isinstance(node, Name) else None
    if value is None:
        try:
            value = exact_value(bind(node, point))
        except NotExact:
            raise Undecided from None
    if value.denominator != 1:
        raise Undecided
    return int(value)


def bind(node: Node, point: Mapping[str, Fraction]) -> Node:
    """The tree with free names replaced by their values."""
    if isinstance(node, Name) and node.text in point:
        value = point[node.text]
        top: Node = Number(str(abs(value.numerator)))
        top = Apply("neg", (top,)) if value < 0 else top
        return top if value.denominator == 1 else Apply("/", (top, Number(str(value.denominator))))
    if isinstance(node, Apply):
        return Apply(node.op, tuple(bind(argument, point) for argument in node.args))
    return node
