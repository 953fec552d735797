"""Parser: the tree of each notation, and the position at which a text is rejected."""

import time

import pytest

from graders.parsing.parse import Limits, ParseError, canonical_text, parse
from graders.parsing.tree import (
    Apply,
    Builder,
    Cases,
    Choice,
    Clock,
    Interval,
    List,
    Matrix,
    Name,
    Node,
    Number,
    Quantity,
    Ratio,
    Relation,
    Set,
    Text,
    Tuple,
)

ONE, TWO, THREE, X, PI = Number("1"), Number("2"), Number("3"), Name("x"), Name("pi")
HALF = Apply("/", (ONE, TWO))
INFINITY = Name("infinity")

TREES: list[tuple[str, Node]] = [
    ("3", THREE),
    ("$3$", THREE),
    ("-3", Apply("neg", (THREE,))),
    ("−3", Apply("neg", (THREE,))),
    ("1,000", Number("1,000")),
    ("10{,}000", Number("10000")),
    ("11,\\! 111,\\! 100", Number("11111100")),
    ("1 000 000", Number("1000000")),
    ("(1,234)", Tuple((ONE, Number("234")))),
    (".5", Number(".5")),
    ("1.7e4", Number("1.7e4")),
    ("0.1\\overline{6}", Number("0.1(6)")),
    ("\\frac12", HALF),
    ("\\dfrac{1}{2}", HALF),
    ("{1 \\over 2}", HALF),
    ("1/2", HALF),
    ("½", HALF),
    ("2\\frac12", Apply("+", (TWO, HALF))),
    ("2 1/2", Apply("+", (TWO, HALF))),
    ("2\\frac{3}{2}", Apply("*", (TWO, Apply("/", (THREE, TWO))))),
    ("\\sqrt2", Apply("root", (TWO, TWO))),
    ("\\sqrt[3]{2}", Apply("root", (TWO, THREE))),
    ("x²", Apply("^", (X, TWO))),
    ("x**2", Apply("^", (X, TWO))),
    ("2x", Apply("*", (TWO, X))),
    ("np.sqrt(2)", Apply("sqrt", (TWO,))),
    ("\\sin 2x", Apply("sin", (Apply("*", (TWO, X)),))),
    ("\\sin^2 x", Apply("^", (Apply("sin", (X,)), TWO))),
    ("\\sin^{-1} x", Apply("arcsin", (X,))),
    ("\\log_2 3", Apply("log", (THREE, TWO))),
    ("3!", Apply("factorial", (THREE,))),
    ("\\binom32", Apply("binomial", (THREE, TWO))),
    ("C_3^2", Apply("binomial", (THREE, TWO))),
    ("|x|", Apply("abs", (X,))),
    ("\\lfloor x \\rfloor", Apply("floor", (X,))),
    ("\\sum_{k=1}^{3} k", Apply("sum", (Name("k"), Name("k"), ONE, THREE))),
    ("1 \\pm 2", Apply("pm", (ONE, TWO))),
    ("x_1", Name("x_1")),
    ("\\lambda_{\\text{red}}", Name("lambda_red")),
    ("y'", Name("yprime")),
    ("\\vec{a}", Name("vec a")),
    ("f(x)", Apply("call", (Name("f"), X))),
    ("x = 3", Relation(("=",), (X, THREE))),
    ("1 < x \\le 3", Relation(("<", "≤"), (ONE, X, THREE))),
    ("(1, 2)", Tuple((ONE, TWO))),
    ("1, 2", List((ONE, TWO))),
    ("1 or 2", Apply("or", (ONE, TWO))),
    ("\\{1, 2\\}", Set((ONE, TWO))),
    ("\\emptyset", Set(())),
    ("[1, 2)", Interval(ONE, TWO, True, False)),
    ("(1, 2]", Interval(ONE, TWO, False, True)),
    ("(1, \\infty)", Tuple((ONE, INFINITY))),
    ("\\{x \\mid x > 1\\}", Builder(X, (Relation((">",), (X, ONE)),))),
    ("\\begin{pmatrix} 1 & 2 \\\\ 3 & x \\end{pmatrix}", Matrix(((ONE, TWO), (THREE, X)))),
    ("\\begin{cases} 1, & x > 2 \\\\ 2 & \\text{otherwise} \\end{cases}",
     Cases(((ONE, Relation((">",), (X, TWO))), (TWO, Text("otherwise"))))),
    ("1:2", Ratio((ONE, TWO))),
    ("3:30 p.m.", Clock(55_800, "pm")),
    ("08:30", Clock(30_600, "")),
    ("B", Choice("B")),
    ("\\text{(B)}", Choice("B")),
    ("(B) 3", Choice("B", THREE)),
    ("3 \\text{ (B)}", Choice("B", THREE)),
    ("\\text{Even}", Text("even")),
    ("not 3", Text("not 3")),
    ("three", THREE),
    ("3 cm^2", Quantity(THREE, "cm^2")),
    ("3\\text{ square inches}", Quantity(THREE, "in^2")),
    ("3 m/s", Quantity(THREE, "m s^-1")),
    ("3 apples", Quantity(THREE, "~apples")),
    ("3\\%", Quantity(THREE, "%")),
    ("\\$3", Quantity(THREE, "$")),
    ("3\\$", Quantity(THREE, "$")),
    ("3^\\circ", Quantity(THREE, "degree")),
    ("3 hours 1 minute", Quantity(Apply("+", (THREE, Apply("/", (ONE, Number("60"))))), "h")),
    ("3_2", Apply("base", (THREE, TWO))),
    ("\\text{Area} = 3", THREE),
    ("the answer is 3", THREE),
]  # fmt: skip


