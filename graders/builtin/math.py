r"""The default grader: any mathematics that an answer is written in, by the rules of `graders/RULES.md`.

read    completion -> Reading      sees hostile text, never the reference
judge   Reading, reference -> Verdict
grade   both
fast_grade   numerals, fractions, option letters and missing answers; bounded, so it needs no sandbox
"""

import re
import time
from fractions import Fraction

from graders.builtin.options import matches_by_option
from graders.builtin.reading import Reading, accepted_forms, read_answer, read_reference, reading_of
from graders.equivalence import Comparison, TooLarge, compare
from graders.extraction.extract import DEFAULT_POLICY, Extraction, ExtractionPolicy, extract
from graders.parsing.tree import Apply, Node, Number, check_tree, walk
from graders.verdict import Status, Verdict

_NUMERAL = re.compile(r"-?(?:\d{1,15}|\d{1,3}(?:,\d{3}){1,4})(?:\.0+)?")
_FRACTION = re.compile(r"(-?)(?:\\[dt]?frac\{(-?\d{1,15})\}\{(\d{1,15})\}|(-?\d{1,15})/(\d{1,15}))")
_LETTER = re.compile(r"\(?([A-Z])\)?")
_LAYOUT = re.compile(r"[\s{}$]|\\[,;:! ]|\\left|\\right|\\q?quad")
_UNDONE = frozenset(
    "+ * ^ root sqrt factorial binomial permutations sum prod gcd lcm mod log ln sin cos tan / det".split()
)
FAST_CHARS = 200_000
MAX_DETAIL_CHARS = 500


class MathGrader:
    """Grades a final answer as mathematics.

    Args:
        policy: which statements count as a final answer.
        tolerance: largest relative difference that is accepted everywhere; None, the default, for none.
    """

    name = "math"
    examples = (
        ("\\boxed{\\frac{1}{2}}", "0.5", "correct"),
        ("#### 41", "42", "incorrect"),
        ("\\boxed{(x-1)(x+1)}", "x^2-1", "correct"),
        ("\\boxed{\\frac{1}{\\sqrt{3}}}", "\\frac{\\sqrt{3}}{3}", "correct"),
        ("\\boxed{\\sin(2x)}", "2\\sin x\\cos x", "correct"),
        ("\\boxed{\\sqrt{3+2\\sqrt{2}}}", "1+\\sqrt{2}", "correct"),
        ("\\boxed{1 < x \\le 3}", "(1,3]", "correct"),
        ("\\boxed{\\sqrt{-x^2-1}+\\sin^2 x+\\cos^2 x}", "1+\\sqrt{-x^2-1}", "correct"),
        ("\\boxed{\\text{no solution}}", "\\emptyset", "correct"),
        ("I have no idea at all.", "3", "no_answer"),
    )
    """One for each rung: grading them imports whatever is imported late."""

    def __init__(self, policy: ExtractionPolicy = DEFAULT_POLICY, tolerance: Fraction | None = None) -> None:
        self.policy = policy
        self.tolerance = tolerance

    def grade(self, completion: str, reference: str, *, question: str | None = None) -> Verdict:
        """The verdict on one completion.

        Raises:
            BadReference: the reference cannot be read.
        """
        start = time.perf_counter()
        found = extract(completion, question=question, policy=self.policy)
        quick = self._quick(found, reference)
        status, method, detail = quick or self._judged(reading_of(found), reference, question)
        return self._verdict(found.answer, status, method, detail, start)

    def read(self, completion: str, *, question: str | None = None) -> Reading:
        """What the completion states; knows nothing of the reference."""
        return read_answer(completion, question=question, policy=self.policy)

    def judge(self, reading: Reading, reference: str, *, question: str | None = None) -> Verdict:
        """The verdict on what was read.

        Raises:
            BadReference: the reference cannot be read.
        """
        start = time.perf_counter()
        if reading.node is not None:
            check_tree(reading.node)  # it may come from a process that met hostile text
        return self._verdict(reading.answer, *self._judged(reading, reference, question), start)

    def fast_grade(self, completion: str, reference: str, *, question: str | None = None) -> Verdict | None:
        """The verdict where linear, bounded work decides it; None where the whole ladder is needed.

        Raises:
            BadReference: the reference cannot be read.
        """
        start = time.perf_counter()
        if len(completion) > FAST_CHARS:
            return None
        found = extract(completion, question=question, policy=self.policy)
        quick = self._quick(found, reference)
        return None if quick is None else self._verdict(found.answer, *quick, start)

    def _quick(self, found: Extraction, reference: str) -> tuple[Status, str, str] | None:
        if found.answer is None:
            read_reference(reference)
            return _failed(reading_of(found)) if found.reason != "too_long" else None
        answer, target = found.answer.strip(" $"), reference.strip(" $")
        if (right := _simple_value(target)) is not None:
            left = _simple_value(answer)
            if left is not None and self.tolerance is None:
                same = left == right
                method = "text" if answer == target else "exact"
                return (Status.CORRECT if same else Status.INCORRECT), method, f"{answer} against {target}"
        elif (letter := _LETTER.fullmatch(target)) is not None and (own := _LETTER.fullmatch(answer)) is not None:
            same = letter[1] == own[1]
            return (Status.CORRECT if same else Status.INCORRECT), "text", f"{own[1]} against {letter[1]}"
        return None

    def _judged(self, reading: Reading, reference: str, question: str | None) -> tuple[Status, str, str]:
        references = read_reference(reference)
        if reading.node is None:
            return _same_words(reading, reference) or _failed(reading)
        outcome = Status.INCORRECT, "none", "no accepted form"
        for target in references:
            try:
                found = compare(reading.node, target, tolerance=self.tolerance, question=question)
            except TooLarge as error:
                return Status.OVER_BUDGET, "exact", str(error)
            outcome = _outcome(found, reading, target, question)
            if outcome[0] is Status.CORRECT:
                break
        return outcome

    def _verdict(self, answer: str | None, status: Status, method: str, detail: str, start: float) -> Verdict:
        return Verdict(status, answer, self.name, method, detail[:MAX_DETAIL_CHARS], time.perf_counter() - start)


