r"""Comparing trees of every kind: which rule holds for which pair, and where order matters.

The rules are written out, with their reasons, in `graders/RULES.md`.

Touches: nothing.
"""

import re
from fractions import Fraction

from graders.equivalence.comparison import Comparison, joined
from graders.equivalence.families import compare_families
from graders.equivalence.meaning import (
    INEQUALITIES,
    as_choice_name,
    assignments,
    is_collection,
    label_and_value,
    lowered,
    regrouped,
    value_of,
    vector_items,
)  # fmt: skip
from graders.equivalence.numeric import float_value
from graders.equivalence.quantities import compare_quantities, without_letter_unit
from graders.equivalence.sampling import compare_unsolved
from graders.equivalence.scalars import close_enough, compare_equations, compare_scalars, is_scalar
from graders.equivalence.solutions import compare_solutions, is_solution_set, pieces
from graders.equivalence.words import compare_choices, compare_clocks, compare_texts
from graders.tree import (
    Apply,
    Cases,
    Choice,
    Clock,
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
)  # fmt: skip


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
        if answer == reference and not _is_trivial(answer):
            return Comparison(True, "text", "the same tree")
        answer, reference = assignments(lowered(answer)), assignments(lowered(reference))
        if isinstance(reference, Choice) or isinstance(answer, Choice):
            return compare_choices(answer, reference, self.compare)
        if isinstance(answer, Text) or isinstance(reference, Text):
            return compare_texts(answer, reference)
        if isinstance(answer, Clock) or isinstance(reference, Clock):
            return compare_clocks(answer, reference)
        return self._mathematics(answer, reference)

    def _mathematics(self, answer: Node, reference: Node) -> Comparison:
        if _clause(answer) or _clause(reference):
            return self._cases(answer, reference)
        families = compare_families(answer, reference)
        if families is not None:
            return families
        if isinstance(answer, Relation) or isinstance(reference, Relation):
            return self._relations(answer, reference)
        if isinstance(answer, Quantity) or isinstance(reference, Quantity):
            return compare_quantities(answer, reference, self.compare, self.question)
        if is_solution_set(answer) or is_solution_set(reference):
            found = compare_solutions(answer, reference)
            if found is not None:
                return found
        if isinstance(answer, Cases) or isinstance(reference, Cases):
            return self._cases(answer, reference)
        if is_collection(answer) or is_collection(reference):
            return self._collections(answer, reference)
        if isinstance(answer, Interval) or isinstance(reference, Interval):
            return self._bracketed(answer, reference)
        return self.scalars(answer, reference)

    def scalars(self, answer: Node, reference: Node) -> Comparison:
        if _is_based(answer) or _is_based(reference):
            return _compare_numerals(answer, reference)
        if not (is_scalar(answer) and is_scalar(reference)):
            return Comparison(False, "structure", f"a {_kind(answer)} against a {_kind(reference)}")
        found = compare_scalars(answer, reference, tolerance=self.tolerance)
        if found.equal:
            return found
        bare = without_letter_unit(answer, reference, self.question)
        if bare is not None:
            return compare_scalars(*bare, tolerance=self.tolerance)
        return found

    def _relations(self, answer: Node, reference: Node) -> Comparison:
        if _is_trivial(answer):
            return Comparison(False, "structure", "the statement holds for any value")
        if isinstance(answer, Relation) and isinstance(reference, Relation):
            return self._two_relations(answer, reference)
        if isinstance(reference, Relation):
            found = label_and_value(reference)
            if found is not None:
                if isinstance(found[0], Tuple) and isinstance(answer, List):
                    return self.compare(answer, assignments(reference))
                return self.compare(answer, found[1])
        if isinstance(answer, Relation):
            found = label_and_value(answer)
            if found is not None and self._consistent(answer):
                if isinstance(reference, List) and isinstance(found[0], Tuple):
                    return self.compare(assignments(answer), reference)
                return self.compare(found[1], reference)
            computed = self._computed(answer)
            if computed is not None:
                return self.compare(computed, reference)
        sets = is_solution_set(answer) or is_solution_set(reference)
        if not sets and (is_collection(answer) or is_collection(reference)):
            return self._collections(answer, reference)
        found = compare_solutions(answer, reference) or _unsolved(answer, reference)
        return found or Comparison(False, "structure", f"a {_kind(answer)} against a {_kind(reference)}")

    def _consistent(self, chain: Relation) -> bool:
        """Whether the values of `x = a = b` are equal: a chain that contradicts itself states nothing."""
        values = chain.terms[1:] if len(chain.terms) > 2 else ()
        return all(
            close_enough(one, other) if sign == "≈" else compare_scalars(one, other).equal is not False
            for sign, one, other in zip(chain.ops[1:], values, values[1:], strict=False)
            if is_scalar(one) and is_scalar(other)
        )

    def _computed(self, chain: Relation) -> Node | None:
        """The value of `2 + 3 = 5`, a calculation that holds; None for anything else."""
        if set(chain.ops) - {"=", "≈"} or not all(is_scalar(term) for term in chain.terms):
            return None
        exact = [term for term, sign in zip(chain.terms, ("=", *chain.ops), strict=True) if sign == "="]
        if not self._consistent(Relation(("=", *chain.ops), (exact[0], *chain.terms))):
            return None
        return exact[-1]

    def _two_relations(self, answer: Relation, reference: Relation) -> Comparison:
        left, right = label_and_value(answer), label_and_value(reference)
        if left is not None and right is not None and _same_label(left[0], right[0]):
            return self.compare(left[1], right[1])
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
            return self._inequalities(answer, reference)
        one, other = _ascending(answer), _ascending(reference)
        if one.ops != other.ops:
            return Comparison(False, "structure", "the relations have different signs")
        return joined([self.compare(a, b) for a, b in zip(one.terms, other.terms, strict=True)])

    def _inequalities(self, answer: Relation, reference: Relation) -> Comparison:
        one, other = _ascending(answer), _ascending(reference)
        if one.ops != other.ops:
            return Comparison(False, "structure", "the relations have different signs")
        return compare_equations(_difference(one), _difference(other), positive=one.ops[0] != "≠")

    def _cases(self, answer: Node, reference: Node) -> Comparison:
        clauses = _clause(answer), _clause(reference)
        if any(clauses):
            bare = [node.branches[0][0] if isinstance(node, Cases) else node for node in (answer, reference)]
            if all(clauses) and clauses[0] != clauses[1] and any(map(_has_mathematics, clauses)):
                return Comparison(False, "text", "the clauses behind the values differ")
            return self.compare(bare[0], bare[1])
        if not (isinstance(answer, Cases) and isinstance(reference, Cases)):
            return Comparison(False, "structure", f"a {_kind(answer)} against a {_kind(reference)}")
        pairs = [tuple(Tuple(branch) for branch in node.branches) for node in (answer, reference)]
        return self._unordered(pairs[0], pairs[1])

    def _bracketed(self, answer: Node, reference: Node) -> Comparison:
        """`[1, 2]` beside a list is a list; beside anything else it is an interval, which that is not."""
        if isinstance(answer, Interval) and isinstance(reference, (List, Set)):
            return self._collections(List((answer.low, answer.high)), reference)
        return Comparison(False, "structure", f"a {_kind(answer)} against a {_kind(reference)}")

    def _collections(self, answer: Node, reference: Node) -> Comparison:
        answer, reference = regrouped(answer), regrouped(reference)
        if isinstance(answer, Ratio) or isinstance(reference, Ratio):
            return self._ratios(answer, reference)
        if isinstance(answer, Matrix) and isinstance(reference, Matrix):
            return self._matrices(answer, reference)
        if isinstance(answer, Interval) and answer.low_closed and answer.high_closed:
            answer = List((answer.low, answer.high))
        left, right = _items(answer), _items(reference)
        if left is None or right is None:
            return self._single(answer, reference)
        if all(label_and_value(item) for item in left) != all(label_and_value(item) for item in right):
            left, right = tuple(map(value_of, left)), tuple(map(value_of, right))
        if _is_ordered(reference) or _is_ordered(answer):
            if isinstance(answer, Set) or isinstance(reference, Set):
                return Comparison(False, "structure", "a set has no order and a tuple has one")
            return self._ordered(left, right)
        if isinstance(reference, Set) or isinstance(answer, Set):
            left, right = self._distinct(left), self._distinct(right)
        return self._unordered(left, right)

    def _single(self, answer: Node, reference: Node) -> Comparison:
        """A collection of one value is that value."""
        for node, other, forward in ((answer, reference, True), (reference, answer, False)):
            if isinstance(node, (Set, List)) and not is_collection(other):
                distinct = self._distinct(node.items)
                if len(distinct) == 1:
                    return self.compare(distinct[0], other) if forward else self.compare(other, distinct[0])
        return Comparison(False, "structure", f"a {_kind(answer)} against a {_kind(reference)}")

    def _distinct(self, items: tuple[Node, ...]) -> tuple[Node, ...]:
        kept: list[tuple[Node, float | None]] = []
        for item in items:
            size = _size(item)
            if not any(_may_be_equal(size, other, 1e-6) and self.compare(item, node).equal for node, other in kept):
                kept.append((item, size))
        return tuple(node for node, _ in kept)

    def _ordered(self, left: tuple[Node, ...], right: tuple[Node, ...]) -> Comparison:
        if len(left) != len(right):
            return Comparison(False, "structure", f"{len(left)} items against {len(right)}")
        parts: list[Comparison] = []
        for one, other in zip(left, right, strict=True):
            parts.append(self.compare(one, other))
            if parts[-1].equal is False:
                break
        return joined(parts)

    def _unordered(self, left: tuple[Node, ...], right: tuple[Node, ...]) -> Comparison:
        if len(left) != len(right):
            return Comparison(False, "structure", f"{len(left)} items against {len(right)}")
        rest, parts = [(item, _size(item)) for item in left], []
        for item in right:
            size = _size(item)
            for at, (candidate, other) in enumerate(rest):
                found = self.compare(candidate, item) if _may_be_equal(size, other, 0.05) else None
                if found is not None and found.equal:
                    parts.append(found)
                    del rest[at]
                    break
            else:
                return Comparison(False, "structure", "an item of the reference is missing from the answer")
        return joined(parts)

    def _matrices(self, answer: Matrix, reference: Matrix) -> Comparison:
        if (len(answer.rows), len(answer.rows[0])) != (len(reference.rows), len(reference.rows[0])):
            return Comparison(False, "structure", "the matrices have different shapes")
        return self._ordered(
            tuple(item for row in answer.rows for item in row), tuple(item for row in reference.rows for item in row)
        )

    def _ratios(self, answer: Node, reference: Node) -> Comparison:
        """Ratios are equal up to a common factor; a ratio of two is also a quotient."""
        if isinstance(answer, Ratio) and isinstance(reference, Ratio):
            if len(answer.items) != len(reference.items):
                return Comparison(False, "structure", f"{len(answer.items)} terms against {len(reference.items)}")
            crossed = [
                self.scalars(Apply("*", (one, reference.items[0])), Apply("*", (other, answer.items[0])))
                for one, other in zip(answer.items, reference.items, strict=True)
            ]
            return joined(crossed)
        ratio, other = (answer, reference) if isinstance(answer, Ratio) else (reference, answer)
        if isinstance(ratio, Ratio) and len(ratio.items) == 2 and is_scalar(other):
            quotient = Apply("/", ratio.items)
            return self.scalars(quotient, other) if ratio is answer else self.scalars(other, quotient)
        return Comparison(False, "structure", f"a {_kind(answer)} against a {_kind(reference)}")


