"""Answer graders: statuses, references, read and judge, echoes and options."""

from fractions import Fraction
from typing import Any

import pytest

from graders.builtin.answer_reader import Reading, accepted_forms, read_reference
from graders.builtin.choice import ChoiceGrader
from graders.builtin.exact import ExactGrader
from graders.builtin.math import MathGrader
from graders.builtin.numeric import NumericGrader
from graders.builtin.options import options
from graders.errors import BadInput, BadReference
from graders.parsing.tree import Apply, Name, Node
from graders.verdict import Status

GRADERS = (MathGrader, ExactGrader, NumericGrader, ChoiceGrader)


@pytest.mark.parametrize("make", GRADERS)
def test_examples_of_a_grader_get_their_status(make: type[Any]) -> None:
    grader = make()
    for completion, reference, status in grader.options.examples:
        assert grader.grade(completion, reference).status == status
        split = grader.judge(grader.read(completion), reference)
        assert (split.status, split.grader) == (status, grader.name)


@pytest.mark.parametrize(
    ("completion", "reference", "status", "method"),
    [
        (r"\boxed{3}", "3", "correct", "text"),
        (r"\boxed{3.0}", "3", "correct", "exact"),
        (r"\boxed{4}", "3", "incorrect", "exact"),
        (r"\boxed{\sqrt{12}}", r"2\sqrt{3}", "correct", "algebraic"),
        ("nothing", "3", "incorrect", "text"),
        ("I have no idea at all", "3", "no_answer", "none"),
        (r"\boxed{\frac{1}{}}", "3", "unparsable", "boxed"),
        (r"\boxed{9^{9^{9^9}}}", "3", "over_budget", "exact"),
        (r"\boxed{" + "9" * 30_000 + "}", "3", "over_budget", "boxed"),
        (r"\boxed{\int_0^1 x dx}", r"\int_0^1 x\,dx", "correct", "text"),
    ],
)
def test_math_grader_distinguishes_outcomes(completion: str, reference: str, status: str, method: str) -> None:
    verdict = MathGrader().grade(completion, reference)
    assert (verdict.status, verdict.method) == (status, method)
    assert verdict.duration_s > 0


@pytest.mark.parametrize("reference", ["", "  ", r"\frac{1}{", r"\boxed{}", "x" * 30_000, "-"])
@pytest.mark.parametrize("completion", [r"\boxed{3}", "I have no idea at all", r"\boxed{1/2}"])
def test_unparsable_reference_raises_bad_reference(completion: str, reference: str) -> None:
    with pytest.raises(BadReference, match="reference"):
        MathGrader().grade(completion, reference)


def test_reference_may_list_forms_or_be_a_solution() -> None:
    assert accepted_forms('["1/2", "one half"]') == ("1/2", "one half")
    assert accepted_forms('["1/2", 3]') == ('["1/2", 3]',)
    assert accepted_forms('["1/2]') == ('["1/2]',)
    grader = MathGrader()
    assert grader.grade(r"\boxed{0.5}", '["one half", "1/2"]').correct
    assert not grader.grade(r"\boxed{0.6}", '["one half", "1/2"]').correct
    assert grader.grade(r"\boxed{20}", r"Solving gives $x=1/5$, or $\boxed{20}$ percent.").correct
    assert grader.grade(r"\boxed{20}", "4 times 5 is 20\n#### 20").correct
    assert len(read_reference('["1", "2", "3"]')) == 3


def test_judge_rejects_a_tree_beyond_the_bounds() -> None:
    node: Node = Name("x")
    for _ in range(300):
        node = Apply("neg", (node,))
    forged = Reading("x", node, "boxed", None, "")
    for grader in (MathGrader(), NumericGrader(), ChoiceGrader()):
        with pytest.raises(BadInput, match="depth"):
            grader.judge(forged, "3" if grader.name != "choice" else "B")


def test_fast_grade_returns_none_if_it_cannot_decide() -> None:
    grader = MathGrader()
    assert grader.fast_grade(r"\boxed{\sqrt{4}}", "2") is None
    assert grader.fast_grade("x" * 300_000, "2") is None
    fast = grader.fast_grade(r"\boxed{\frac{2}{4}}", "1/2")
    assert fast is not None
    assert fast.correct
    assert grader.fast_grade(r"\boxed{C}", "B") is not None


