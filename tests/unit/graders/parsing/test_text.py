"""Respelling: rare spellings become common ones; similar texts are unchanged."""

import time

import pytest

from graders.builtin.math import MathGrader
from graders.parsing.text import MAX_RESPELLED_CHARS, respell

GRADER = MathGrader()


@pytest.mark.parametrize(
    ("text", "common"),
    [
        ("1_234_567", "1234567"),
        ("1'234'567", "1234567"),
        ("**12**", "12"),
        ("6.02 x 10^23", "6.02*10^23"),
        ("0.363636...", "0.(36)"),
        ("0.1666\\ldots", "0.1(6)"),
        ("3.14159...", "3.14159"),
        ("[2,5[", "[2,5)"),
        ("]2,5]", "(2,5]"),
        ("]-1,0[ \\cup ]2,3[", "(-1,0) \\cup(2,3)"),
        ("np.array([[1,2],[3,4]])", "[[1,2],[3,4]]"),
        ("1&2\\\\[4pt]3&4", "1&2\\\\ 3&4"),
        ("3 to 4", "3:4"),
        ("3\\text{ to }4\\text{ to }5", "3:4:5"),
        ("60^{o}", "60^\\circ"),
        ("45^\\circ 30^{\\prime}", "45^\\circ 30'"),
        ("45 degrees 30 minutes", "45^\\circ 30'"),
        ("10C3", "\\binom{10}{3}"),
        ("{}_{10}C_{3}", "\\binom{10}{3}"),
        ("^{10}P_3", "P(10,3)"),
        ("1011_{\\text{two}}", "1011_{2}"),
        ("x = 2 \\quad y = 3", "x = 2, y = 3"),
        ("12^{\\text{th}}", "12\\text{th}"),
        ("28 per cent", "28 percent"),
        ("\\text{\\$5.50}", "\\$5.50"),
        ("60¢", "60\\text{ cents}"),
        ("3 (mod 7)", "3 \\pmod{7}"),
        ("(A) and (C)", "A, C"),
        ("\\text{all real numbers except } 2", "\\mathbb{R}\\setminus\\{2\\}"),
        ("\\text{all } x < 2", "x < 2"),
        ("{x | x < 2}", "\\{x | x < 2\\}"),
        ("20^\\circ\\text{C}", "20\\text{ celsius}"),
        ("negative 5", "-5"),
        ("\\text{minus }\\frac{1}{2}", "-\\frac{1}{2}"),
        ("{4}\\over{5}", "{{4}\\over{5}}"),
        ("x = 4 \\choose 2", "x ={ 4 \\choose 2}"),
    ],
)
def test_rare_spelling_becomes_a_common_one(text: str, common: str) -> None:
    assert respell(text) == common
    assert respell(common) == common


@pytest.mark.parametrize(
    "text",
    [
        "40_9",
        "a_{123}",
        "x^2C_1",
        "2C_1",
        "f'(x)",
        "5'6",
        "[1,2]",
        "[1,2),[3,4]",
        "x^{o+1}",
        "0.12...",
        "total 3",
        "negative slope",
        "\\overline{AB}",
        "ABC",
    ],
)
def test_text_similar_to_a_rare_spelling_is_unchanged(text: str) -> None:
    assert respell(text) == text.removesuffix("...")


@pytest.mark.parametrize("unit", ["A and ", " ", "1 to ", "(A), ", "all x ", "1_000", "[1,", "{x|", "1C1", "\\text{ "])
def test_long_repetitions_take_linear_time(unit: str) -> None:
    start = time.process_time()
    GRADER.grade(f"\\boxed{{({(unit * MAX_RESPELLED_CHARS)[: MAX_RESPELLED_CHARS - 10]}!}}", "A, B")
    assert time.process_time() - start < 1.0


def test_long_text_is_unchanged() -> None:
    text = "1_000 " + "x" * MAX_RESPELLED_CHARS
    assert respell(text) == text
