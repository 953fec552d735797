import re

import pytest
from oracles_equations import root

from mathppo.errors import BadInput
from mathppo.problems.families.linear import LINEAR, Linear


@pytest.mark.parametrize(
    ("numbers", "question", "reference", "lines"),
    [
        ((1, 3, 0, 7), "Solve for x: x+3=7", "4", ["x=7-3", "x=4", r"\boxed{4}"]),
        ((2, 0, 0, 7), "Solve for x: 2x=7", "7/2", ["2x=7", r"\boxed{7/2}"]),
        ((2, 3, 0, 11), "Solve for x: 2x+3=11", "4", ["2x=11-3", "2x=8", r"\boxed{4}"]),
        ((4, -2, 0, -8), "Solve for x: 4x-2=-8", "-3/2", ["4x=-8+2", "4x=-6", r"\boxed{-3/2}"]),
        ((2, -1, 5, 8), "Solve for x: 2x-1=5x+8", "-3", ["2x-5x=8+1", "-3x=9", r"\boxed{-3}"]),
        ((3, 4, 1, 4), "Solve for x: 3x+4=x+4", "0", ["3x-x=4-4", "2x=0", r"\boxed{0}"]),
    ],
)
def test_question_reference_and_derivation(
    numbers: tuple[int, int, int, int], question: str, reference: str, lines: list[str]
) -> None:
    item = Linear(*numbers)
    assert (item.question, item.reference) == (question, reference)
    assert item.derivation().split("\n") == lines
    assert LINEAR.parse(question) == item


@pytest.mark.parametrize(
    ("question", "slip", "lines"),
    [
        ("2x+3=11", "constant", ["2x=11+3", "2x=14", r"\boxed{7}"]),
        ("2x-1=5x+8", "constant", ["2x-5x=8-1", "-3x=7", r"\boxed{-7/3}"]),
        ("2x-1=5x+8", "x", ["2x+5x=8+1", "7x=9", r"\boxed{9/7}"]),
    ],
)
def test_slip_keeps_one_sign_and_later_lines_follow(question: str, slip: str, lines: list[str]) -> None:
    item = LINEAR.parse(f"Solve for x: {question}")
    assert slip in item.slips()
    assert item.derivation(slip).split("\n") == lines


def test_level_2_has_no_slips() -> None:
    assert {item.slips() for item in LINEAR.space(2)} == {()}


def test_slip_that_would_cancel_x_is_excluded() -> None:
    assert Linear(3, 1, -3, 2).slips() == ("constant",)


@pytest.mark.parametrize(
    ("level", "shape"),
    [
        (1, r"x[+-][1-9]=-?(1?\d|20)"),
        (2, r"[2-5]x=-?(1?\d|20)"),
        (3, r"[2-5]x[+-][1-9]=-?(1?\d|20)"),
        (4, r"[2-5]x[+-][1-9]=-?(1?\d|20)"),
        (5, r"[2-5]?x[+-][1-9]=[2-5]?x[+-][1-9]"),
    ],
)
def test_every_problem_of_a_level_has_its_shape_and_answer(level: int, shape: str) -> None:
    for item in LINEAR.space(level):
        equation = item.question.removeprefix("Solve for x: ")
        assert re.fullmatch(shape, equation)
        answer = root(equation)
        assert str(answer) == item.reference
        assert level not in (1, 3) or "/" not in item.reference
        assert level != 4 or "/" in item.reference


@pytest.mark.parametrize(
    "question",
    [
        "2x+3=11",
        "Solve for x: 2x+3",
        "Solve for x: 2x+3=2x+4",
        "Solve for x: 1=2=3",
        "Solve for x: 2x+=3",
        "Solve for x: x+y=3",
        "Solve for x: x^2+x=3",
        f"Solve for x: x={'9' * 5000}",
        "Simplify: 2x",
    ],
)
def test_parse_rejects_other_questions(question: str) -> None:
    with pytest.raises(BadInput, match="expected"):
        LINEAR.parse(question)
