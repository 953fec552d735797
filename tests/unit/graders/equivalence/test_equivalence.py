"""The ladder: the rung that decides, its proofs, and its bounds."""

from collections.abc import Callable
from fractions import Fraction

import pytest

from graders.equivalence import RUNGS, TooLarge, compare
from graders.equivalence.arithmetic.balls import evaluate_ball
from graders.equivalence.arithmetic.evaluate_tree import NoValue, number_value
from graders.equivalence.arithmetic.multiprecision import evaluate_multiprecision
from graders.equivalence.arithmetic.rationals import exact_value, integer_root, power
from graders.equivalence.arithmetic.sample_points import float_value, sample_points, variables
from graders.equivalence.canonical.normal_form import proportional_forms, same_form
from graders.equivalence.compare.comparison import Comparison, combine
from graders.equivalence.compare.symbolic import symbolically_equal
from graders.equivalence.compare.values import proved_different, values_agree
from graders.parsing.parse import parse
from graders.parsing.tree import Node

RUNG_CASES = [
    ("x+1", "x+1", True, "text"),
    (r"\text{Even}", "even", True, "text"),
    ("0.5", r"\frac12", True, "exact"),
    ("2", "3", False, "exact"),
    (r"\frac{10}{3}", "3.33", True, "rounded"),
    (r"\sqrt{5}", "2.24", True, "rounded"),
    (r"\sqrt{12}", r"2\sqrt{3}", True, "algebraic"),
    ("x^2-1", "(x-1)(x+1)", True, "algebraic"),
    (r"\sqrt{2}", r"\sqrt{3}", False, "numeric"),
    (r"\sin^2 x + \cos^2 x + y", "1 + y", True, "numeric"),
    (r"\sqrt{-x^2-1}", r"i\sqrt{x^2+1}", True, "numeric"),
    (r"\sqrt{-x^2-1}\sqrt{-x^2-1}", "-x^2-1", True, "numeric"),
    (r"\sqrt{-x^2-1}+\sin^2 x+\cos^2 x", r"1+\sqrt{-x^2-1}", True, "symbolic"),
    (r"\frac{1}{0}", r"\frac{2}{0}", None, "numeric"),
    ("(1,2)", "(1,3)", False, "exact"),
    (r"(1,\sqrt{12})", r"(1,2\sqrt{3})", True, "algebraic"),
    ("1,2", "1,2,3", False, "structure"),
]


@pytest.mark.parametrize(("answer", "reference", "equal", "rung"), RUNG_CASES)
def test_the_cheapest_decisive_rung_is_reported(answer: str, reference: str, equal: bool | None, rung: str) -> None:
    found = compare(parse(answer), parse(reference))
    assert (found.equal, found.rung) == (equal, rung)
    assert rung in RUNGS


def test_tolerance_is_relative() -> None:
    answer, reference = parse("101"), parse("100")
    assert compare(answer, reference).equal is False
    assert compare(answer, reference, tolerance=Fraction(1, 100)).equal is True
    assert compare(answer, reference, tolerance=Fraction(1, 101)).equal is False
    assert compare(parse("1.42"), parse(r"\sqrt{2}"), tolerance=Fraction(1, 100)).equal is True


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234", Fraction(1234)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("1.", Fraction(1)),
        ("0.1(6)", Fraction(1, 6)),
        ("1.5e-2", Fraction(3, 200)),
        ("0.(142857)", Fraction(1, 7)),
    ],
)
def test_numeral_has_its_exact_value(text: str, value: Fraction) -> None:
    assert number_value(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2^{-3}", Fraction(1, 8)),
        ("8^{2/3}", Fraction(4)),
        (r"\sqrt[3]{-27}", Fraction(-3)),
        (r"\sqrt{\frac{4}{9}}", Fraction(2, 3)),
        ("5!", Fraction(120)),
        ("7!!", Fraction(105)),
        (r"\binom{5}{2}", Fraction(10)),
        ("A_5^2", Fraction(20)),
        (r"\log_4 8", Fraction(3, 2)),
        (r"\log_{10} 1000", Fraction(3)),
        (r"\lfloor -\frac72 \rfloor", Fraction(-4)),
        (r"\lceil \frac72 \rceil", Fraction(4)),
        (r"\sum_{k=1}^{4} k^2", Fraction(30)),
        (r"\prod_{k=1}^{4} k", Fraction(24)),
        (r"\gcd(12, 18)", Fraction(6)),
        (r"\max(1, 3, 2)", Fraction(3)),
        (r"17 \bmod 5", Fraction(2)),
        ("|{-3}|", Fraction(3)),
        (r"25\%", Fraction(1, 4)),
    ],
)
def test_exact_value_of_a_tree(text: str, value: Fraction) -> None:
    assert exact_value(parse(text)) == value


