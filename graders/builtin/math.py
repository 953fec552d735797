r"""The default grader: mathematics in any notation, by the rules of `graders/RULES.md`.

read        completion -> Reading; sees hostile text, never the reference
judge       Reading, reference -> Verdict
grade       read and judge
fast_grade  numerals, fractions, option letters and missing answers; bounded, so it needs no sandbox
"""

import re
import time
from fractions import Fraction

from graders.builtin.answer_grader import AnswerGrader, Outcome, failed
from graders.builtin.answer_reader import Reading, accepted_forms, read_answer, read_extraction, read_reference
from graders.builtin.options import is_same_option
from graders.equivalence import Comparison, TooLarge, compare
from graders.extraction.extract import DEFAULT_POLICY, Extraction, ExtractionPolicy, extract
from graders.grader import GraderOptions
from graders.parsing.tree import Apply, Node, Number, walk
from graders.verdict import Status, Verdict

_NUMERAL = re.compile(r"-?(?:\d{1,15}|\d{1,3}(?:,\d{3}){1,4})(?:\.0+)?")
_FRACTION = re.compile(r"(-?)(?:\\[dt]?frac\{(-?\d{1,15})\}\{(\d{1,15})\}|(-?\d{1,15})/(\d{1,15}))")
_LETTER = re.compile(r"\(?([A-Z])\)?")
_LAYOUT = re.compile(r"[\s{}$]|\\[,;:! ]|\\left|\\right|\\q?quad")
_UNEVALUATED = frozenset(
    "+ * ^ root sqrt factorial binomial permutations sum prod gcd lcm mod log ln sin cos tan / det".split()
)
FAST_CHARS = 200_000


class MathGrader(AnswerGrader):
    """Grades a final answer as mathematics.

    Args:
        policy: the extraction rules that apply.
        tolerance: maximum relative difference of two values that are accepted as equal; None requires exact equality.
    """

    name = "math"
    options = GraderOptions(
        examples=(
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
    )
    """Examples of every rung: grading them imports every module that is imported late."""

    def __init__(self, policy: ExtractionPolicy = DEFAULT_POLICY, tolerance: Fraction | None = None) -> None:
        self.policy = policy
        self.tolerance = tolerance

    def read(self, completion: str, *, question: str | None = None) -> Reading:
        """Extract and parse the final answer by this grader's policy."""
        return read_answer(completion, question=question, policy=self.policy)

    def grade(self, completion: str, reference: str, *, question: str | None = None) -> Verdict:
        """Return the verdict on a completion, by the fast path if it decides.

        Raises:
            BadReference: the reference cannot be parsed.
        """
        start = time.perf_counter()
        found = extract(completion, question=question, policy=self.policy)
        outcome = self._fast_outcome(found, reference) or self.compare(read_extraction(found), reference, question)
        return self.verdict(found.answer, outcome, start)

    def fast_grade(self, completion: str, reference: str, *, question: str | None = None) -> Verdict | None:
        """Return the verdict if linear, bounded work decides it, else None.

        Raises:
            BadReference: the reference cannot be parsed.
        """
        start = time.perf_counter()
        if len(completion) > FAST_CHARS:
            return None
        found = extract(completion, question=question, policy=self.policy)
        outcome = self._fast_outcome(found, reference)
        return None if outcome is None else self.verdict(found.answer, outcome, start)

    def _fast_outcome(self, found: Extraction, reference: str) -> Outcome | None:
        if found.answer is None:
            read_reference(reference)
            return failed(read_extraction(found)) if found.reason != "too_long" else None
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

    def compare(self, reading: Reading, reference: str, question: str | None) -> Outcome:
        """Compare trees by the rungs of `graders.equivalence`.

        Raises:
            BadReference: the reference cannot be parsed.
        """
        references = read_reference(reference)
        if reading.node is None:
            return _same_text(reading, reference) or failed(reading)
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


def _same_text(reading: Reading, reference: str) -> Outcome | None:
    """Return `correct` if an answer that cannot be parsed equals the reference except for layout, else None."""
    if reading.answer is None:
        return None
    text = _without_layout(reading.answer)
    if text and any(text == _without_layout(form) for form in accepted_forms(reference)):
        return Status.CORRECT, "text", "the same text as the reference"
    return None


def _without_layout(text: str) -> str:
    """Return the text without layout; spaces between two digits become `_`, because they may separate two numbers."""
    return _LAYOUT.sub("", re.sub(r"(?<=\d)\s+(?=\d)", "_", text))


def _outcome(found: Comparison, reading: Reading, target: Node, question: str | None) -> Outcome:
    assert reading.node is not None and reading.answer is not None
    if question is not None:
        if found.equal and _is_echo(reading, target, question):
            return Status.INCORRECT, "echo", "the answer repeats an expression of the question without evaluating it"
        if not found.equal and is_same_option(reading.node, target, question):
            return Status.CORRECT, "option", "the answer is the option of the question that equals the reference"
    if found.equal is None:
        return Status.INCORRECT, "undecided", f"no rung decides within its bounds: {found.detail}"
    return (Status.CORRECT if found.equal else Status.INCORRECT), found.rung, found.detail


def _is_echo(reading: Reading, target: Node, question: str) -> bool:
    """Return True if the answer is an unevaluated expression of the question and not the reference itself."""
    assert reading.node is not None and reading.answer is not None
    if reading.node == target or not any(_is_unevaluated(node) for node, _ in walk(reading.node)):
        return False
    return _LAYOUT.sub("", reading.answer) in _LAYOUT.sub("", question)


def _is_unevaluated(node: Node) -> bool:
    if not isinstance(node, Apply) or node.op not in _UNEVALUATED:
        return False
    return not (node.op == "/" and all(isinstance(part, Number) for part in node.args))