def _simple_value(text: str) -> Fraction | None:
    if len(text) > 40:
        return None
    if _NUMERAL.fullmatch(text):
        return Fraction(int(text.partition(".")[0].replace(",", "")))
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    top, bottom = match[2] or match[4], int(match[3] or match[5])
    value = Fraction(int(top), bottom) if bottom else None
    return -value if value is not None and match[1] else value


def _failed(reading: Reading) -> tuple[Status, str, str]:
    return reading.failure or Status.UNPARSABLE, reading.rule, reading.detail


def _same_words(reading: Reading, reference: str) -> tuple[Status, str, str] | None:
    """Correct where an answer that cannot be read is, but for layout, the reference itself."""
    if reading.answer is None:
        return None
    words = _tight(reading.answer)
    if words and any(words == _tight(form) for form in accepted_forms(reference)):
        return Status.CORRECT, "text", "the reference as it is written"
    return None


def _tight(text: str) -> str:
    """The text without layout; a space between two digits stays, for it may part two numbers."""
    return _LAYOUT.sub("", re.sub(r"(?<=\d)\s+(?=\d)", "_", text))


def _outcome(found: Comparison, reading: Reading, target: Node, question: str | None) -> tuple[Status, str, str]:
    assert reading.node is not None and reading.answer is not None
    if question is not None:
        if found.equal and _is_echo(reading, target, question):
            return Status.INCORRECT, "echo", "the answer repeats an expression of the question without working it out"
        if not found.equal and matches_by_option(reading.node, target, question):
            return Status.CORRECT, "option", "the option of the question that says so"
    if found.equal is None:
        return Status.INCORRECT, "undecided", f"no rung decides within its bounds: {found.detail}"
    return (Status.CORRECT if found.equal else Status.INCORRECT), found.rung, found.detail


def _is_echo(reading: Reading, target: Node, question: str) -> bool:
    """Whether the answer is an expression of the question, still to be worked out, and not the reference itself."""
    assert reading.node is not None and reading.answer is not None
    if reading.node == target or not any(_is_undone(node) for node, _ in walk(reading.node)):
        return False
    return _LAYOUT.sub("", reading.answer) in _LAYOUT.sub("", question)


def _is_undone(node: Node) -> bool:
    if not isinstance(node, Apply) or node.op not in _UNDONE:
        return False
    return not (node.op == "/" and all(isinstance(part, Number) for part in node.args))