@pytest.mark.parametrize("text", ["x", r"\sqrt{2}", r"\sqrt{-1}", r"\sin 1", "(1,2)", "(1/2)!", r"\log_2 3", "2^{1/2}"])
def test_irrational_tree_is_not_exact(text: str) -> None:
    with pytest.raises(NoValue):
        exact_value(parse(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9^{9^{9}}", "power of at most"),
        ("(10^9)!", "number of at most"),
        (r"\binom{10^9}{5}", "number of at most"),
        (r"\sum_{k=1}^{10^{9}} k", "terms"),
        (r"\prod_{i=1}^{1999} \prod_{j=1}^{1999} 2", "bits|steps"),
        (r"\sum_{i=1}^{1999} \sum_{j=1}^{1999} i", "steps"),
        ("1e99999", "exponent of at most"),
        (r"\prod_{k=1}^{1999} 3^{99}", "bits"),
    ],
)
def test_too_large_value_is_rejected_before_it_is_computed(text: str, message: str) -> None:
    with pytest.raises(TooLarge, match=message):
        exact_value(parse(text))
    with pytest.raises(TooLarge):
        compare(parse(text), parse("1"))


@pytest.mark.parametrize("text", [r"e^{e^{e^{e^{e}}}}", r"\sin(10^{20})", r"\sqrt{2} \cdot (10^5 + \pi)!"])
def test_multiprecision_rejects_expensive_values(text: str) -> None:
    with pytest.raises(TooLarge, match="expected"):
        values_agree(parse(text), parse(r"\pi"))


def test_powers_and_roots_of_integers() -> None:
    assert power(Fraction(-1), Fraction(10**9 + 1)) == -1
    assert integer_root(10**30, 3) == 10**10
    assert integer_root(10**30 + 1, 3) is None
    assert integer_root(2 * 10**99, 3) is None
    assert [integer_root(value, 3) for value in (0, 1, 7, 8, 27**50)] == [0, 1, None, 2, 3**50]
    with pytest.raises(ZeroDivisionError):
        power(Fraction(0), Fraction(-1))


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (r"\frac{1}{1+\sqrt2}", r"\sqrt2-1", True),
        (r"\sqrt{2}\sqrt{3}", r"\sqrt{6}", True),
        (r"\frac{4}{\sqrt[3]{2}}", r"2\sqrt[3]{4}", True),
        ("(1+i)^2", "2i", True),
        (r"2\cdot 2^n", "2^{n+1}", True),
        (r"\pi+1", r"\pi+2", False),
        (r"\sqrt{2}", r"\sqrt{3}", False),
        (r"\sin x", r"\cos x", None),
        (r"(x+y+z)^{39}", "1", None),
    ],
)
def test_normal_forms_prove_or_return_none(left: str, right: str, same: bool | None) -> None:
    assert same_form(parse(left), parse(right)) is same


def test_equations_are_proportional_up_to_a_factor() -> None:
    assert proportional_forms(parse("2x-4"), parse("2-x")) is True
    assert proportional_forms(parse("0"), parse("x")) is False
    assert proportional_forms(parse("x-1"), parse("x-2")) is None


def test_balls_prove_only_inequality() -> None:
    assert proved_different(parse(r"\sqrt{2}"), parse("1.41421356"))
    assert not proved_different(parse(r"\sqrt{3+2\sqrt2}"), parse(r"1+\sqrt2"))
    assert proved_different(parse("|x|"), parse("x"))
    assert float_value(parse("i")) is None


def test_sixty_digits_distinguish_values_that_doubles_cannot() -> None:
    near = parse(r"e^{\pi\sqrt{163}}")
    assert not proved_different(near, parse("262537412640768744"))
    assert values_agree(near, parse("262537412640768744")) is False
    assert values_agree(parse(r"\sqrt{5+2\sqrt6}"), parse(r"\sqrt2+\sqrt3")) is True


def test_sample_points_are_the_same_on_every_run() -> None:
    node = parse("x+y")
    assert list(sample_points(node)) == list(sample_points(parse("y+x")))
    assert variables(parse(r"\sum_{k=1}^{n} k + \pi")) == ["n"]
    assert all(value.denominator == 1 for value in next(iter(sample_points(parse("n!")))).values())


def test_symbolic_rung_decides_only_small_trees_of_known_operations() -> None:
    assert symbolically_equal(parse(r"\sin^2 x"), parse(r"1-\cos^2 x")) is True
    assert symbolically_equal(parse("x"), parse(r"\vec{a} \bmod 3")) is None
    assert symbolically_equal(parse("+".join(f"x_{at}" for at in range(99))), parse("1")) is None
    assert symbolically_equal(parse("x^{99}"), parse("1")) is None


def test_combined_comparison_is_the_first_difference() -> None:
    yes, no = Comparison(True, "exact", ""), Comparison(False, "numeric", "")
    unknown = Comparison(None, "symbolic", "")
    assert combine([yes, no, unknown]) == no
    assert combine([yes, unknown]) == unknown
    assert combine([yes, Comparison(True, "text", "")]).rung == "exact"
    assert combine([]).equal is True


@pytest.mark.parametrize("evaluate", [evaluate_ball, evaluate_multiprecision])
def test_bounds_of_nested_sums_share_the_step_limit(evaluate: Callable[[Node, dict[str, Fraction]], object]) -> None:
    node = parse(r"\sum_{k=1}^{1500}\sum_{j=1}^{\sum_{i=1}^{100}(i-i)}k")
    with pytest.raises(TooLarge, match="steps of arithmetic"):
        evaluate(node, {})
