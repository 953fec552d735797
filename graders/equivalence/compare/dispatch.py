r"""Comparing trees of every kind: which rule holds for which pair, and where order matters.

The rules are written out, with their reasons, in `graders/RULES.md`.
"""

import re
from fractions import Fraction

from graders.equivalence.arithmetic.certified import float_value
from graders.equivalence.canonical.alpha_equivalence import named_points, residue, with_same_names
from graders.equivalence.canonical.canonicalize import assignments, is_collection, lowered, value_of
from graders.equivalence.compare.collections import compare_collections, unordered
from graders.equivalence.compare.comparison import Comparison, mismatch
from graders.equivalence.compare.parametric_sets import compare_families, without_parameters
from graders.equivalence.compare.quantities import compare_quantities, times, with_letter_unit, without_letter_unit
from graders.equivalence.compare.real_sets import compare_solutions, is_solution_set
from graders.equivalence.compare.relations import compare_relations, is_trivial
from graders.equivalence.compare.scalars import compare_scalars, is_scalar
from graders.equivalence.compare.word_answers import compare_choices, compare_clocks, compare_texts
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
"""The operation of a reference that is a range; no answer is ever parsed into it."""


class Comparer:
    """One comparison: what the caller allows, and what the question shows.

    Args:
        tolerance: largest relative difference of two values; None for none.
        question: the problem text, which tells a unit from a variable; None where it is not known.
    """

    def __init__(self, tolerance: Fraction | None, question: str | None) -> None:
        self.tolerance = tolerance
        self.question = question

    def compare(self, answer: Node, reference: Node) -> Comparison:
        """Whether the answer says what the reference says."""
        if isinstance(reference, Apply) and reference.op == WITHIN:
            return self._within(answer, reference)
        if answer == reference and not is_trivial(answer):
            return Comparison(True, "text", "the same tree")
        answer, reference = assignments(lowered(answer)), assignments(lowered(reference))
        if isinstance(reference, Choice) or isinstance(answer, Choice):
            return compare_choices(answer, reference, self.compare)
        if isinstance(answer, Text) or isinstance(reference, Text):
            return compare_texts(answer, reference)
        if isinstance(answer, Clock) or isinstance(reference, Clock):
            return compare_clocks(answer, reference)
        return self._mathematics(answer, reference)

    def _within(self, answer: Node, reference: Apply) -> Comparison:
        """A value in the closed range of the reference, in its unit or without one."""
        value, (low, high) = value_of(answer), reference.args
        value = with_letter_unit(value) or value
        for end in (low, high):
            if isinstance(value, Quantity) and isinstance(end, Quantity):
                factor = conversion(value.unit, end.unit)
                if factor is None:
                    return Comparison(False, "structure", f"{value.unit} does not measure what {end.unit} does")
                value = Quantity(times(factor, value.value), end.unit)
        bare = [node.value if isinstance(node, Quantity) else node for node in (low, value, high)]
        least, size, most = (float_value(node) for node in bare)
        if least is None or size is None or most is None:
            return Comparison(False, "structure", "a range asks for one value")
        inside = least <= size <= most
        return Comparison(inside, "numeric", f"{'inside' if inside else 'outside'} the range of the reference")

    def _mathematics(self, answer: Node, reference: Node) -> Comparison:
        if _clause(answer) or _clause(reference):
            return self._cases(answer, reference)
        answer, reference = named_points(answer, reference)
        residues = residue(answer), residue(reference)
        if any(residues):
            return self._residues(answer, reference)
        families = compare_families(answer, reference)
        if families is not None:
            return families
        answer, reference = without_parameters(answer), without_parameters(reference)
        answer, reference = with_same_names(answer, reference) or (answer, reference)
        if isinstance(answer, Relation) or isinstance(reference, Relation):
            return compare_relations(self.compare, answer, reference)
        if isinstance(answer, Quantity) or isinstance(reference, Quantity):
            return compare_quantities(answer, reference, self.compare, self.question)
        if is_solution_set(answer) or is_solution_set(reference):
            found = compare_solutions(answer, reference)
            if found is not None:
                return found
        if isinstance(answer, Cases) or isinstance(reference, Cases):
            return self._cases(answer, reference)
        if is_collection(answer) or is_collection(reference):
            return compare_collections(self.compare, answer, reference)
        if isinstance(answer, Interval) or isinstance(reference, Interval):
            return self._bracketed(answer, reference)
        return self.scalars(answer, reference)

    def _residues(self, answer: Node, reference: Node) -> Comparison:
        """`3 (mod 7)`: the modulus may be left out, but a stated one must agree."""
        left, right = residue(answer) or (answer, None), residue(reference) or (reference, None)
        if left[1] is not None and right[1] is not None and left[1] != right[1]:
            return Comparison(False, "structure", "the moduli differ")
        return self.compare(value_of(left[0]), value_of(right[0]))

    def scalars(self, answer: Node, reference: Node) -> Comparison:
        if _is_based(answer) or _is_based(reference):
            return _compare_numerals(answer, reference)
        if not (is_scalar(answer) and is_scalar(reference)):
            return mismatch(answer, reference)
        found = compare_scalars(answer, reference, tolerance=self.tolerance)
        if found.equal:
            return found
        if _has_plain_log(answer) or _has_plain_log(reference):
            decimal = compare_scalars(_with_log10(answer), _with_log10(reference), tolerance=self.tolerance)
            if decimal.equal:
                return decimal
        bare = without_letter_unit(answer, reference, self.question)
        if bare is not None:
            return compare_scalars(*bare, tolerance=self.tolerance)
        return found

    def _cases(self, answer: Node, reference: Node) -> Comparison:
        clauses = _clause(answer), _clause(reference)
        if any(clauses):
            bare = [node.branches[0][0] if isinstance(node, Cases) else node for node in (answer, reference)]
            if all(clauses) and clauses[0] != clauses[1] and any(map(_has_mathematics, clauses)):
                return Comparison(False, "text", "the clauses behind the values differ")
            return self.compare(bare[0], bare[1])
        if not (isinstance(answer, Cases) and isinstance(reference, Cases)):
            return mismatch(answer, reference)
        pairs = [tuple(Tuple(branch) for branch in node.branches) for node in (answer, reference)]
        return unordered(self.compare, pairs[0], pairs[1])

    def _bracketed(self, answer: Node, reference: Node) -> Comparison:
        """`[1, 2]` beside a list is a list; beside anything else it is an interval, which that is not."""
        if isinstance(answer, Interval) and isinstance(reference, (List, Set)):
            return compare_collections(self.compare, List((answer.low, answer.high)), reference)
        return mismatch(answer, reference)


