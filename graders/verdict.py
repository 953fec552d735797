"""Verdict: the outcome of grading one completion.

A verdict distinguishes failures of the model from failures of the grader: `error` is never a wrong answer, and the
sample gets no reward.
"""

import enum
import math

import msgspec


class Status(enum.StrEnum):
    """The six outcomes of grading."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    NO_ANSWER = "no_answer"
    """The completion states no final answer."""
    UNPARSABLE = "unparsable"
    """The completion states an answer that cannot be read as mathematics or text."""
    OVER_BUDGET = "over_budget"
    """Grading exhausted the time, memory or size limit; the completion caused it and counts as wrong."""
    ERROR = "error"
    """The grader itself failed; the sample gets no reward and is counted separately."""


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of grading one completion against one reference.

    Args:
        status: the outcome.
        answer: the graded span, verbatim from the completion; None if there is none.
        grader: name of the grader.
        method: the rung or rule that decided, such as `"exact"` or `"deadline"`.
        detail: a one-line reason; cut at 500 characters.
        duration_s: grading time in seconds, excluding time in a queue; finite and at least 0.

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