@pytest.mark.parametrize(("text", "tree"), TREES)
def test_notation_is_parsed_to_its_tree(text: str, tree: Node) -> None:
    assert parse(text) == tree


REJECTED = [
    ("", "got nothing"),
    ("\\frac{1}{", "expected a value"),
    ("x^2 +", "expected a value"),
    ("(1", "expected a bracket that closes"),
    ("1)", "expected the end"),
    ("1 2", "expected an operator between two numbers"),
    ("()", "expected something inside the brackets"),
    ("{}", "expected something inside the braces"),
    ("[1)", "expected two ends"),
    ("\\frac{1}{2", "expected '}'"),
    ("\\sum k", "both bounds"),
    ("\\sin", "argument of sin"),
    ("\\sin()", "argument of sin"),
    ("\\sin(1,2)", "1 to 1 arguments of sin"),
    ("1e9999999", "exponent of at most 6 digits"),
    ("\\unknown{1}", "known command"),
    ("\\begin{pmatrix}1\\\\1&2\\end{pmatrix}", "rows of equal length"),
    ("\\begin{pmatrix}1", "expected 'pmatrix'"),
    ("\\begin{tabular}1\\end{tabular}", "known environment"),
    ("x_", "subscript"),
    ("x_{1", "closing brace"),
    ("\\text{ab", "closing brace"),
    ("x\\", "after the backslash"),
    ("x_1_2", "expected the end"),
    ("(x)_2", "numeral before a base"),
    ("|x", "expected '|'"),
    ("\\textdegree", "before the degree sign"),
]


@pytest.mark.parametrize(("text", "message"), REJECTED)
def test_incomplete_or_unknown_mathematics_is_rejected_with_its_position(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=f"character -?\\d+: .*{message}".replace("(", "\\(")):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1" * 3_000, "at most 2000 digits"),
        ("x+" * 15_000, "at most 20000 characters"),
        ("(" * 60 + "1" + ")" * 60, "nesting of at most 40"),
        ("+".join("x" * 3_000), "at most 4000 tokens"),
        ("-" * 60 + "x", "nesting of at most 40"),
    ],
)
def test_text_beyond_a_limit_is_rejected(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse(text)


def test_caller_sets_the_limits() -> None:
    with pytest.raises(ParseError, match="at most 3 characters"):
        parse("1234", Limits(max_chars=3))


@pytest.mark.parametrize(
    "unit", ["(", "{", "a", "a ", "1,", "\\text{", "\\frac", "-", "|", "$", "\\(", "^", "_", " ", "."]
)
def test_parsing_takes_linear_time(unit: str) -> None:
    text = unit * (19_999 // len(unit))
    start = time.perf_counter()
    for tail in ("", "x", "1"):
        try:
            parse(text + tail)
        except ParseError:
            continue
    assert time.perf_counter() - start < 1.0


def test_canonical_text_ignores_case_markup_and_articles() -> None:
    assert canonical_text("\\text{The  Even-numbered} Ones.") == "even numbered ones"
    assert canonical_text("3.5") == "3.5"
