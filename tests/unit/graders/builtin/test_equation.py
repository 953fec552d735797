"""Equation grader: substitutes solutions and counts them by Sturm's theorem or by rank."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graders import BadReference, GraderPool, Status
from graders.builtin.equation import EquationGrader, problem_of
from graders.builtin.polynomials import NotPolynomialError, difference, num_real_roots, polynomial, rank
from graders.parsing.parse import parse

GRADER = EquationGrader()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("5", "Solve for x: 3x+5=20"),
        ("x = 5", "3x+5=20"),
        ("-\\frac{1}{2}", "2x+1=0"),
        ("2, 3", "x^2-5x+6=0"),
        ("x=3 \\text{ or } x=2", "x^2-5x+6=0"),
        ("\\{3, 2, 2\\}", "x^2-5x+6=0"),
        ("{2/3, 3/2}", "Solve for x: 6x^2-13x+6=0"),
        ("x = 1 \\pm \\sqrt{2}", "x^2-2x-1=0"),
        ("1", "(x-1)^2=0"),
        ("\\sqrt[3]{2}", "x^3=2"),
        ("\\text{no solution}", "x^2+1=0"),
        ("\\emptyset", "x=x+1"),
        ("\\text{all real numbers}", "x+16+x=2x+16"),
        ("(2, 1)", "Solve for x and y: x+y=3; x-y=1"),
        ("x=2, y=1", "x+y=3; x-y=1"),
        ("\\text{no solution}", "x+y=3; x+y=4"),
        ("0.5", "2x=1"),
    ],
)
def test_complete_solutions_are_correct(answer: str, problem: str) -> None:
    verdict = GRADER.grade(f"\\boxed{{{answer}}}", problem)
    assert (verdict.status, verdict.detail) == (Status.CORRECT, "every solution, and no other")


@pytest.mark.parametrize(
    ("answer", "problem", "detail"),
    [
        ("4", "3x+5=20", "a value does not satisfy the equation"),
        ("2", "x^2-5x+6=0", "1 of 2 solutions are given"),
        ("2, 2", "x^2-5x+6=0", "1 of 2 solutions are given"),
        ("2, 3, 4", "x^2-5x+6=0", "a value does not satisfy the equation"),
        ("x", "3x+5=20", "a value is not a real number"),
        ("x = x", "3x+5=20", "a value is not a real number"),
        ("3x+5=20", "3x+5=20", "the answer states no values of the unknowns"),
        ("-\\frac{1}{2}+\\frac{\\sqrt{-3}}{2}", "x^3=1", "a value is not a real number"),
        ("1/0", "x=1", "a value is not a real number"),
        ("i", "x^2+1=0", "the equation has no solution"),
        ("0", "x=x", "the equation has all real numbers"),
        ("\\text{no solution}", "x=2", "the answer states no values of the unknowns"),
        ("(1, 2)", "x+y=3; x-y=1", "a value does not satisfy the equation"),
        ("2", "x+y=3; x-y=1", "the answer states no values of the unknowns"),
    ],
)
def test_wrong_or_incomplete_solutions_are_incorrect(answer: str, problem: str, detail: str) -> None:
    verdict = GRADER.grade(f"\\boxed{{{answer}}}", problem)
    assert (verdict.status, verdict.detail) == (Status.INCORRECT, detail)


def test_question_replaces_the_reference_as_problem() -> None:
    with GraderPool("equation") as pool:
        verdicts = pool.grade([("\\boxed{5}", "7", "Solve for x: 3x+5=20"), ("", "", "Solve for x: x=1")])
    assert [v.status.value for v in verdicts] == ["correct", "no_answer"]


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("", "expected equations"),
        ("3 + 4", "expected an equation"),
        ("1 = 1", "expected an unknown"),
        ("x = ((", "expected an equation"),
        ("\\sin x = 0", "expected polynomial equations"),
        ("1/x = 2", "expected polynomial equations"),
        ("x^2 = \\pi", "expected polynomial equations, got something else: pi, which is not a rational number"),
        ("e x = 1 + x", "expected polynomial equations, got something else: e, which is not a rational number"),
        ("x^30 = 1", "expected polynomial equations"),
        ("xy = 1; x = y", "expected one equation in one unknown or a linear system"),
        ("x + y = 1; 2x + 2y = 2", "expected a system with one solution or none"),
    ],
)
def test_unsupported_problem_is_rejected(problem: str, message: str) -> None:
    with pytest.raises(BadReference, match=message):
        GRADER.grade("\\boxed{1}", problem)


def test_unknowns_are_in_alphabetical_order() -> None:
    assert problem_of("b + a = 1; a - b = 3").unknowns == ("a", "b")


@given(st.lists(st.integers(-6, 6), min_size=1, max_size=4), st.integers(0, 2))
def test_sturm_counts_the_roots_that_a_product_was_built_from(roots: list[int], num_complex_pairs: int) -> None:
    factors = [f"(x-({root}))" for root in roots] + ["(x^2+x+1)"] * num_complex_pairs
    expanded = polynomial(parse("*".join(factors)))
    degree = max(map(len, expanded))
    coefficients = [expanded.get(("x",) * power, Fraction(0)) for power in range(degree + 1)]
    assert num_real_roots(coefficients) == len(set(roots))


@given(st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3), min_size=1, max_size=4))
def test_rank_equals_that_of_sympy(rows: list[list[int]]) -> None:
    from sympy import Matrix

    assert rank([[Fraction(value) for value in row] for row in rows]) == Matrix(rows).rank()


def test_difference_of_equal_polynomials_is_empty() -> None:
    assert difference(polynomial(parse("(x+y)^2")), polynomial(parse("x^2+2xy+y^2"))) == {}


def test_large_powers_are_rejected() -> None:
    with pytest.raises(NotPolynomialError, match="exponent 99999"):
        polynomial(parse("x^{99999}"))
