import re
from fractions import Fraction

import pytest

from mathppo.errors import BadInput
from mathppo.problems.families.terms import canonical_equation, coefficient, format_terms, parse_terms


@pytest.mark.parametrize(
    ("terms", "text"),
    [
        ([(2, "x"), (-3, "")], "2x-3"),
        ([(-1, "x^2"), (1, "x"), (1, "")], "-x^2+x+1"),
        ([(0, "x"), (4, "")], "4"),
        ([(0, "x")], "0"),
        ([], "0"),
        ([(8, ""), (Fraction(-3, 2), "")], "8-3/2"),
    ],
)
def test_format_terms(terms: list, text: str) -> None:
    assert format_terms(terms) == text


@pytest.mark.parametrize("text", ["2x-3", "-x^2+x+1", "4", "0", "x+y-12"])
def test_parse_terms_inverts_format_terms(text: str) -> None:
    assert format_terms(parse_terms(text)) == text


@pytest.mark.parametrize("text", ["", "2z", "2x 3", "2x3", "+", "x--1", "1/2", "(x)"])
def test_parse_terms_rejects_other_text(text: str) -> None:
    with pytest.raises(BadInput, match=rf"expected a sum of terms .*, got {re.escape(repr(text))}"):
        parse_terms(text)


def test_coefficient_adds_like_terms() -> None:
    assert coefficient(parse_terms("2x+3-5x"), "x") == -3
    assert coefficient(parse_terms("2x+3-5x"), "x^2") == 0


def test_canonical_equation_of_reordered_and_scaled_equations() -> None:
    form = canonical_equation((2, 3), (0, 11))
    assert form == "equation 2,3=0,11"
    assert canonical_equation((4, 6), (0, 22)) == form  # 4x+6=22
    assert canonical_equation((0, 11), (2, 3)) == form  # 11=3+2x
    assert canonical_equation((-2, -3), (0, -11)) == form
    assert canonical_equation((0, -22), (-4, -6)) == form


def test_canonical_equation_differs_for_a_moved_term() -> None:
    assert canonical_equation((1, 3), (0, 7)) != canonical_equation((1, 0), (0, 4))
    assert canonical_equation((0, 0), (0, 0)) == "equation 0,0=0,0"
