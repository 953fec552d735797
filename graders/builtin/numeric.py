"""Grades a final answer as one number, within a stated relative tolerance."""

import time
from fractions import Fraction

from graders.builtin.reading import Reading, read_answer, read_reference
from graders.equivalence import TooLarge, compare
from graders.equivalence.canonical.canonicalize import strip_label
from graders.equivalence.compare.scalars import is_scalar
from graders.errors import BadInput, BadReference
from graders.parsing.tree import check_tree
from graders.verdict import Status, Verdict

DEFAULT_TOLERANCE = Fraction(1, 10**6)


class NumericGrader:
    """Correct where the answer's value is within `tolerance` of the reference's.

    Args:
        tolerance: largest difference relative to the reference; 0 for equality, below 1.

    Raises:
        BadInput: the tolerance is out of range.
    """

    name = "numeric"
    examples = (
        ("\\boxed{3.1415927}", "\\pi", "correct"),
        ("\\boxed{\\sqrt{2}}", "1.5", "incorrect"),
        ("\\boxed{10 cm}", "10", "correct"),
    )

    def __init__(self, tolerance: Fraction | float = DEFAULT_TOLERANCE) -> None:
        if not 0 <= tolerance < 1:
            raise BadInput(f"numeric grader: expected a tolerance from 0 to below 1, got {tolerance}")
        self.tolerance = Fraction(tolerance)

    def grade(self, completion: str, reference: str, *, question: str | None = None) -> Verdict:
        """The verdict on one completion.

        Raises:
            BadReference: the reference is not a number.
        """
        start = time.perf_counter()
        return self._judged(self.read(completion, question=question), reference, start)

    def read(self, completion: str, *, question: str | None = None) -> Reading:
        """The final answer and its tree."""
        return read_answer(completion, question=question)

    def judge(self, reading: Reading, reference: str, *, question: str | None = None) -> Verdict:
        """The verdict on what was read.

        Raises:
            BadReference: the reference is not a number.
        """
        return self._judged(reading, reference, time.perf_counter())

    def _judged(self, reading: Reading, reference: str, start: float) -> Verdict:
        targets = [strip_label(target) for target in read_reference(reference)]
        if not all(is_scalar(target) for target in targets):
            raise BadReference(
                f"reference {reference[:80]!r}: expected one number; use the math grader for other answers"
            )
        status, method, detail = reading.failure or Status.INCORRECT, reading.rule, reading.detail
        if reading.node is not None:
            check_tree(reading.node)
            for target in targets:
                try:
                    found = compare(strip_label(reading.node), target, tolerance=self.tolerance)
                except TooLarge as error:
                    status, method, detail = Status.OVER_BUDGET, "exact", str(error)
                    break
                status = Status.CORRECT if found.equal else Status.INCORRECT
                method, detail = found.rung, found.detail
                if found.equal:
                    break
        return Verdict(status, reading.answer, self.name, method, detail, time.perf_counter() - start)
