import pytest
from oracles_equations import polynomial

from mathppo.errors import BadInput
from mathppo.problems.families.simplify import SIMPLIFY


@pytest.mark.parametrize(
    ("expression", "reference", "lines"),
    [
        ("2x+3-4x+5", "-2x+8", ["2x-4x+3+5", r"\boxed{-2x+8}"]),
        ("2(x-3)+x+1", "3x-5", ["2x-6+x+1", "2x+x-6+1", r"\boxed{3x-5}"]),
        ("3(2x+1)-(x-5)", "5x+8", ["6x+3-x+5", "6x-x+3+5", r"\boxed{5x+8}"]),
        ("2(x+1)-2(x+1)", "0", ["2x+2-2x-2", "2x-2x+2-2", r"\boxed{0}"]),
    ],
)
def test_reference_and_derivation(expression: str, reference: str, lines: list[str]) -> None:
    item = SIMPLIFY.parse(f"Simplify: {expression}")
    assert item.question == f"Simplify: {expression}"
    assert item.reference == reference
    assert item.derivation().split("\n") == lines


def test_slips_and_their_consequences() -> None:
    item = SIMPLIFY.parse("Simplify: 3(2x+1)-2(x-5)")
    assert item.slips() == ("bracket", "x")
    assert item.derivation("bracket").split("\n") == ["6x+3-2x-10", "6x-2x+3-10", r"\boxed{4x-7}"]
    assert item.derivation("x").split("\n") == ["6x+3-2x+10", "6x+2x+3+10", r"\boxed{8x+13}"]
    assert SIMPLIFY.parse("Simplify: 2x-4x+3").slips() == ()


@pytest.mark.parametrize("level", [1, 2, 3])
def test_every_tenth_problem_of_a_level_equals_its_reference(level: int) -> None:
    for item in list(SIMPLIFY.space(level))[::10]:
        assert polynomial(item.question.removeprefix("Simplify: ")) == polynomial(item.reference)
        for line in item.derivation().split("\n")[:-1]:
            assert polynomial(line) == polynomial(item.reference)


@pytest.mark.parametrize(
    "question", ["Solve for x: 2x=1", "Simplify: ", "Simplify: 2y", "Simplify: 2x3", "Simplify: (x"]
)
def test_parse_rejects_other_questions(question: str) -> None:
    with pytest.raises(BadInput, match=r"expected a (question|sum)"):
        SIMPLIFY.parse(question)
