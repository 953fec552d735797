import re
from fractions import Fraction

import pytest
from oracles_equations import value

from mathppo.errors import BadInput
from mathppo.problems.families.quadratic import QUADRATIC, rational_roots


@pytest.mark.parametrize(
    ("equation", "reference", "lines"),
    [
        ("x^2-5x+6=0", "{2, 3}", ["(x-2)(x-3)=0", "x=2, x=3", r"\boxed{{2, 3}}"]),
        ("x^2-6x+9=0", "3", ["(x-3)(x-3)=0", "x=3", r"\boxed{3}"]),
        ("x^2=-3x", "{-3, 0}", ["x^2+3x=0", "x(x+3)=0", "x=-3, x=0", r"\boxed{{-3, 0}}"]),
        ("x^2=3x", "{0, 3}", ["x^2-3x=0", "x(x-3)=0", "x=0, x=3", r"\boxed{{0, 3}}"]),
        ("x^2+3x=10", "{-5, 2}", ["x^2+3x-10=0", "(x+5)(x-2)=0", "x=-5, x=2", r"\boxed{{-5, 2}}"]),
        (
            "2x^2+5x-3=0",
            "{-3, 1/2}",
            ["(x+3)(2x-1)=0", "x=-3, 2x=1", "x=-3, x=1/2", r"\boxed{{-3, 1/2}}"],
        ),
        ("4x^2-4=0", "{-1, 1}", ["4(x+1)(x-1)=0", "x=-1, x=1", r"\boxed{{-1, 1}}"]),
        ("-x^2+4=0", "{-2, 2}", ["-(x+2)(x-2)=0", "x=-2, x=2", r"\boxed{{-2, 2}}"]),
    ],
)
def test_reference_and_derivation(equation: str, reference: str, lines: list[str]) -> None:
    item = QUADRATIC.parse(f"Solve for x: {equation}")
    assert item.question == f"Solve for x: {equation}"
    assert item.reference == reference
    assert item.derivation().split("\n") == lines


def test_slip_in_a_root_and_in_a_moved_term() -> None:
    item = QUADRATIC.parse("Solve for x: x^2+15x=-54")
    assert item.slips() == ("constant", "root 0", "root 1")
    assert item.derivation("constant").split("\n") == [
        "x^2+15x-54=0",
        "(x+18)(x-3)=0",
        "x=-18, x=3",
        r"\boxed{{-18, 3}}",
    ]
    assert item.derivation("root 1").split("\n") == [
        "x^2+15x+54=0",
        "(x+9)(x+6)=0",
        "x=-9, x=6",
        r"\boxed{{-9, 6}}",
    ]


def test_slip_without_rational_roots_is_excluded() -> None:
    assert QUADRATIC.parse("Solve for x: x^2+3x=10").slips() == ("root 0", "root 1")  # x^2+3x+10 has no root
    assert QUADRATIC.parse("Solve for x: x^2=3x").slips() == ("x", "root 1")  # 0 has no sign


def test_rational_roots() -> None:
    assert rational_roots((2, 5, -3)) == (-3, Fraction(1, 2))
    assert rational_roots((1, -2, 1)) == (1,)
    assert rational_roots((1, 0, 1)) == rational_roots((1, 0, -2)) == rational_roots((0, 1, 1)) == ()


@pytest.mark.parametrize("level", [1, 2, 3])
def test_every_problem_of_a_level_is_solved_by_its_reference(level: int) -> None:
    for item in QUADRATIC.space(level):
        left, right = item.question.removeprefix("Solve for x: ").split("=")
        roots = [Fraction(text) for text in re.findall(r"-?\d+(?:/\d+)?", item.reference)]
        assert roots == sorted(set(roots))
        assert all(value(left, root) == value(right, root) for root in roots)
        difference = [value(left, x) - value(right, x) for x in (-1, 0, 1)]
        leading = (difference[0] + difference[2]) / 2 - difference[1]
        expected = [(x - roots[0]) * (x - roots[-1]) * leading for x in (-1, 0, 1)]
        assert difference == expected
        assert (level == 2) == (right != "0")
        assert (level == 3) == ("/" in item.reference)


@pytest.mark.parametrize("equation", ["x^2+1=0", "x^2=2", "2x+1=3", "x^2", "x^2=4=4", "x^2+y=4", "x^2=x^2+3x-1"])
def test_parse_rejects_other_questions(equation: str) -> None:
    with pytest.raises(BadInput, match=r"expected (an equation in x|a quadratic equation with rational roots)"):
        QUADRATIC.parse(f"Solve for x: {equation}")
