"""Dispatch of a pair of trees to the rule for their kinds.

`graders/RULES.md` lists the rules with their reasons.
"""

import re
from fractions import Fraction

from graders.equivalence.arithmetic.sample_points import float_value
from graders.equivalence.canonical.alpha_equivalence import residue, strip_point_names, unify_names
from graders.equivalence.canonical.canonicalize import canonicalize, is_container, split_assignment, strip_label
from graders.equivalence.compare.comparison import Comparison, incomparable
from graders.equivalence.compare.containers import compare_containers, unordered
from graders.equivalence.compare.parametric_sets import compare_parametric_sets, strip_domain
from graders.equivalence.compare.quantities import compare_quantities, names_as_unit, strip_letter_unit, times
from graders.equivalence.compare.real_sets import compare_real_sets, is_real_set
from graders.equivalence.compare.relations import compare_relations, is_trivial
from graders.equivalence.compare.scalars import compare_scalars, is_scalar
from graders.equivalence.compare.word_answers import compare_choices, compare_times_of_day, compare_words
from graders.parsing.tree import (
    Apply,
    Cases,
    Choice,
    Clock,
    Interval,
    List,
    Name,
    Node,
    Number,
    Quantity,
    Relation,
    Set,
    Text,
    Tuple,
    walk,
)
from graders.parsing.units import conversion

WITHIN = "within"
"""Operation of a reference that is a range; the parser never produces it for an answer."""


class Comparer:
    """Compares pairs under one tolerance and one question.

    Args:
        tolerance: largest accepted relative difference of two values; None for exact comparison.
        question: the problem text, which distinguishes a unit from a variable; None if unknown.
    """

    def __init__(self, tolerance: Fraction | None, question: str | None) -> None:
        self.tolerance = tolerance
        self.question = question

    def compare(self, answer: Node, reference: Node) -> Comparison:
        """Compare an answer with a reference."""
        if isinstance(reference, Apply) and reference.op == WITHIN:
            return self._within(answer, reference)
        if answer == reference and not is_trivial(answer):
            return Comparison(True, "text", "the same tree")
        answer, reference = split_assignment(canonicalize(answer)), split_assignment(canonicalize(reference))
        if isinstance(reference, Choice) or isinstance(answer, Choice):
            return compare_choices(answer, reference, self.compare)
        if isinstance(answer, Text) or isinstance(reference, Text):
            return compare_words(answer, reference)
        if isinstance(answer, Clock) or isinstance(reference, Clock):
            return compare_times_of_day(answer, reference)
        return self._mathematics(answer, reference)

    def _within(self, answer: Node, reference: Apply) -> Comparison:
        """Compare a value, with or without a unit, with a closed range."""
        value, (low, high) = strip_label(answer), reference.args
        value = names_as_unit(value) or value
        for end in (low, high):
            if isinstance(value, Quantity) and isinstance(end, Quantity):
                factor = conversion(value.unit, end.unit)
                if factor is None:
                    return Comparison(False, "structure", f"{value.unit} does not convert to {end.unit}")
                value = Quantity(times(factor, value.value), end.unit)
        bare = [node.value if isinstance(node, Quantity) else node for node in (low, value, high)]
        least, size, most = (float_value(node) for node in bare)
        if least is None or size is None or most is None:
            return Comparison(False, "structure", "the reference is a range, which needs a single real value")
        inside = least <= size <= most
        return Comparison(inside, "numeric", f"{'inside' if inside else 'outside'} the range of the reference")

    def _mathematics(self, answer: Node, reference: Node) -> Comparison:
        if _condition_text(answer) or _condition_text(reference):
            return self._cases(answer, reference)
        answer, reference = strip_point_names(answer, reference)
        residues = residue(answer), residue(reference)
        if any(residues):
            return self._residues(answer, reference)
        found = compare_parametric_sets(answer, reference)
        if found is not None:
            return found
        answer, reference = strip_domain(answer), strip_domain(reference)
        answer, reference = unify_names(answer, reference) or (answer, reference)
        if isinstance(answer, Relation) or isinstance(reference, Relation):
            return compare_relations(self.compare, answer, reference)
        if isinstance(answer, Quantity) or isinstance(reference, Quantity):
            return compare_quantities(answer, reference, self.compare, self.question)
        if is_real_set(answer) or is_real_set(reference):
            found = compare_real_sets(answer, reference)
            if found is not None:
                return found
        if isinstance(answer, Cases) or isinstance(reference, Cases):
            return self._cases(answer, reference)
        if is_container(answer) or is_container(reference):
            return compare_containers(self.compare, answer, reference)
        if isinstance(answer, Interval) or isinstance(reference, Interval):
            return self._interval_and_other(answer, reference)
        return self._scalars(answer, reference)

    def _residues(self, answer: Node, reference: Node) -> Comparison:
        """Compare residues such as `3 (mod 7)`: the modulus may be omitted, but two stated ones must be equal."""
        left, right = residue(answer) or (answer, None), residue(reference) or (reference, None)
        if left[1] is not None and right[1] is not None and left[1] != right[1]:
            return Comparison(False, "structure", "the moduli differ")
        return self.compare(strip_label(left[0]), strip_label(right[0]))

    def _scalars(self, answer: Node, reference: Node) -> Comparison:
        if _has_base(answer) or _has_base(reference):
            return _compare_numerals(answer, reference)
        if not (is_scalar(answer) and is_scalar(reference)):
            return incomparable(answer, reference)
        found = compare_scalars(answer, reference, tolerance=self.tolerance)
        if found.equal:
            return found
        if _has_plain_log(answer) or _has_plain_log(reference):
            decimal = compare_scalars(_with_log10(answer), _with_log10(reference), tolerance=self.tolerance)
            if decimal.equal:
                return decimal
        bare = strip_letter_unit(answer, reference, self.question)
        if bare is not None:
            return compare_scalars(*bare, tolerance=self.tolerance)
        return found

    def _cases(self, answer: Node, reference: Node) -> Comparison:
        conditions = _condition_text(answer), _condition_text(reference)
        if any(conditions):
            bare = [node.branches[0][0] if isinstance(node, Cases) else node for node in (answer, reference)]
            if all(conditions) and conditions[0] != conditions[1] and any(map(_has_mathematics, conditions)):
                return Comparison(False, "text", "the conditions after the values differ")
            return self.compare(bare[0], bare[1])
        if not (isinstance(answer, Cases) and isinstance(reference, Cases)):
            return incomparable(answer, reference)
        pairs = [tuple(Tuple(branch) for branch in node.branches) for node in (answer, reference)]
        return unordered(self.compare, pairs[0], pairs[1])

    def _interval_and_other(self, answer: Node, reference: Node) -> Comparison:
        """Compare `[1, 2]` with a list as a list; with anything else it is an interval and differs."""
        if isinstance(answer, Interval) and isinstance(reference, (List, Set)):
            return compare_containers(self.compare, List((answer.low, answer.high)), reference)
        return incomparable(answer, reference)