def _unsolved(answer: Node, reference: Node) -> Comparison | None:
    """Compare an inequality that is not solved with a set that is; None where neither side is such an inequality."""
    for relation, other in ((answer, reference), (reference, answer)):
        if isinstance(relation, Relation) and pieces(relation) is None and (solved := pieces(other)) is not None:
            return compare_unsolved(relation, solved)
    return None


def _clause(node: Node) -> str:
    """The words of a "where" behind a single value; empty where there are none."""
    if isinstance(node, Cases) and len(node.branches) == 1 and isinstance(node.branches[0][1], Text):
        return node.branches[0][1].text
    return ""


def _has_mathematics(clause: str) -> bool:
    return re.search(r"[\d=<>≤≥≠∈]", clause) is not None


def _is_based(node: Node) -> bool:
    return isinstance(node, Apply) and node.op == "base"


def _compare_numerals(answer: Node, reference: Node) -> Comparison:
    """Numerals with a base: a base may be left out, but a stated one must agree, and the digits must be the same."""
    parts = [
        node.args if isinstance(node, Apply) and node.op == "base" else (node, None) for node in (answer, reference)
    ]
    (digits, base), (other_digits, other_base) = parts
    if base is not None and other_base is not None and base != other_base:
        return Comparison(False, "exact", "the bases differ")
    if not all(_is_valid_base(numeral, stated) for numeral, stated in parts):
        return Comparison(False, "exact", "a base from 2 to 36 with digits below it was expected")
    return Comparison(digits == other_digits, "exact", "numerals compare digit by digit")


