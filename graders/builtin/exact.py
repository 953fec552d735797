"""Grades a final answer as text: the words must be the reference's, whatever the case, markup and punctuation."""

import time

from graders.builtin.reading import Reading, accepted_forms, read_text
from graders.errors import BadReference
from graders.parsing.parse import canonical_text
from graders.verdict import Status, Verdict


class ExactGrader:
    """Correct where the extracted answer and an accepted form have one canonical text."""

    name = "exact"
    examples = (("The answer is \\boxed{Even}.", "even", "correct"), ("\\boxed{2}", "2.0", "incorrect"))

    def grade(self, completion: str, reference: str, *, question: str | None = None) -> Verdict:
        """The verdict on one completion.

        Raises:
            BadReference: the reference is empty.
        """
        start = time.perf_counter()
        return self._judged(self.read(completion, question=question), reference, start)

    def read(self, completion: str, *, question: str | None = None) -> Reading:
        """The answer span, unparsed."""
        return read_text(completion, question=question)

    def judge(self, reading: Reading, reference: str, *, question: str | None = None) -> Verdict:
        """The verdict on what was read.

        Raises:
            BadReference: the reference is empty.
        """
        return self._judged(reading, reference, time.perf_counter())

    def _judged(self, reading: Reading, reference: str, start: float) -> Verdict:
        targets = [_comparable(form) for form in accepted_forms(reference)]
        if not all(targets):
            raise BadReference(f"reference {reference[:80]!r}: expected some text, got none")
        if reading.answer is None:
            status, detail = reading.failure or Status.NO_ANSWER, reading.detail
        else:
            same = _comparable(reading.answer) in targets
            status, detail = (Status.CORRECT if same else Status.INCORRECT), "canonical text against canonical text"
        return Verdict(status, reading.answer, self.name, "text", detail, time.perf_counter() - start)


def _comparable(text: str) -> str:
    """The canonical text; the text itself where nothing but signs is in it."""
    return canonical_text(text) if any(char.isalpha() for char in text) else "".join(text.split())
