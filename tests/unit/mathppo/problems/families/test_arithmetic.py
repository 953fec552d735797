from fractions import Fraction

import pytest
from oracles_equations import value

from mathppo.errors import BadInput
from mathppo.problems.families.arithmetic import ARITHMETIC


@pytest.mark.parametrize(
    ("expression", "reference", "lines"),
    [
        ("19-(8-18)", "29", ["19-8+18", "11+18", r"\boxed{29}"]),
        ("8-2*(5-9)", "16", ["8-10+18", "-2+18", r"\boxed{16}"]),
        ("5-(5+3)", "-3", ["5-5-3", "0-3", r"\boxed{-3}"]),
        (
            "1/2-(1/3-1/4)",
            "5/12",
            ["1/2-1/3+1/4", "6/12-4/12+3/12", "2/12+3/12", r"\boxed{5/12}"],
        ),
    ],
)
def test_reference_and_derivation(expression: str, reference: str, lines: list[str]) -> None:
    item = ARITHMETIC.parse(f"Evaluate: {expression}")
    assert item.question == f"Evaluate: {expression}"
    assert item.reference == reference
    assert item.derivation().split("\n") == lines


def test_slip_keeps_the_last_sign_in_a_bracket() -> None:
    item = ARITHMETIC.parse("Evaluate: 8-2*(5-9)")
    assert item.slips() == ("bracket",)
    assert item.derivation("bracket").split("\n") == ["8-10-18", "-2-18", r"\boxed{-20}"]
    assert ARITHMETIC.parse("Evaluate: 8+2*(5-9)").slips() == ()


@pytest.mark.parametrize("level", [1, 2, 3])
def test_every_tenth_problem_of_a_level_equals_its_reference(level: int) -> None:
    for item in list(ARITHMETIC.space(level))[::10]:
        assert value(item.question.removeprefix("Evaluate: ")) == Fraction(item.reference)
        for line in item.derivation().split("\n")[:-1]:
            assert value(line) == Fraction(item.reference)


@pytest.mark.parametrize(
    "question",
    ["Simplify: 2x", "Evaluate: 2x+1", "Evaluate: ", "Evaluate: 1/0", "Evaluate: 2**3", f"Evaluate: {'9' * 5000}"],
)
def test_parse_rejects_other_questions(question: str) -> None:
    with pytest.raises(BadInput, match=r"expected (a question|a sum|an expression)"):
        ARITHMETIC.parse(question)
