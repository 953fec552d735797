from fractions import Fraction

import pytest
from oracles_equations import value

from mathppo.errors import BadInput
from mathppo.problems.families.system import SYSTEM


def test_derivation_with_scaling() -> None:
    item = SYSTEM.parse("Solve for x and y: 2x+3y=8; 5x-2y=1")
    assert item.reference == "(1, 2)"
    assert item.derivation().split("\n") == [
        "10x+15y=40; 10x-4y=2",
        "15y+4y=40-2",
        "19y=38",
        "y=2",
        "2x=8-6",
        "2x=2",
        "x=1",
        r"\boxed{(1, 2)}",
    ]


def test_derivation_without_scaling_omits_repeated_lines() -> None:
    item = SYSTEM.parse("Solve for x and y: x+2y=5; x+y=3")
    assert item.derivation().split("\n") == ["2y-y=5-3", "y=2", "x=5-4", "x=1", r"\boxed{(1, 2)}"]


@pytest.mark.parametrize(
    ("slip", "lines"),
    [
        ("y", ["2y+y=5-3", "3y=2", "y=2/3", "x=5-4/3", "x=11/3", r"\boxed{(11/3, 2/3)}"]),
        ("constant", ["2y-y=5+3", "y=8", "x=5-16", "x=-11", r"\boxed{(-11, 8)}"]),
        ("back", ["2y-y=5-3", "y=2", "x=5+4", "x=9", r"\boxed{(9, 2)}"]),
    ],
)
def test_lines_after_a_slip_follow_from_it(slip: str, lines: list[str]) -> None:
    item = SYSTEM.parse("Solve for x and y: x+2y=5; x+y=3")
    assert slip in item.slips()
    assert item.derivation(slip).split("\n") == lines


@pytest.mark.parametrize(
    ("equations", "slips"),
    [("x-2y=1; x+2y=5", ("constant", "back")), ("x+y=1; x-y=1", ("constant",)), ("x+3y=1; x-y=0", ("y", "back"))],
)
def test_slips_without_an_answer_are_excluded(equations: str, slips: tuple[str, ...]) -> None:
    assert SYSTEM.parse(f"Solve for x and y: {equations}").slips() == slips


@pytest.mark.parametrize("level", [1, 2, 3])
def test_every_tenth_problem_of_a_level_is_solved_by_its_reference(level: int) -> None:
    for item in list(SYSTEM.space(level))[::10]:
        x, y = map(Fraction, item.reference.strip("()").split(", "))
        for equation in item.question.removeprefix("Solve for x and y: ").split("; "):
            left, right = equation.split("=")
            assert value(left, x, y) == value(right, x, y)
        assert ("/" in item.reference) == (level == 3)


@pytest.mark.parametrize(
    "equations", ["x+y=1", "x+y=1; 2x+2y=2", "x+y=1; x=2", "x+y=1; -x+y=2", "x+y=1; x-y=x", "x+y=1; x-y=2; x+2y=3"]
)
def test_parse_rejects_other_questions(equations: str) -> None:
    with pytest.raises(BadInput, match="expected two equations in x and y with one solution"):
        SYSTEM.parse(f"Solve for x and y: {equations}")
