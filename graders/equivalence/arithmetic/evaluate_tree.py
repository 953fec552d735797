"""Tree evaluation, shared by ball arithmetic and multiprecision arithmetic."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Generic, TypeVar

from graders.equivalence.arithmetic.rationals import MAX_STEPS, MAX_TERMS, NotExact, TooLarge, exact_value, number_value
from graders.parsing.tree import Apply, Name, Node, Number, Quantity

V = TypeVar("V")


class Undecided(Exception):
    """The value is undefined, infinite, or not computed here."""


class Arithmetic(Generic[V]):
    """A number type and its operations.

    Args:
        rational: converts an exact rational.
        constants: the values of `pi`, `e` and `i`.
        operations: function of values, by operation name.
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
        """Return the value of the tree with its free names bound by `point`.

        Raises:
            Undecided: the value is undefined, or the tree contains a node that is not a number.
            TooLarge: the evaluation exceeds the bounds on steps or size.
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
        first, last = _integer(low, point), _integer(high, point)
        if last - first >= MAX_TERMS:
            raise TooLarge(f"expected at most {MAX_TERMS} terms, got {last - first + 1}")
        combine = self.operations["+" if node.op == "sum" else "*"]
        total = self.rational(Fraction(0 if node.op == "sum" else 1))
        for at in range(first, last + 1):
            total = combine(total, self._value(body, {**point, index.text: Fraction(at)}, steps))
        return total


def _integer(node: Node, point: Mapping[str, Fraction]) -> int:
    try:
        value = exact_value(node, point)
    except NotExact:
        raise Undecided from None
    if value.denominator != 1:
        raise Undecided
    return int(value)
