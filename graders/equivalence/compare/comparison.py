"""What a comparison says: equal, different or undecided, by which rung, and why."""

from collections.abc import Callable

import msgspec

from graders.parsing.tree import Apply, Node

RUNGS = ("text", "exact", "rounded", "numeric", "algebraic", "symbolic", "structure", "none")


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of comparing two trees.

    Args:
        equal: True or False where it is decided, None where no rung decides within its bounds.
        rung: the most expensive rung that was needed, one of `RUNGS`.
        detail: one line for a person.
    """

    equal: bool | None
    rung: str
    detail: str


def joined(parts: list[Comparison]) -> Comparison:
    """All of the parts: different if one is, undecided if one is, else equal; the rung is the most expensive one."""
    rung = max((part.rung for part in parts), key=RUNGS.index, default="structure")
    for part in parts:
        if part.equal is False:
            return part
    for part in parts:
        if part.equal is None:
            return part
    return Comparison(True, rung, "every part is equal")


Compare = Callable[[Node, Node], Comparison]
"""(answer, reference) to their comparison: how a rule for a kind of tree asks about the parts."""


def mismatch(answer: Node, reference: Node) -> Comparison:
    """Two trees of kinds that no rule compares."""
    kinds = ("value" if isinstance(node, Apply) else type(node).__name__.lower() for node in (answer, reference))
    return Comparison(False, "structure", " against ".join(f"a {kind}" for kind in kinds))
