"""Tree evaluation, shared by exact, ball and multiprecision arithmetic."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Generic, TypeVar

from graders.errors import GraderError
from graders.parsing.tree import Apply, Name, Node, Number, Quantity

V = TypeVar("V")
MAX_BITS = 40_000
MAX_STEPS = 20_000
MAX_TERMS = 2_000


class NoValue(Exception):
    """The value is undefined, infinite, or not computed by this arithmetic."""


class TooLarge(GraderError):
    """Evaluating the tree would exceed the bounds on size or work."""


def number_value(text: str) -> Fraction:
    """Return the value of a numeral in the notation of `Number`.

    Raises:
        TooLarge: the exponent is out of bounds.
    """
    if text.isdigit():
        return Fraction(int(text))
    mantissa, _, exponent = text.replace(",", "").partition("e")
    power = int(exponent or 0)
    if abs(power) > MAX_BITS // 4:
        raise TooLarge(f"expected an exponent of at most {MAX_BITS // 4}, got {text[:40]}")
    mantissa, _, repeating = mantissa.rstrip(")").partition("(")
    whole, _, decimals = mantissa.partition(".")
    value = Fraction(int(whole + decimals or "0"), 10 ** len(decimals))
    if repeating:
        value += Fraction(int(repeating), (10 ** len(repeating) - 1) * 10 ** len(decimals))
    return value * Fraction(10) ** power if power else value


def number_tree(value: Fraction) -> Node:
    """Return a rational as a tree."""
    top: Node = Number(str(abs(value.numerator)))
    if value < 0:
        top = Apply("neg", (top,))
    return top if value.denominator == 1 else Apply("/", (top, Number(str(value.denominator))))


class Arithmetic(Generic[V]):
    """A number type and its operations.

    Args:
        rational: converts an exact rational.
        constants: the values of `pi`, `e` and `i`.
        operations: function of values, by operation name.
        exact: evaluates the bounds of sums and products; None if this arithmetic is exact.
    """

    def __init__(
        self,
        rational: Callable[[Fraction], V],
        constants: Mapping[str, V],
        operations: Mapping[str, Callable[..., V]],
        exact: "Arithmetic[Fraction] | None" = None,
    ) -> None:
        self.rational = rational
        self.constants = constants
        self.operations = operations
        self.exact: Arithmetic[Any] = exact or self

    def evaluate(self, node: Node, point: Mapping[str, Fraction]) -> V:
        """Return the value of the tree with its free names bound by `point`.

        Raises:
            NoValue: the value is undefined, or the tree contains a node that is not a number.
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
            raise NoValue
        if isinstance(node, Quantity) and node.unit in ("%", "degree"):
            if node.unit == "%":
                return self.operations["/"](self._value(node.value, point, steps), self.rational(Fraction(100)))
            radian = self.operations["/"](self._value(Name("pi"), point, steps), self.rational(Fraction(180)))
            return self.operations["*"](self._value(node.value, point, steps), radian)
        if not isinstance(node, Apply):
            raise NoValue
        if node.op in ("sum", "prod"):
            return self._series(node, point, steps)
        operation = self.operations.get(node.op)
        if operation is None:
            raise NoValue
        return operation(*[self._value(argument, point, steps) for argument in node.args])

    def _series(self, node: Apply, point: Mapping[str, Fraction], steps: list[int]) -> V:
        body, index, low, high = node.args
        assert isinstance(index, Name)
        first, last = (self.exact._value(end, point, steps) for end in (low, high))
        if first.denominator != 1 or last.denominator != 1:
            raise NoValue
        if last - first >= MAX_TERMS:
            raise TooLarge(f"expected at most {MAX_TERMS} terms, got {int(last - first) + 1}")
        combine = self.operations["+" if node.op == "sum" else "*"]
        total = self.rational(Fraction(0 if node.op == "sum" else 1))
        for at in range(int(first), int(last) + 1):
            total = combine(total, self._value(body, {**point, index.text: Fraction(at)}, steps))
        return total
