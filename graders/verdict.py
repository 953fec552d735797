"""What a grader says about one completion.

A verdict tells apart the model's failures from the grader's own: `error` is never a wrong answer, and no reward may be
paid or withheld for it.
"""

import enum
import math

import msgspec


class Status(enum.StrEnum):
    """The six outcomes of grading; exactly one holds."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    NO_ANSWER = "no_answer"
    """The completion states no final answer."""
    UNPARSABLE = "unparsable"
    """It states one that cannot be read as mathematics or text."""
    OVER_BUDGET = "over_budget"
    """Grading it exhausted the time, memory or size limit: the completion's doing, counted as wrong."""
    ERROR = "error"
    """The grader itself failed: no reward, counted, never a silent zero."""


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of grading one completion against one reference.

    Args:
        status: the outcome.
        answer: the answer span that was graded, as it stands in the completion; None where there was none.
        grader: name of the grader that decided.
        method: the rung or rule that decided, for instance `"exact"` or `"deadline"`.
        detail: one line for a person; at most 500 characters are kept.
        duration_s: seconds of grading time, not counting time in a queue; finite and at least 0.

    Raises:
        ValueError: `duration_s` is negative or not finite.
    """

    status: Status
    answer: str | None
    grader: str
    method: str
    detail: str
    duration_s: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.duration_s) and self.duration_s >= 0):
            raise ValueError(f"verdict: expected a finite duration_s >= 0, got {self.duration_s}")

    @property
    def correct(self) -> bool:
        return self.status is Status.CORRECT