def test_unevaluated_expression_of_the_question_is_incorrect() -> None:
    grader, question = MathGrader(), "Compute $7 + 5$ and factor $x^2-1$."
    echoed = grader.grade(r"\boxed{7+5}", "12", question=question)
    assert (echoed.status, echoed.method) == (Status.INCORRECT, "echo")
    assert grader.grade(r"\boxed{7+5}", "12").correct
    assert grader.grade(r"\boxed{12}", "12", question=question).correct
    assert grader.grade(r"\boxed{x^2-1}", "x^2 - 1", question=question).correct
    assert not grader.grade(r"\boxed{x^2-1}", "(x-1)(x+1)", question=question).correct


QUESTIONS = [
    "What? (A) 20 (B) 24 (C) 28 (D) 30",
    "What?\nA. 20\nB. 24\nC. 28\nD. 30",
    r"What? $\textbf{(A)}\ 20 \qquad \textbf{(B)}\ 24 \qquad \textbf{(C)}\ 28 \qquad \textbf{(D)}\ 30$",
]


@pytest.mark.parametrize("question", QUESTIONS)
def test_option_letter_equals_the_value_of_its_option(question: str) -> None:
    assert options(question) == {"A": "20", "B": "24", "C": "28", "D": "30"}
    grader = MathGrader()
    assert grader.grade(r"\boxed{28}", "C", question=question).method == "option"
    assert grader.grade(r"\boxed{C}", "28", question=question).correct
    assert not grader.grade(r"\boxed{24}", "C", question=question).correct
    assert not grader.grade(r"\boxed{28}", "C").correct
    assert ChoiceGrader().grade(r"\boxed{28}", "C", question=question).correct


def test_answer_too_large_to_compare_matches_no_option() -> None:
    question = "Which? (A) 1 (B) 2 (C) 3"
    for grader in (MathGrader(), ChoiceGrader()):
        assert grader.grade(r"\boxed{0(10^9)!.5}", "B", question=question).status is Status.INCORRECT


@pytest.mark.parametrize("joint", ["/", "\\pm "])
def test_tree_too_deep_is_over_budget_in_grade_and_in_judge(joint: str) -> None:
    answer = f"\\boxed{{{joint.join(['10'] * 1500)}}}"
    grader = MathGrader()
    for verdict in (grader.grade(answer, "100"), grader.judge(grader.read(answer), "100")):
        assert verdict.status is Status.OVER_BUDGET
        assert "expected a depth of at most" in verdict.detail


def test_question_without_options_has_none() -> None:
    assert options("Let (A) be a set. What is A. B?") == {}
    assert options("Compute 3.") == {}


def test_tolerance_applies_to_the_comparison() -> None:
    assert MathGrader(tolerance=Fraction(1, 10)).grade(r"\boxed{105}", "100").correct
    assert NumericGrader(tolerance=0.1).grade(r"\boxed{105}", "100").correct
    assert not NumericGrader().grade(r"\boxed{105}", "100").correct
    with pytest.raises(BadInput, match="tolerance from 0 to below 1"):
        NumericGrader(tolerance=1)


def test_numeric_grader_requires_one_number_as_reference() -> None:
    with pytest.raises(BadReference, match="one number"):
        NumericGrader().grade(r"\boxed{1}", "1, 2")
    assert NumericGrader().grade(r"\boxed{9^{9^{9}}}", "1").status is Status.OVER_BUDGET
    assert NumericGrader().grade("no idea whatsoever, sorry", "1").status is Status.NO_ANSWER
    assert NumericGrader().grade(r"\boxed{x = 3.0000001}", "x = 3").correct


def test_exact_grader_compares_canonical_texts() -> None:
    assert ExactGrader().grade(r"\boxed{\text{The Even}}", "even").correct
    assert ExactGrader().grade(r"\boxed{1, 2}", "1,2").correct
    assert not ExactGrader().grade(r"\boxed{1/2}", "0.5").correct
    with pytest.raises(BadReference, match="expected some text"):
        ExactGrader().grade(r"\boxed{1}", " ")


def test_choice_grader_requires_exactly_the_letters() -> None:
    grader = ChoiceGrader()
    assert grader.grade(r"\boxed{C, A}", "A, C").correct
    assert grader.grade(r"\boxed{(b)}", "B").correct
    assert not grader.grade(r"\boxed{A, B}", "B").correct
    assert not grader.grade(r"\boxed{12}", "B").correct
    assert grader.grade("no idea whatsoever, sorry", "B").status is Status.NO_ANSWER
    with pytest.raises(BadReference, match="option letters"):
        grader.grade(r"\boxed{B}", "12")
