r"""Random text, generated LaTeX and mutated references: every grader returns a verdict in time, and never an error."""

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from graders import BadReference, Status
from graders.builtin.answer_reader import Reading, read_extraction
from graders.extraction.extract import Extraction
from graders.grader import resolve
from graders.parsing.tree import check_tree
from graders.sandbox.child.validate_verdict import validate_verdict

GRADERS: dict[str, Any] = {name: resolve(name) for name in ("math", "exact", "numeric", "choice", "equation")}
REFERENCES = {
    "math": [
        "\\frac{1}{2}",
        "x^2 + 1",
        "(1, 2)",
        "[0, 1)",
        "\\{1, 2\\}",
        "x = 3n, n \\in \\mathbb{Z}",
        "B",
        "10 cm",
        "0",
    ],
    "exact": ["Even", "\\frac{1}{2}"],
    "numeric": ["42.5", "\\pi", "10 cm"],
    "choice": ["B", "A, C"],
    "equation": ["x^2 - 5x + 6 = 0", "x + y = 3; x - y = 1", "x = x + 1", "x + x = 2x"],
}
QUESTIONS = [None, "Which? (A) 1 (B) 2 (C) \\frac{1}{2}", "Solve for x: x^2 - 5x + 6 = 0", "What is 2 + 2?"]
CASES = Path(__file__).parents[2] / "data" / "grading" / "cases.jsonl"
REFERENCE_ANSWERS = sorted({json.loads(line)["gold"] for line in CASES.read_text("utf-8").splitlines()})
LIMIT_S = 2.0
"""Processor time; the default time limit of a pool for one answer."""

WRAPPERS = ["%s", "\\boxed{%s}", "\\boxed{%s", "The answer is %s.", "#### %s", "$%s$", "<think>%s</think>\\boxed{%s}"]

leaves = st.sampled_from(
    "0 7 .5 1e9 1{,}000 3.(6) .\\overline{36} x y n_1 x' \\pi e i \\infty \\theta B (B) \\% cm 2A_{16} \\emptyset "
    "\\mathbb{R} \\ldots 9^{9^{9^9}} 10^{999} 170! -1 \\text{no} 12:30 \\frac12 2^-3 \u0661 \u00bd \u2212".split()
)
JOINTS = [*"+ - * / ^ _ , ; : = < \\le \\ne \\in \\cup \\pm \\cdot &".split(), " "]
FRAMES = [
    *"(%s) [%s] {%s} \\{%s\\} |%s| \\left(%s\\right) \\left[%s\\right) %s! -%s %s^2 _{%s}".split(),
    *("\\sqrt{%s}", "\\sqrt[3]{%s}", "\\sin %s", "\\log_{2}%s", "\\text{%s}", "\\lfloor %s\\rfloor", "\\overline{%s}"),
    *("\\sum_{k=1}^{9}%s", "\\int_0^1 %s dx", "\\lim_{x\\to 0}%s", "\\begin{pmatrix}%s\\end{pmatrix}", "%s^{\\circ}"),
    *("\\begin{cases}%s\\end{cases}", "\\binom{%s}{2}", "%s \\pmod{7}", "%s \\text{ cm}", "\\$%s", "%s or 7", "not %s"),
]


def _compound(smaller: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(smaller, st.sampled_from(JOINTS), smaller).map("".join),
        st.tuples(st.sampled_from(FRAMES), smaller).map(lambda pair: pair[0].replace("%s", pair[1])),
        st.tuples(smaller, smaller).map(lambda pair: f"\\frac{{{pair[0]}}}{{{pair[1]}}}"),
    )


latex = st.recursive(leaves, _compound, max_leaves=12)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """Return a reference of the corpus with one to three parts deleted, inserted or repeated."""
    text = draw(st.sampled_from(REFERENCE_ANSWERS))
    for _ in range(draw(st.integers(1, 3))):
        here, there = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        middle = draw(
            st.sampled_from(
                ["", text[here:there] * 2, draw(leaves), draw(st.sampled_from(REFERENCE_ANSWERS)), "}", "\\"]
            )
        )
        text = (text[:here] + middle + text[there:])[:500]
    return text


texts = st.one_of(st.text(max_size=200), latex, mutated(), latex.flatmap(lambda text: st.just(text * 30)))
completions = st.tuples(st.sampled_from(WRAPPERS), texts).map(lambda pair: pair[0].replace("%s", pair[1]))


def graded(name: str, completion: str, reference: str, question: str | None) -> Status:
    """Read and judge as in two processes, within the limit."""
    begin = time.process_time()
    reading = GRADERS[name].read(completion, question=question)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(reading), type=Reading)
    assert sent == reading
    verdict = validate_verdict(GRADERS[name].judge(sent, reference, question=question), name, 0.0)
    assert time.process_time() - begin < LIMIT_S
    return verdict.status


@pytest.mark.parametrize("name", GRADERS)
@settings(max_examples=100)
@given(st.data(), completions, st.sampled_from(QUESTIONS))
def test_any_completion_gets_a_verdict(name: str, data: st.DataObject, completion: str, question: str | None) -> None:
    reference = data.draw(st.sampled_from(REFERENCES[name]))
    if name == "equation":
        question = None
    assert graded(name, completion, reference, question) is not Status.ERROR


@pytest.mark.parametrize("name", GRADERS)
@settings(max_examples=60)
@given(texts, st.sampled_from(["#### 1", "\\boxed{x}", "The answer is (B)."]))
def test_any_reference_gets_a_verdict_or_raises_bad_reference(name: str, reference: str, completion: str) -> None:
    try:
        status = graded(name, completion, reference, None)
    except BadReference:
        return
    assert status is not Status.ERROR


@settings(max_examples=200)
@given(texts)
@example("\\frac12/2A_{16}/0" * 30)  # deeper than the bound
def test_every_answer_that_is_read_is_within_the_bounds_of_trees(text: str) -> None:
    reading = read_extraction(Extraction(text, 0, len(text), "boxed", ""))
    if reading.node is not None:
        check_tree(reading.node)
    else:
        assert reading.failure in (Status.UNPARSABLE, Status.OVER_BUDGET)


def test_repeating_decimal_without_a_leading_zero_is_parsed() -> None:
    assert graded("math", "\\boxed{.\\overline{36}}", "4/11", None) is Status.CORRECT
