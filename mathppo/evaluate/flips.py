"""Flips: samples whose verdict changes when a log is graded again."""

from collections import Counter
from collections.abc import Sequence

from graders.verdict import Status
from mathppo.evaluate.samples import GradedSample, Sample
from mathppo.records import Record


class Flip(Record, frozen=True, tag=False):
    """One sample whose status differs between two graders.

    Args:
        benchmark: the problem set.
        problem_id: id of the problem.
        sample_index: index of the sample of the problem.
        reference: the reference answer.
        before: status from the old grader.
        after: status from the new grader.
        answer_before: the answer span that the old grader extracted.
        answer_after: the answer span that the new grader extracted.
        detail: the reason of the new verdict.
    """

    benchmark: str
    problem_id: str
    sample_index: int
    reference: str
    before: Status
    after: Status
    answer_before: str | None
    answer_after: str | None
    detail: str


class Rescore(Record, frozen=True, tag="rescore/1"):
    """Result of grading a log again.

    Args:
        before: name of the old grader.
        after: name of the new grader.
        num_samples: number of samples.
        num_correct_before: correct samples according to the old grader.
        num_correct_after: correct samples according to the new grader.
        flips: samples whose status differs, in the order of the log.
    """

    before: str
    after: str
    num_samples: int
    num_correct_before: int
    num_correct_after: int
    flips: list[Flip]

    @property
    def counts(self) -> list[tuple[str, int]]:
        """Number of flips per kind, the most frequent first."""
        kinds = Counter(f"{flip.before} to {flip.after}" for flip in self.flips)
        return sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))


def list_flips(samples: Sequence[Sample], old: Sequence[GradedSample], new: Sequence[GradedSample]) -> list[Flip]:
    """Return the samples whose status differs between two gradings, both in the order of the samples."""
    return [
        Flip(
            benchmark=sample.benchmark,
            problem_id=sample.problem_id,
            sample_index=sample.sample_index,
            reference=after.reference,
            before=before.verdict.status,
            after=after.verdict.status,
            answer_before=before.verdict.answer,
            answer_after=after.verdict.answer,
            detail=after.verdict.detail,
        )
        for sample, before, after in zip(samples, old, new, strict=True)
        if before.verdict.status is not after.verdict.status
    ]
