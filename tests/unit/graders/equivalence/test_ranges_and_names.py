"""References that are ranges, and names whose letter does not matter."""

import pytest

from graders.builtin.math import MathGrader
from graders.equivalence import compare
from graders.errors import BadReference
from graders.parsing.parse import parse

GRADER = MathGrader()


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        ("9.7", '{"from": "9.7", "to": "9.9"}', True),
        ("9.9", '{"from": 9.7, "to": 9.9}', True),
        ("x = \\sqrt{96}", '{"from": "9.7", "to": "9.9"}', True),
        ("9.91", '{"from": "9.7", "to": "9.9"}', False),
        ("-9.8", '{"from": "9.7", "to": "9.9"}', False),
        ("980 \\text{ cm}", '{"from": "9.7 m", "to": "9.9 m"}', True),
        ("9.8 kg", '{"from": "9.7 m", "to": "9.9 m"}', False),
        ("9.7, 9.8", '{"from": "9.7", "to": "9.9"}', False),
        ("[9.7, 9.9]", '{"from": "9.7", "to": "9.9"}', False),
        ("x", '{"from": "9.7", "to": "9.9"}', False),
    ],
)
def test_range_accepts_the_values_inside_it(answer: str, reference: str, right: bool) -> None:
    assert GRADER.grade(f"\\boxed{{{answer}}}", reference).correct is right


def test_end_of_a_range_must_be_a_number() -> None:
    with pytest.raises(BadReference, match="expected a number as the end of a range, got 'x'"):
        GRADER.grade("\\boxed{1}", '{"from": "x", "to": "2"}')


@pytest.mark.parametrize("reference", ['{"from": "1"}', '{"from": [1], "to": 2}', '{"from": '])
def test_object_that_is_not_a_range_is_rejected(reference: str) -> None:
    with pytest.raises(BadReference, match=r"expected .*from.* another object"):
        GRADER.grade("\\boxed{1}", reference)


@pytest.mark.parametrize("reference", ['{"from": 3, "to": 2}', '{"from": "1 m", "to": "2 kg"}'])
def test_ends_of_a_range_must_be_in_order(reference: str) -> None:
    with pytest.raises(BadReference, match="expected a range whose end is not below its start, in one unit"):
        GRADER.grade("\\boxed{1}", reference)


@pytest.mark.parametrize(
    ("answer", "reference", "same"),
    [
        ("3\\hat{i} - \\hat{j}", "(3, -1)", True),
        ("3\\hat{i} - \\hat{j}", "(3, -1, 0)", True),
        ("3\\hat{i} - \\hat{j}", "3\\mathbf{i} - \\mathbf{j}", True),
        ("3\\hat{i} - \\hat{k}", "(3, -1)", False),
        ("\\frac{\\vec i}{2} + \\vec j", "(0.5, 1)", True),
        ("3 + 4i", "(3, 4)", False),
        ("i + i j", "(1, 1)", False),
        ("x^2 + K", "x^2 + C", True),
        ("x^2 + 2K", "x^2 + C", False),
        ("K x^2 + K", "x^2 + C", False),
        ("\\frac{\\pi}{3} + 2\\pi n", "\\frac{\\pi}{3} + 2\\pi k", True),
        ("2n", "2k", False),
        ("x = (180k)^\\circ, k \\in \\mathbb{Z}", "x = (180n)^\\circ, n \\in \\mathbb{Z}", True),
        ("x = (180k)^\\circ, k \\in \\mathbb{Z}", "x = (90n)^\\circ, n \\in \\mathbb{Z}", False),
        ("f(t) = t + 1", "f(x) = x + 1", True),
        ("g(t) = x + t", "g(x) = x + x", False),
        ("P(1, 2)", "(1, 2)", True),
        ("AC", "A, C", True),
        ("AB", "A, C", False),
        ("x \\equiv 3 \\pmod 7", "3", True),
        ("3 \\pmod 5", "3 \\pmod 7", False),
        ("(2, 3)^T", "\\begin{pmatrix} 2 \\\\ 3 \\end{pmatrix}", True),
        ("(\\pm 1, 0)", "(1, 0), (-1, 0)", True),
        ("(\\pm 1, \\pm 2)", "(1, 2), (-1, -2)", False),
    ],
)
def test_interchangeable_names(answer: str, reference: str, same: bool) -> None:
    assert (compare(parse(answer), parse(reference)).equal is True) is same
