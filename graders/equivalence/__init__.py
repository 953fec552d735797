"""Equivalence of an answer and a reference: a ladder of rungs, from the cheapest to the most expensive.

text        decides equal trees, words and option letters
exact       decides rational values, infinities, numerals with a base and times of day
rounded     accepts a value that rounds to a decimal reference at its last digit, or that is within the tolerance
numeric     proves inequality with error balls; decides equality by 60-digit values at sample points
algebraic   decides by normal forms over variables, constants and radicals
symbolic    decides by a bounded sympy simplification
structure   decides by kinds, numbers of items and units
none        there was no pair to compare

A pair that a rung cannot decide within its bounds moves to the next one. If the symbolic rung cannot decide it either,
the comparison is undecided, which earns no reward.

`arithmetic/` computes values of trees, `canonical/` rewrites trees, `compare/` decides pairs.
"""

from fractions import Fraction

from graders.equivalence.arithmetic.evaluate_tree import TooLarge
from graders.equivalence.compare.comparison import RUNGS, Comparison
from graders.equivalence.compare.dispatch import Comparer
from graders.parsing.tree import Node

__all__ = ["RUNGS", "Comparison", "TooLarge", "compare"]


def compare(
    answer: Node, reference: Node, *, tolerance: Fraction | None = None, question: str | None = None
) -> Comparison:
    """Compare the tree of an answer with the tree of the reference.

    Args:
        answer: the tree of the model's answer.
        reference: the tree of the accepted answer; its notation determines if it is exact or rounded.
        tolerance: largest accepted relative difference of two values; None for exact comparison.
        question: the problem text, if known.

    Returns:
        Equal, different or undecided, with the most expensive rung that was needed.

    Raises:
        TooLarge: deciding would exceed the bounds on size or work.
    """
    return Comparer(tolerance, question).compare(answer, reference)
