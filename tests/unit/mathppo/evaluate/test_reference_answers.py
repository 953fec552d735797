"""Reference answers in the formats of benchmarks."""

import pytest

from graders import grade
from mathppo.errors import BadInput
from mathppo.evaluate.reference_answers import (
    AnswerFormat,
    AnswerType,
    answer_type,
    read_reference_answer,
    with_tolerance,
    with_unit,
)


@pytest.mark.parametrize(
    ("answer_format", "value", "expected"),
    [
        ("plain", " 7 ", "7"),
        ("plain", "$x^2$", "x^2"),
        ("plain", "$1$ and $2$", "$1$ and $2$"),
        ("plain", 3.0, "3"),
        ("plain", 2.5, "2.5"),
        ("hashes", "6 jars of 180: 1,080\n#### 1,080", "1080"),
        ("boxed", r"so \boxed{1}, no, \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        ("boxed", r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        ("boxed", r"\boxed{3} and a torn \boxed{4", "3"),
        ("first", ["$7$", "8"], "7"),
        ("integer", "025", "25"),
        ("integer", "27.0", "27"),
        ("integer", "-0", "-0"),
        ("integer", "000", "0"),
        ("integer", 204, "204"),
        ("before_bracket", "9 (apples)", "9"),
    ],
)
def test_reference_answer_is_read(answer_format: str, value: object, expected: str) -> None:
    assert read_reference_answer(value, AnswerFormat(answer_format), "row 1") == expected


@pytest.mark.parametrize(
    ("answer_format", "value"),
    [
        *(("hashes", "12"), ("boxed", "12"), ("integer", "1/2"), ("plain", True), ("plain", float("nan"))),
        *(("first", []), ("plain", ""), ("plain", None)),
    ],
)
def test_field_without_an_answer_is_rejected(answer_format: str, value: object) -> None:
    with pytest.raises(
        BadInput, match=rf"row 1: expected an answer \({answer_format}\), got .*choose another field or format"
    ):
        read_reference_answer(value, AnswerFormat(answer_format), "row 1")


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        *(
            ("12", "integer"),
            ("-12", "integer"),
            ("11,\\! 111", "integer"),
            ("1,000", "integer"),
            ("$32,348", "integer"),
        ),
        *((".5", "decimal"), ("7e37", "decimal"), ("-1.5", "decimal"), ("1/2", "fraction"), ("\\frac12", "fraction")),
        *(("B", "choice"), ("\\text{(C)}", "choice"), ("3, 5", "tuple"), ("(1,2]", "tuple")),
        *(("\\text{east}", "text"), ("Mrs. Hilt", "text"), ("3:30 p.m.", "text"), ("p - q", "expression")),
        *(("x", "expression"), ("2\\sqrt{3}", "expression"), ("90^\\circ", "integer"), ("5\\%", "integer")),
        *(("1/2 \\text{ km/h}", "fraction"), ("\\text{ cm }", "text"), ('{"from": "4.1", "to": "4.3"}', "decimal")),
    ],
)
def test_answer_type(reference: str, expected: str) -> None:
    assert answer_type(reference.replace("\\! ", "\\!")) is AnswerType(expected)


@pytest.mark.parametrize(
    ("reference", "unit", "expected"),
    [
        ("45", "", "45"),
        ("45", "minute", "45 \\text{ minute}"),
        ("166", "$cm^2$", "166 \\text{ cm^2}"),
        ("4.2", "%", "4.2\\%"),
        ("30", "^{\\circ}", "30^{\\circ}"),
        ("a_{1}=90, b_{1}=45", "^{\\circ}", "a_{1}=90^{\\circ}, b_{1}=45^{\\circ}"),
        ("(3, 4)", "cm", "(3, 4) \\text{ cm}"),
        ("1,234", "m", "1,234 \\text{ m}"),
        ("1,5", "m", "1 \\text{ m},5 \\text{ m}"),
    ],
)
def test_unit_is_appended_to_each_answer(reference: str, unit: str, expected: str) -> None:
    assert with_unit(reference, unit) == expected


def test_graders_read_units_and_tolerances() -> None:
    degrees, minutes = with_unit("x_{1}=90, y_{1}=90", "^{\\circ}"), with_unit("45", "minute")
    near = with_tolerance("4.2", "1e-1", "%", "row 1")
    assert near == '{"from": "4.1\\\\%", "to": "4.3\\\\%"}'
    for answer, reference, right in [
        *(("45", minutes, True), ("0.75 \\text{ hours}", minutes, True), ("45 \\text{ s}", minutes, False)),
        *(("4.2", near, True), ("4.11\\%", near, True), ("4.35", near, False), ("90^\\circ, 90^\\circ", degrees, True)),
        ("90^\\circ, 45^\\circ", degrees, False),
    ]:
        assert grade(f"\\boxed{{{answer}}}", reference).correct is right, (answer, reference)


@pytest.mark.parametrize(("reference", "tolerance"), [("x", "1e-1"), ("3", "nan"), ("3", "-0.1"), ("inf", "1")])
def test_tolerance_needs_finite_numbers(reference: str, tolerance: str) -> None:
    message = f"row 3: expected numbers for an answer with a tolerance, got '{reference}' and '{tolerance}'"
    with pytest.raises(BadInput, match=message):
        with_tolerance(reference, tolerance, "", "row 3")
