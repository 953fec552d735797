"""Grades a final answer as one number, within a relative tolerance."""

from fractions import Fraction

from graders.builtin.answer_grader import AnswerGrader, Outcome, failed
from graders.builtin.answer_reader import Reading, read_reference
from graders.equivalence import TooLarge, compare
from graders.equivalence.canonical.canonicalize import strip_label
from graders.equivalence.compare.scalars import is_scalar
from graders.errors import BadInput, BadReference
from graders.grader import GraderOptions
from graders.verdict import Status

DEFAULT_TOLERANCE = Fraction(1, 10**6)


class NumericGrader(AnswerGrader):
    """Correct if the answer's value is within `tolerance` of the reference's.

    Args:
        tolerance: maximum difference relative to the reference, in [0, 1); 0 requires equality.

    Raises:
        BadInput: the tolerance is out of range.
    """

    name = "numeric"
    options = GraderOptions(
        examples=(
            ("\\boxed{3.1415927}", "\\pi", "correct"),
            ("\\boxed{\\sqrt{2}}", "1.5", "incorrect"),
            ("\\boxed{10 cm}", "10", "correct"),
        )
    )

    def __init__(self, tolerance: Fraction | float = DEFAULT_TOLERANCE) -> None:
        if not 0 <= tolerance < 1:
            raise BadInput(f"numeric grader: expected a tolerance from 0 to below 1, got {tolerance}")
        self.tolerance = Fraction(tolerance)

    def compare(self, reading: Reading, reference: str, question: str | None) -> Outcome:
        """Compare values.

        Raises:
            BadReference: the reference is not a number.
        """
        targets = [strip_label(target) for target in read_reference(reference)]
        if not all(is_scalar(target) for target in targets):
            raise BadReference(
                f"reference {reference[:80]!r}: expected one number; use the math grader for other answers"
            )
        if reading.node is None:
            return failed(reading)
        outcome = Status.INCORRECT, "none", "no accepted form"
        for target in targets:
            try:
                found = compare(strip_label(reading.node), target, tolerance=self.tolerance)
            except TooLarge as error:
                return Status.OVER_BUDGET, "exact", str(error)
            outcome = (Status.CORRECT if found.equal else Status.INCORRECT), found.rung, found.detail
            if found.equal:
                break
        return outcome