def _condition_text(node: Node) -> str:
    """Return the condition in words after a single value, or an empty string."""
    if isinstance(node, Cases) and len(node.branches) == 1 and isinstance(node.branches[0][1], Text):
        return node.branches[0][1].text
    return ""


def _has_mathematics(condition: str) -> bool:
    return re.search(r"[\d=<>≤≥≠∈]", condition) is not None


def _has_plain_log(node: Node) -> bool:
    return any(
        isinstance(current, Apply) and current.op == "log" and len(current.args) == 1 for current, _ in walk(node)
    )


def _with_log10(node: Node) -> Node:
    """Return the value with `log` in base 10: without a base, `log` may mean either base."""
    if not isinstance(node, Apply):
        return node
    op = "log10" if node.op == "log" and len(node.args) == 1 else node.op
    return Apply(op, tuple(_with_log10(argument) for argument in node.args))


def _has_base(node: Node) -> bool:
    return isinstance(node, Apply) and node.op == "base"


def _compare_numerals(answer: Node, reference: Node) -> Comparison:
    """Compare numerals with a base: the base may be omitted, two stated ones must be equal, and so must the digits."""
    parts = [
        node.args if isinstance(node, Apply) and node.op == "base" else (node, None) for node in (answer, reference)
    ]
    (digits, base), (other_digits, other_base) = ((_numeral(numeral), stated) for numeral, stated in parts)
    if base is not None and other_base is not None and base != other_base:
        return Comparison(False, "exact", "the bases differ")
    if not all(_is_valid_base(numeral, stated) for numeral, stated in parts):
        return Comparison(False, "exact", "expected a base from 2 to 36 and digits below it")
    return Comparison(digits == other_digits, "exact", "numerals with a base are compared digit by digit")


def _numeral(node: Node) -> Node:
    """Return `2A`, which parses as a product, as a numeral; anything else unchanged."""
    parts = node.args if isinstance(node, Apply) and node.op == "*" else (node,)
    text = "".join(part.text for part in parts if isinstance(part, (Number, Name, Text)))
    simple = len(parts) == len([part for part in parts if isinstance(part, (Number, Name))])
    return Text(text.lower()) if simple and not text.isdigit() and text.isalnum() else node


def _is_valid_base(digits: Node, base: Node | None) -> bool:
    if base is None:
        return True
    if not (isinstance(digits, (Number, Text)) and isinstance(base, Number) and base.text.isdigit()):
        return False
    if not digits.text.isalnum() or not digits.text.isascii():
        return False
    return 2 <= int(base.text) <= 36 and int(max(digits.text), 36) < int(base.text)
