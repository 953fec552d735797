"""LaTeX as MathML: conversion, fallback to escaped source, and no injected markup."""

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathppo.report.mathml import formula, maths


@pytest.mark.parametrize(
    ("latex", "expected"),
    [
        (r"\frac{1}{2}", "<mfrac><mn>1</mn><mn>2</mn></mfrac>"),
        (r"\frac12", "<mfrac><mn>1</mn><mn>2</mn></mfrac>"),
        (r"\frac{1}23", "<mrow><mfrac><mn>1</mn><mn>2</mn></mfrac><mn>3</mn></mrow>"),
        (r"x^2_1", "<msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup>"),
        (r"\sqrt[3]{x}", "<mroot><mi>x</mi><mn>3</mn></mroot>"),
        (r"\text{no {solution}}", "<mtext>no {solution}</mtext>"),
        (r"\left(\pi\right.", "<mrow><mrow></mrow><mo>(</mo><mi>π</mi><mrow></mrow></mrow>"),
        (r"\{1\}", "<mrow><mo>{</mo><mn>1</mn><mo>}</mo></mrow>"),
        (
            r"f''(\pi)",
            "<mrow><msup><mi>f</mi><mo>′′</mo></msup><mo>(</mo><mi>π</mi><mo>)</mo></mrow>",
        ),
        (r"\vec{a}", "<mover><mi>a</mi><mo>→</mo></mover>"),
        (r"-2\le x", "<mrow><mo>−</mo><mn>2</mn><mo>≤</mo><mi>x</mi></mrow>"),
        (r"\binom{n}{k}", '<mrow><mo>(</mo><mfrac linethickness="0"><mi>n</mi><mi>k</mi></mfrac><mo>)</mo></mrow>'),
        (
            r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
            "<mrow><mo>(</mo><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr>"
            "<mtr><mtd><mn>3</mn></mtd><mtd><mn>4</mn></mtd></mtr></mtable><mo>)</mo></mrow>",
        ),
    ],
)
def test_latex_is_converted(latex: str, expected: str) -> None:
    assert formula(latex) == f"<math>{expected}</math>"


@pytest.mark.parametrize(
    "latex",
    [
        *(r"\frac{1}", r"\frac{1}{2", "x^", "x^2^3", r"\nosuch{1}", "a}^2", r"\begin{pmatrix}1", r"\begin{x}1\end{x}"),
        *(r"\begin{cases}1\end{matrix}", r"\text x", "{" * 50 + "x^2" + "}" * 50, "x^2" + "+1" * 3000, r"\end{cases}"),
    ],
)
def test_unsupported_latex_is_shown_as_source(latex: str) -> None:
    assert formula(latex) == latex


def test_only_text_between_delimiters_is_converted() -> None:
    drawn = maths(r"If $x$ < 3, then \(y\) costs \$5")
    assert drawn == "If <math><mi>x</mi></math> &lt; 3, then <math><mi>y</mi></math> costs \\$5"
    assert maths("2x^2 is plain") == "2x^2 is plain"
    assert formula("1/2") == "1/2"
    assert formula("$x$ or 3") == "<math><mi>x</mi></math> or 3"


HOSTILE = (
    *(
        r"\text{<img src=x onerror=alert(1)>}",
        r"\href{javascript:alert(1)}{x}",
        r"\style{x}{y}^2",
        r"<svg/onload=alert(1)>^2",
    ),
    *(
        r"\text{</mtext></math><script>alert(1)</script>}",
        r'x^{" onclick="alert(1)}',
        r"\mathrm{&lt;b&gt;}",
        "\\unicode{x3c}",
    ),
)


@pytest.mark.parametrize("latex", HOSTILE)
def test_hostile_latex_adds_no_element_attribute_or_entity(latex: str) -> None:
    for rendered in (formula(latex), maths(f"${latex}$"), maths(latex)):
        tree = ElementTree.fromstring(f"<p>{rendered}</p>")
        assert not {node.tag for node in tree.iter()} & {"script", "img", "svg", "a", "style", "b"}
        assert {name for node in tree.iter() for name in node.attrib} <= {"linethickness", "class", "width"}


PIECES = [*"ab1^_{}\\$<>&'\"/ ", "\\frac", "\\text", "\\sqrt", "\\begin{cases}", "\\end{cases}", "<b>"]


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_any_text_becomes_well_formed_markup_of_allowed_elements(text: str) -> None:
    for drawn in (maths(text), formula(text)):
        tree = ElementTree.fromstring(f"<p>{drawn}</p>")
        known = {"p", "math", "mrow", "mi", "mn", "mo", "mtext", "mfrac", "msqrt", "mroot", "msup", "msub", "msubsup"}
        assert {node.tag for node in tree.iter()} <= known | {"mtable", "mtr", "mtd", "mspace"}
