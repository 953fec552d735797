"""Cascade: the first correct verdict wins, and an error precedes an incorrect verdict."""

import pytest

from graders import BadGrader, BadReference, GraderPool, Status, UnknownGrader
from graders.builtin.cascade import CascadeGrader, cascade
from graders.grader import is_shipped
from graders.verdict import Verdict


class Fixed:
    def __init__(self, status: Status | None) -> None:
        self.name = "fixed"
        self._status = status

    def read(self, completion: str, *, question: str | None = None) -> str:
        return completion

    def judge(self, reading: str, reference: str, *, question: str | None = None) -> Verdict:
        if self._status is None:
            raise BadReference("planted")
        return Verdict(self._status, reading, self.name, "fixed", "", 0.0)

    def grade(self, completion: str, reference: str, *, question: str | None = None) -> Verdict:
        return self.judge(completion, reference)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["incorrect", "correct"], "correct"),
        (["correct", None], "correct"),
        ([None, "correct"], "correct"),
        ([None, "incorrect"], "error"),
        (["no_answer", "unparsable"], "unparsable"),
    ],
)
def test_correct_precedes_error_precedes_the_last_verdict(statuses: list[str | None], expected: str) -> None:
    parts = [Fixed(None if status is None else Status(status)) for status in statuses]
    assert CascadeGrader(parts).grade("1", "2").status == expected


def test_cascade_runs_in_the_sandbox_by_specification() -> None:
    assert is_shipped("cascade:exact, math")
    assert not is_shipped("cascade:exact,mine.py:G")
    with GraderPool("cascade:exact,math") as pool:
        verdicts = pool.grade([("\\boxed{even}", "Even"), ("\\boxed{1/2}", "0.5"), ("\\boxed{3}", "4")])
    assert [v.status.value for v in verdicts] == ["correct", "correct", "incorrect"]
    assert [v.grader for v in verdicts[:2]] == ["exact", "math"]


@pytest.mark.parametrize(
    ("names", "kind", "message"),
    [
        ("math", BadGrader, "expected two graders or more"),
        ("math,python", BadGrader, "expected graders with read and judge, got 'python'"),
        ("math,nothing", UnknownGrader, "expected one of"),
    ],
)
def test_invalid_cascade_is_rejected(names: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        cascade(names)
