"""Grades a final answer as text, without regard to case, markup and punctuation."""

from graders.builtin.answer_grader import AnswerGrader, Outcome
from graders.builtin.answer_reader import Reading, accepted_forms, read_text
from graders.errors import BadReference
from graders.grader import GraderOptions
from graders.parsing.parse import canonical_text
from graders.verdict import Status


class ExactGrader(AnswerGrader):
    """Correct if the extracted answer and an accepted form have the same canonical text."""

    name = "exact"
    options = GraderOptions(
        examples=(("The answer is \\boxed{Even}.", "even", "correct"), ("\\boxed{2}", "2.0", "incorrect"))
    )

    def read(self, completion: str, *, question: str | None = None) -> Reading:
        """Extract the final answer without parsing it."""
        return read_text(completion, question=question)

    def compare(self, reading: Reading, reference: str, question: str | None) -> Outcome:
        """Compare canonical texts.

        Raises:
            BadReference: the reference is empty.
        """
        targets = [_comparable(form) for form in accepted_forms(reference)]
        if not all(targets):
            raise BadReference(f"reference {reference[:80]!r}: expected some text, got none")
        if reading.answer is None:
            return reading.failure or Status.NO_ANSWER, "text", reading.detail
        same = _comparable(reading.answer) in targets
        return (Status.CORRECT if same else Status.INCORRECT), "text", "canonical text against canonical text"


def _comparable(text: str) -> str:
    """Return the canonical text, or the text without spaces if it has no letters."""
    return canonical_text(text) if any(char.isalpha() for char in text) else "".join(text.split())
