"""Grades a multiple-choice answer by its letter, or by the text of an option that the question lists."""

import time

from graders.builtin.options import matches_by_option
from graders.builtin.reading import Reading, read_answer, read_reference
from graders.errors import BadReference
from graders.parsing.tree import Apply, Choice, List, Name, Node, Set, Text, check_tree
from graders.verdict import Status, Verdict


class ChoiceGrader:
    """Correct where exactly the reference's letter, or letters, are chosen."""

    name = "choice"
    examples = (("The answer is (B).", "B", "correct"), ("\\boxed{A, B, C}", "B", "incorrect"))

    def grade(self, completion: str, reference: str, *, question: str | None = None) -> Verdict:
        """The verdict on one completion.

        Raises:
            BadReference: the reference is not one or more option letters.
        """
        start = time.perf_counter()
        return self._judged(self.read(completion, question=question), reference, question, start)

    def read(self, completion: str, *, question: str | None = None) -> Reading:
        """The final answer and its tree."""
        return read_answer(completion, question=question)

    def judge(self, reading: Reading, reference: str, *, question: str | None = None) -> Verdict:
        """The verdict on what was read.

        Raises:
            BadReference: the reference is not one or more option letters.
        """
        return self._judged(reading, reference, question, time.perf_counter())

    def _judged(self, reading: Reading, reference: str, question: str | None, start: float) -> Verdict:
        targets = [_letters(target) for target in read_reference(reference)]
        if not all(targets):
            raise BadReference(f"reference {reference[:80]!r}: expected option letters such as B, or A, C")
        status, method, detail = reading.failure or Status.INCORRECT, reading.rule, reading.detail
        if reading.node is not None:
            check_tree(reading.node)
            chosen = _letters(reading.node)
            method, detail = "text", f"{_shown(chosen)} against {_shown(targets[0])}"
            status = Status.CORRECT if chosen in targets else Status.INCORRECT
            if not chosen and question is not None:
                letters = [Choice(letter) for target in targets for letter in target if len(target) == 1]
                if any(matches_by_option(reading.node, letter, question) for letter in letters):
                    status, method = Status.CORRECT, "option"
        return Verdict(status, reading.answer, self.name, method, detail, time.perf_counter() - start)


def _letters(node: Node) -> frozenset[str]:
    """The option letters that an answer names; empty where it is anything else."""
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


def _shown(letters: frozenset[str]) -> str:
    return ", ".join(sorted(letters)) or "no option letter"
