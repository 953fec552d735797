"""What a comparison says: equal, different or undecided, by which rung, and why.

Touches: nothing.
"""

import msgspec

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
