"""Comparison results: equal, different or undecided, with the deciding rung and the reason."""

from collections.abc import Callable

import msgspec

from graders.parsing.tree import Apply, Node

RUNGS = ("text", "exact", "rounded", "numeric", "algebraic", "symbolic", "structure", "none")


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of comparing two trees.

    Args:
        equal: True or False; None if no rung decides within its bounds.
        rung: the most expensive rung that was needed, one of `RUNGS`.
        detail: the reason, in one line.
    """

    equal: bool | None
    rung: str
    detail: str


def combine(parts: list[Comparison]) -> Comparison:
    """Combine the comparisons of parts: different if one is, else undecided if one is, else equal."""
    rung = max((part.rung for part in parts), key=RUNGS.index, default="structure")
    for part in parts:
        if part.equal is False:
            return part
    for part in parts:
        if part.equal is None:
            return part
    return Comparison(True, rung, "every part is equal")


Compare = Callable[[Node, Node], Comparison]
"""Compares an answer with a reference; passed to the rules for containers, units, … so they can compare parts."""


def incomparable(answer: Node, reference: Node) -> Comparison:
    """Return the comparison of two trees whose kinds have no common rule."""
    kinds = ("value" if isinstance(node, Apply) else type(node).__name__.lower() for node in (answer, reference))
    return Comparison(False, "structure", "the answer is a {}; the reference is a {}".format(*kinds))
