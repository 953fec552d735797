"""Base class of the graders that compare a final answer with a reference."""

import abc
import time

from graders.builtin.answer_reader import Reading, read_answer
from graders.grader import GraderOptions
from graders.parsing.tree import check_tree
from graders.verdict import Status, Verdict

MAX_DETAIL_CHARS = 500

Outcome = tuple[Status, str, str]
"""Status, method and detail of a verdict."""


class AnswerGrader(abc.ABC):
    """A split grader: `read` sees the completion, `judge` the reference, `grade` both.

    `judge` and `grade` raise `BadReference` if `compare` does.
    """

    name: str
    options: GraderOptions

    @abc.abstractmethod
    def compare(self, reading: Reading, reference: str, question: str | None) -> Outcome:
        """Compare an answer with a reference.

        Raises:
            BadReference: the grader cannot use the reference.
        """

    def read(self, completion: str, *, question: str | None = None) -> Reading:
        """Extract and parse the final answer."""
        return read_answer(completion, question=question)

    def judge(self, reading: Reading, reference: str, *, question: str | None = None) -> Verdict:
        """Return the verdict on a reading.

        Raises:
            BadInput: the tree exceeds the bounds on nodes, depth or digits.
        """
        start = time.perf_counter()
        if reading.node is not None:
            check_tree(reading.node)  # it may come from a process that parsed hostile text
        return self.verdict(reading.answer, self.compare(reading, reference, question), start)

    def grade(self, completion: str, reference: str, *, question: str | None = None) -> Verdict:
        """Return the verdict on a completion."""
        start = time.perf_counter()
        reading = self.read(completion, question=question)
        return self.verdict(reading.answer, self.compare(reading, reference, question), start)

    def verdict(self, answer: str | None, outcome: Outcome, start: float) -> Verdict:
        """Return the verdict of an outcome; `start` is the `perf_counter` at which grading began."""
        status, method, detail = outcome
        return Verdict(status, answer, self.name, method, detail[:MAX_DETAIL_CHARS], time.perf_counter() - start)


def failed(reading: Reading) -> Outcome:
    """Return the outcome of a reading without a tree."""
    return reading.failure or Status.UNPARSABLE, reading.rule, reading.detail
