"""Whether an answer says what the reference says: a ladder of rungs, the cheapest decisive one first.

text        canonical words, or the same tree
exact       rational arithmetic, times of day, option letters
rounded     an exact value against a decimal reference, at the reference's last digit
numeric     doubles with error balls (different is proved), then 60 digits (equal beyond chance)
algebraic   normal forms over variables, constants and radicals
symbolic    bounded simplification by sympy, imported when it is first needed
"""

from fractions import Fraction

from graders.equivalence.arithmetic.rationals import TooLarge
from graders.equivalence.compare.comparison import RUNGS, Comparison
from graders.equivalence.compare.dispatch import Comparer
from graders.parsing.tree import Node

__all__ = ["RUNGS", "Comparison", "TooLarge", "compare"]


def compare(
    answer: Node, reference: Node, *, tolerance: Fraction | None = None, question: str | None = None
) -> Comparison:
    """Whether `answer` says what `reference` says.

    Args:
        answer: the tree of the model's answer.
        reference: the tree of the accepted one; its written form decides what is exact and what is rounded.
        tolerance: largest relative difference of two values that the caller allows; None for none.
        question: the problem text, where it is known.

    Raises:
        TooLarge: deciding would exceed the bounds on size or work.
    """
    return Comparer(tolerance, question).compare(answer, reference)
