"""Quantities: one side may omit the unit, two convertible units are converted, other pairs of units differ."""

import re
from fractions import Fraction

from graders.equivalence.arithmetic.evaluate_tree import number_tree
from graders.equivalence.arithmetic.sample_points import CONSTANT_NAMES, float_value, variables
from graders.equivalence.compare.comparison import Compare, Comparison
from graders.parsing.tree import Apply, Name, Node, Number, Quantity, Text, names, walk
from graders.parsing.units import SINGLE_LETTER_UNITS, conversion, known_symbol

_PER_CENT = Number("100")


def compare_quantities(answer: Node, reference: Node, compare: Compare, question: str | None) -> Comparison:
    """Compare two values of which at least one has a unit."""
    if isinstance(answer, Quantity) and isinstance(reference, Quantity):
        return _two_units(answer, reference, compare)
    if isinstance(answer, Quantity):
        lettered = names_as_unit(reference)
        if lettered is not None:
            return _two_units(answer, lettered, compare)
        return _one_unit(answer, reference, compare, question, forward=True)
    if isinstance(reference, Quantity) and (lettered := names_as_unit(answer)) is not None:
        return _two_units(lettered, reference, compare)
    assert isinstance(reference, Quantity)
    return _one_unit(reference, answer, compare, question, forward=False)


def _two_units(answer: Quantity, reference: Quantity, compare: Compare) -> Comparison:
    units = {answer.unit, reference.unit}
    if answer.unit == reference.unit:
        return compare(answer.value, reference.value)
    if units == {"degree", "rad"}:
        return compare(_in_radians(answer), _in_radians(reference))
    if "%" in units and not any(unit.startswith("~") for unit in units):
        return Comparison(False, "structure", "a percentage is compared with a unit")
    factor = conversion(answer.unit, reference.unit)
    if factor is None:
        return Comparison(False, "structure", f"{answer.unit} does not convert to {reference.unit}")
    return compare(times(factor, answer.value), reference.value)


def _one_unit(quantity: Quantity, other: Node, compare: Compare, question: str | None, *, forward: bool) -> Comparison:
    """Compare a quantity with a bare value, as the number alone or with the factor that the unit represents."""
    readings: list[Node] = []
    radians = quantity.unit == "degree" and _is_in_radians(other)
    if not radians and (quantity.unit != "%" or _may_drop_percent(quantity, other, question)):
        readings.append(quantity.value)
    if quantity.unit == "%":
        readings.append(Apply("/", (quantity.value, _PER_CENT)))
    if radians:
        readings.append(_in_radians(quantity))
    if quantity.unit == "dozen":
        readings.append(Apply("*", (Number("12"), quantity.value)))
    found = Comparison(False, "exact", "the values differ")
    for reading in readings:
        found = compare(reading, other) if forward else compare(other, reading)
        if found.equal:
            break
    return found


def _may_drop_percent(quantity: Quantity, other: Node, question: str | None) -> bool:
    """Return True if `28%` may equal `other` = 28; a number below 1 may be the fraction instead."""
    if question is not None and re.search(r"%|percent", question, re.IGNORECASE):
        return True
    value = float_value(other)
    return value is None or abs(value) >= 1 or value == 0


def _is_in_radians(node: Node) -> bool:
    """Return True if a value looks like an angle in radians: it contains pi or an inverse function."""
    return "pi" in names(node) or any(
        isinstance(current, Apply) and current.op.startswith("arc") for current, _ in walk(node)
    )


def _in_radians(quantity: Quantity) -> Node:
    if quantity.unit == "rad":
        return quantity.value
    return Apply("/", (Apply("*", (quantity.value, Name("pi"))), Number("180")))


def times(factor: Fraction, value: Node) -> Node:
    """Return the value times an exact factor."""
    return value if factor == 1 else Apply("*", (number_tree(factor), value))


