"""Grades a multiple-choice answer by its letter, or by the text of an option that the question lists."""

from graders.builtin.answer_grader import AnswerGrader, Outcome, failed
from graders.builtin.answer_reader import Reading, read_reference
from graders.builtin.options import is_same_option
from graders.errors import BadReference
from graders.grader import GraderOptions
from graders.parsing.tree import Apply, Choice, List, Name, Node, Set, Text
from graders.verdict import Status


class ChoiceGrader(AnswerGrader):
    """Correct if exactly the letter or letters of the reference are chosen."""

    name = "choice"
    options = GraderOptions(examples=(("The answer is (B).", "B", "correct"), ("\\boxed{A, B, C}", "B", "incorrect")))

    def compare(self, reading: Reading, reference: str, question: str | None) -> Outcome:
        """Compare sets of letters, or the answer with the text of the reference's option.

        Raises:
            BadReference: the reference is not one or more option letters.
        """
        targets = [_letters(target) for target in read_reference(reference)]
        if not all(targets):
            raise BadReference(f"reference {reference[:80]!r}: expected option letters such as B, or A, C")
        if reading.node is None:
            return failed(reading)
        chosen = _letters(reading.node)
        detail = f"{_listed(chosen)} against {_listed(targets[0])}"
        if not chosen and question is not None:
            letters = [Choice(letter) for target in targets for letter in target if len(target) == 1]
            if any(is_same_option(reading.node, letter, question) for letter in letters):
                return Status.CORRECT, "option", detail
        return (Status.CORRECT if chosen in targets else Status.INCORRECT), "text", detail


def _letters(node: Node) -> frozenset[str]:
    """Return the option letters of an answer; the empty set if it has anything else."""
    match node:
        case Choice(letter=letter):
            return frozenset(letter)
        case Name(text=text) if len(text) == 1 and text.isalpha():
            return frozenset(text.upper())
        case Text(text=text) if len(text) == 1:
            return frozenset(text.upper())
        case List(items=items) | Set(items=items) | Apply(op="and", args=items):
            found = [_letters(item) for item in items]
            return frozenset().union(*found) if all(found) else frozenset()
    return frozenset()


def _listed(letters: frozenset[str]) -> str:
    return ", ".join(sorted(letters)) or "no option letter"