def _is_valid_base(digits: Node, base: Node | None) -> bool:
    if base is None:
        return True
    if not (isinstance(digits, Number) and isinstance(base, Number) and base.text.isdigit() and digits.text.isdigit()):
        return False
    return 2 <= int(base.text) <= 36 and int(max(digits.text)) < int(base.text)


def _size(node: Node) -> float | None:
    """A double close to a plain value; None for anything else, and for quantities, which have more than one reading."""
    return float_value(node) if is_scalar(node) and not isinstance(node, Quantity) else None


def _may_be_equal(one: float | None, other: float | None, apart: float) -> bool:
    """Whether two items are worth comparing: they are not where they are further apart than any rounding."""
    return one is None or other is None or abs(one - other) <= apart * max(abs(one), abs(other)) + 1e-9


def _items(node: Node) -> tuple[Node, ...] | None:
    if isinstance(node, (List, Set, Tuple)):
        return node.items
    return vector_items(node)


def _is_ordered(node: Node) -> bool:
    return isinstance(node, (Tuple, Matrix))


def _is_trivial(node: Node) -> bool:
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


def _same_label(one: Node, other: Node) -> bool:
    if one == other:
        return True
    called = [node for node in (one, other) if isinstance(node, Apply)]
    return len(called) == 1 and Name("y") in (one, other) and called[0].op in ("call", "*")


def _kind(node: Node) -> str:
    return type(node).__name__.lower() if not isinstance(node, Apply) else "value"


__all__ = ["Comparer", "as_choice_name"]