def names_as_unit(node: Node) -> Quantity | None:
    """Return `12 m` or `5 m/s`, which parse as products of names, as a quantity; None for anything else."""
    match node:
        case Apply(op="*", args=(first, *rest)):
            parts, below = [first, *rest], None
        case Apply(op="/", args=(Apply(op="*", args=(first, *rest)), below)):
            parts = [first, *rest]
        case _:
            return None
    powers: dict[str, int] = {}
    at = len(parts)
    while at > 1 and variables(parts[at - 1]) + _texts(parts[at - 1]):
        at -= 1
        if not _collect_unit(parts[at], 1, powers):
            return None
    value = parts[0] if at == 1 else Apply("*", tuple(parts[:at]))
    if at == len(parts) or variables(value) or (below is not None and not _collect_unit(below, -1, powers)):
        return None
    unit = " ".join(sorted(name if power == 1 else f"{name}^{power}" for name, power in powers.items() if power))
    return Quantity(value, unit) if unit else None


def _texts(node: Node) -> list[str]:
    return [part.text for part, _ in walk(node) if isinstance(part, Text)]


def _collect_unit(node: Node, sign: int, powers: dict[str, int]) -> bool:
    """Add the powers of a unit written as names to `powers`; return False if the node is not a unit."""
    match node:
        case Name(text=text) | Text(text=text):
            symbol = known_symbol(text)
            if symbol is None or (len(text) == 1 and text not in SINGLE_LETTER_UNITS):
                return False
            powers[symbol] = powers.get(symbol, 0) + sign
            return True
        case Apply(op="^", args=(base, Number(text=text))) if text.isdigit() and len(text) == 1:
            return _collect_unit(base, sign * int(text), powers)
        case Apply(op="^", args=(base, Apply(op="neg", args=(Number(text=text),)))) if len(text) == 1:
            return text.isdigit() and _collect_unit(base, -sign * int(text), powers)
        case Apply(op="/", args=(top, bottom)):
            above = top == Number("1") or _collect_unit(top, sign, powers)
            return above and _collect_unit(bottom, -sign, powers)
        case Apply(op="*", args=parts):
            return all(_collect_unit(part, sign, powers) for part in parts)
    return False


def strip_letter_unit(answer: Node, reference: Node, question: str | None) -> tuple[Node, Node] | None:
    """Return the two values without a one-letter unit such as the `m` of `5 m`; None if there is none.

    The letter is a unit if it is the last factor after a number and the other side has no letters. In a reference it
    may also be a variable, so it must be squared or cubed, follow a decimal, or never be a symbol in the question.
    """
    if not variables(reference) and (bare := _split_letter_unit(answer)) is not None:
        return bare[0], reference
    if not variables(answer) and (bare := _split_letter_unit(reference)) is not None:
        value, letter, powered = bare
        decimal = any(isinstance(part, Number) and "." in part.text for part in (value, *getattr(value, "args", ())))
        if powered or decimal or (question is not None and not _is_symbol(letter, question)):
            return answer, value
    return None


def _split_letter_unit(node: Node) -> tuple[Node, str, bool] | None:
    """Return the value before a final unit letter, the letter, and True if it is squared or cubed."""
    if not (isinstance(node, Apply) and node.op == "*"):
        return None
    *factors, last = node.args
    powered = isinstance(last, Apply) and last.op == "^" and last.args[1] in (Number("2"), Number("3"))
    letter = last.args[0] if isinstance(last, Apply) and powered else last
    if not isinstance(letter, Name) or letter.text not in SINGLE_LETTER_UNITS:
        return None
    if any(name not in CONSTANT_NAMES for factor in factors for name in names(factor)):
        return None
    return (factors[0] if len(factors) == 1 else Apply("*", tuple(factors))), letter.text, powered


def _is_symbol(letter: str, question: str) -> bool:
    """Return True if the letter is a symbol in a formula of the question."""
    formulas = re.findall(r"\$([^$]*)\$", question)
    return any(re.search(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])", formula) for formula in formulas)
