"""Units: spellings, dimensions, exact conversion factors, and words that are not units."""

from fractions import Fraction

import pytest

from graders.parsing.units import canonical_unit, conversion, is_unit, known_symbol


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        ("cm", "cm"),
        ("centimeters", "cm"),
        ("square inches", "in^2"),
        ("squareinches", "in^2"),
        ("sq cm", "cm^2"),
        ("cm^2", "cm^2"),
        ("cm squared", "cm^2"),
        ("miles per hour", "h^-1 mi"),
        ("m/s^2", "m s^-2"),
        ("square units", "~units^2"),
        ("apples", "~apples"),
        ("red apples", "~apples ~red"),
        ("th", "~th"),
    ],
)
def test_unit_phrase_has_one_canonical_form(words: str, unit: str) -> None:
    assert canonical_unit(words) == unit


@pytest.mark.parametrize("words", ["", "or so", "not", "is wrong", "and more", "a b c d e f g h i j k", "cm?", "maybe"])
def test_words_that_change_the_meaning_are_not_units(words: str) -> None:
    assert canonical_unit(words) is None


@pytest.mark.parametrize(
    ("source", "target", "factor"),
    [
        ("m", "cm", Fraction(100)),
        ("cm^2", "m^2", Fraction(1, 10_000)),
        ("h", "min", Fraction(60)),
        ("mi h^-1", "ft s^-1", Fraction(22, 15)),
        ("$", "cent", Fraction(100)),
        ("l", "cm^3", Fraction(1_000)),
        ("mph", "h^-1 mi", Fraction(1)),
        ("~apples", "cm", None),
        ("~apples", "~pears", Fraction(1)),
        ("~units", "cm", Fraction(1)),
        ("N", "kg m s^-2", Fraction(1)),
        ("kW", "J s^-1", Fraction(1000)),
        ("mi h^-1", "mph", Fraction(1)),
        ("m", "s", None),
        ("cm", "cm^2", None),
        ("N", "J", None),
    ],
)
def test_units_convert_within_a_dimension(source: str, target: str, factor: Fraction | None) -> None:
    assert conversion(source, target) == factor


def test_only_known_spellings_have_a_symbol() -> None:
    assert known_symbol("Meters") == "m"
    assert known_symbol("zorkmid") is None
    assert is_unit("m/s")
    assert not is_unit("m/zorkmid")
