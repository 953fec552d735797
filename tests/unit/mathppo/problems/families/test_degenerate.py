import pytest
from oracles_equations import root

from mathppo.errors import BadInput
from mathppo.problems.families.degenerate import DEGENERATE


@pytest.mark.parametrize(
    ("equation", "reference", "lines"),
    [
        ("2x+3=2x+5", "no solution", ["2x-2x=5-3", "0=2", r"\boxed{no solution}"]),
        ("x-4+2x=3x-4", "all real numbers", ["x+2x-3x=-4+4", "0=0", r"\boxed{all real numbers}"]),
        ("x+5=x", "no solution", ["x-x=-5", "0=-5", r"\boxed{no solution}"]),
    ],
)
def test_reference_and_derivation(equation: str, reference: str, lines: list[str]) -> None:
    item = DEGENERATE.parse(f"Solve for x: {equation}")
    assert item.question == f"Solve for x: {equation}"
    assert item.reference == reference
    assert item.derivation().split("\n") == lines


def test_slips_and_their_consequences() -> None:
    item = DEGENERATE.parse("Solve for x: 2x+3=2x+3")
    assert item.slips() == ("constant", "x")
    assert item.derivation("constant").split("\n") == ["2x-2x=3+3", "0=6", r"\boxed{no solution}"]
    assert item.derivation("x").split("\n") == ["2x+2x=3-3", "4x=0", r"\boxed{0}"]
    assert DEGENERATE.parse("Solve for x: 2x=2x+3").slips() == ("x",)


@pytest.mark.parametrize(("level", "answer"), [(1, "no solution"), (2, "all real numbers")])
def test_every_problem_of_a_level_has_its_answer(level: int, answer: str) -> None:
    for item in DEGENERATE.space(level):
        assert root(item.question.removeprefix("Solve for x: ")) == item.reference == answer


@pytest.mark.parametrize(
    "question", ["Solve for x: 2x+3=3x+3", "Solve for x: x", "Solve for x: x^2=x^2", "Simplify: x"]
)
def test_parse_rejects_other_questions(question: str) -> None:
    with pytest.raises(BadInput, match=r"expected .*check the family"):
        DEGENERATE.parse(question)
