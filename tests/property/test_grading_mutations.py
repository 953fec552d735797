"""Rewritings of a value that must be correct and near-misses that must not; sympy is the independent oracle."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from graders.builtin.math import MathGrader
from graders.equivalence import compare
from graders.errors import GraderError
from graders.extraction.extract import extract
from graders.parsing.parse import ParseError, parse
from graders.parsing.tree import Node

GRADER = MathGrader()
WRAPPERS = ["\\boxed{%s}", "The answer is $%s$.", "#### %s", "So $$\\boxed{%s}$$", "<think>x</think>\\boxed{%s}"]

whole = st.integers(-999, 999)
fractions = st.builds(Fraction, st.integers(-60, 60), st.integers(1, 60))


def is_correct(answer: str, reference: str) -> bool:
    return GRADER.grade(f"\\boxed{{{answer}}}", reference).correct


@st.composite
def spellings(draw: st.DrawFn, value: Fraction) -> str:
    """Return one spelling of a rational number."""
    top, bottom = value.numerator, value.denominator
    scale = draw(st.integers(2, 9))
    shift = draw(st.integers(-50, 50))
    ways = [
        f"\\frac{{{top}}}{{{bottom}}}",
        f"{top}/{bottom}",
        f"\\dfrac{{{top * scale}}}{{{bottom * scale}}}",
        f"-\\frac{{{-top}}}{{{bottom}}}",
        f"x = \\frac{{{top}}}{{{bottom}}}",
        f"({top}) \\div {bottom}",
        f"{top} \\cdot {bottom}^{{-1}}",
        f"\\frac{{{top + shift * bottom}}}{{{bottom}}} - ({shift})",
        f"\\left(\\frac{{{top}}}{{{bottom}}}\\right)",
        f"\\frac{{{100 * top}}}{{{bottom}}}\\%",
    ]
    if value.denominator == 1:
        ways += [
            str(top),
            f"{top}.0",
            f"{top:,}",
            f"\\text{{{top}}}",
            f"{top} \\text{{ units}}",
            f"\\sqrt[3]{{{top**3}}}",
        ]
    if bottom > 1 and abs(top) > bottom:
        sign, (units, rest) = ("-" if top < 0 else ""), divmod(abs(top), bottom)
        ways.append(f"{sign}{units}\\frac{{{rest}}}{{{bottom}}}")
    return draw(st.sampled_from(ways))


@given(st.data(), fractions, st.sampled_from(WRAPPERS))
def test_rational_number_is_correct_in_every_spelling(data: st.DataObject, value: Fraction, wrapper: str) -> None:
    reference = data.draw(st.sampled_from([f"{value}", f"\\frac{{{value.numerator}}}{{{value.denominator}}}"]))
    answer = data.draw(spellings(value))
    assert GRADER.grade(wrapper % answer, reference).correct


@given(st.data(), fractions, fractions)
def test_other_rational_number_is_incorrect_in_every_spelling(
    data: st.DataObject, value: Fraction, other: Fraction
) -> None:
    assume(value != other)
    answer = data.draw(spellings(other))
    assume(not answer.endswith("%") or (value not in (other, 100 * other)))
    assert not is_correct(answer, str(value))


@given(whole, st.sampled_from([1, -1, 10, 100]))
def test_number_off_by_one_or_by_a_power_of_ten_is_incorrect(value: int, step: int) -> None:
    near = value + step if abs(step) == 1 else value * step
    assume(near != value)
    for answer in (str(near), f"{near}.0", f"\\frac{{{2 * near}}}{{2}}", f"{near} \\text{{ cm}}", f"{value} or {near}"):
        assert not is_correct(answer, str(value))


TERMS = ["x", "y", "x^2", "x y", "\\sqrt{2}", "\\pi", "e^{x}", "\\sin x", "\\frac{1}{x+3}", "2^{n}", "3", "\\ln 5", "i"]
sums = st.lists(st.tuples(st.integers(-5, 5).filter(bool), st.sampled_from(TERMS)), min_size=1, max_size=4)


def written(terms: list[tuple[int, str]]) -> str:
    return " + ".join(f"({factor}) \\cdot {term}" for factor, term in terms)


@given(st.data(), sums)
def test_order_and_grouping_of_terms_do_not_matter(data: st.DataObject, terms: list[tuple[int, str]]) -> None:
    shuffled = data.draw(st.permutations(terms))
    scale = data.draw(st.integers(2, 5))
    assert is_correct(written(shuffled), written(terms))
    assert is_correct(f"\\frac{{{scale}\\left({written(shuffled)}\\right)}}{{{scale}}}", written(terms))
    assert is_correct(f"-\\left({written([(-factor, term) for factor, term in terms])}\\right)", written(terms))


@given(st.data(), sums)
def test_changed_coefficient_is_incorrect(data: st.DataObject, terms: list[tuple[int, str]]) -> None:
    at = data.draw(st.integers(0, len(terms) - 1))
    changed = [(factor + (place == at), term) for place, (factor, term) in enumerate(terms)]
    assert not is_correct(written(changed), written(terms))


Pair = tuple[list[tuple[int, str]], list[tuple[int, str]]]
POLYNOMIAL_TERMS = ["x", "y", "x^2", "x y", "\\sqrt{2}", "\\pi", "3"]
polynomial = st.lists(st.tuples(st.integers(-3, 3), st.sampled_from(POLYNOMIAL_TERMS)), min_size=1, max_size=3)


@settings(max_examples=40)
@given(st.tuples(polynomial, polynomial), st.tuples(polynomial, polynomial))
def test_sympy_agrees_on_products_of_sums(left: Pair, other: Pair) -> None:
    import sympy

    def latex(pair: Pair) -> str:
        return " \\cdot ".join(f"\\left({written(factor)}\\right)" for factor in pair)

    def symbolic(pair: Pair) -> Any:
        x, y = sympy.symbols("x y")
        known = {"x": x, "y": y, "x^2": x**2, "x y": x * y, "3": sympy.S(3)}
        known |= {"\\sqrt{2}": sympy.sqrt(2), "\\pi": sympy.pi}
        return sympy.Mul(*[sympy.Add(*[factor * known[term] for factor, term in terms]) for terms in pair])

    same = sympy.expand(symbolic(left) - symbolic(other)) == 0
    assert compare(parse(latex(left)), parse(latex(other))).equal is same


@given(st.lists(whole, min_size=2, max_size=6, unique=True), st.data())
def test_order_matters_in_tuples_and_not_in_lists(values: list[int], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(values))
    plain, other = ", ".join(map(str, values)), ", ".join(map(str, shuffled))
    assert is_correct(other, plain)
    assert is_correct(f"\\{{{other}\\}}", f"\\{{{plain}\\}}")
    assert is_correct(f"({other})", f"({plain})") is (shuffled == values)
    assert not is_correct(", ".join(map(str, values[:-1])), plain)
    assert not is_correct(f"{plain}, 1000", plain)


@given(st.integers(-50, 50), st.integers(1, 50), st.booleans(), st.booleans(), st.booleans())
def test_interval_equals_its_inequality(low: int, width: int, left: bool, right_end: bool, flip: bool) -> None:
    high = low + width
    interval = f"{'[' if left else '('}{low}, {high}{']' if right_end else ')'}"
    signs = {True: "\\le", False: "<"}
    inequality = f"{low} {signs[left]} x {signs[right_end]} {high}"
    assert is_correct(inequality, interval)
    assert is_correct(f"x \\in {interval}", interval)
    wrong_left, wrong_right = (not left, right_end) if flip else (left, not right_end)
    other = f"{'[' if wrong_left else '('}{low}, {high}{']' if wrong_right else ')'}"
    assert not is_correct(other, interval)
    assert not is_correct(f"{low} < x < {high + 1}", interval)


ALPHABET = "0123456789xyn+-*/^_(){}[]|,.!<>=\\ $%&:;'fracsqrtboxedtext"


@settings(max_examples=200)
@given(st.text(alphabet=ALPHABET, max_size=60))
def test_no_text_causes_an_error(text: str) -> None:
    verdict = GRADER.grade(f"\\boxed{{{text}}}", "\\sqrt{2} + x")
    assert verdict.status != "error"
    found = extract(text)
    assert found.answer is None or 0 <= found.start <= found.end <= len(text)


@settings(max_examples=200)
@given(st.text(alphabet=ALPHABET, min_size=1, max_size=40))
def test_parsed_answer_survives_serialisation_and_equals_itself(text: str) -> None:
    try:
        node = parse(text)
    except ParseError:
        return
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(node), type=Node) == node
    try:
        found = compare(node, node)
    except GraderError:
        return
    assert found.equal is not None


@pytest.mark.parametrize("reference", ["7", "\\frac{3}{4}", "x^2+1", "(1,2)", "B", "\\{1,2\\}", "\\sqrt{2}", "[0,1)"])
@pytest.mark.parametrize(
    "hack",
    [
        "",
        "\\text{%s is not it}",
        "%s \\text{ or } 99",
        "99, %s",
        "99_{%s}",
        "\\text{answer}",
        "\\phantom{%s}99",
        "%s \\ne 99",
        "\\text{any of } %s, 98, 99",
        "x_{%s}",
        "99 \\%% %s",
    ],
)
def test_no_hack_passes(reference: str, hack: str) -> None:
    answer = hack % reference if "%s" in hack else hack
    assert not is_correct(answer, reference)