def _clause(node: Node) -> str:
    """The words of a "where" behind a single value; empty where there are none."""
    if isinstance(node, Cases) and len(node.branches) == 1 and isinstance(node.branches[0][1], Text):
        return node.branches[0][1].text
    return ""


def _has_mathematics(clause: str) -> bool:
    return re.search(r"[\d=<>≤≥≠∈]", clause) is not None


def _has_plain_log(node: Node) -> bool:
    return any(
        isinstance(current, Apply) and current.op == "log" and len(current.args) == 1 for current, _ in walk(node)
    )


def _with_log10(node: Node) -> Node:
    """The value with `log` read to base ten: without a base it may be meant either way."""
    if not isinstance(node, Apply):
        return node
    op = "log10" if node.op == "log" and len(node.args) == 1 else node.op
    return Apply(op, tuple(_with_log10(argument) for argument in node.args))


def _is_based(node: Node) -> bool:
    return isinstance(node, Apply) and node.op == "base"


def _compare_numerals(answer: Node, reference: Node) -> Comparison:
    """Numerals with a base: a base may be left out, but a stated one must agree, and the digits must be the same."""
    parts = [
        node.args if isinstance(node, Apply) and node.op == "base" else (node, None) for node in (answer, reference)
    ]
    (digits, base), (other_digits, other_base) = ((_numeral(numeral), stated) for numeral, stated in parts)
    if base is not None and other_base is not None and base != other_base:
        return Comparison(False, "exact", "the bases differ")
    if not all(_is_valid_base(numeral, stated) for numeral, stated in parts):
        return Comparison(False, "exact", "a base from 2 to 36 with digits below it was expected")
    return Comparison(digits == other_digits, "exact", "numerals compare digit by digit")


def _numeral(node: Node) -> Node:
    """`2A`, read as a product, as the numeral that it is beside one with a base."""
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
