"""What changes when a log is graded again: every verdict that flips."""

from collections import Counter
from collections.abc import Sequence

from graders.verdict import Status
from mathppo.evaluate.samples import GradedSample, Sample
from mathppo.records import Record


class Flip(Record, frozen=True, tag=False):
    """One sample that two graders judge differently.

    Args:
        benchmark: the problem set.
        problem_id: the problem.
        sample_index: which of its samples.
        reference: the right answer.
        before: status from the old grader.
        after: from the new one.
        answer_before: the answer span that the old one read.
        answer_after: that the new one read.
        detail: why the new one decided so.
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
    """A log graded again.

    Args:
        before: the old grader.
        after: the new one.
        num_samples: all samples.
        num_correct_before: right ones as the old grader sees it.
        num_correct_after: as the new one does.
        flips: samples of which the two say different statuses, in the log's order.
    """

    before: str
    after: str
    num_samples: int
    num_correct_before: int
    num_correct_after: int
    flips: list[Flip]

    @property
    def counts(self) -> list[tuple[str, int]]:
        """Flips by kind, the most frequent first."""
        kinds = Counter(f"{flip.before} to {flip.after}" for flip in self.flips)
        return sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))


def list_flips(samples: Sequence[Sample], old: Sequence[GradedSample], new: Sequence[GradedSample]) -> list[Flip]:
    """List the samples of which two gradings, each in the samples' order, say different statuses."""
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
