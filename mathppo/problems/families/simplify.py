"""Expressions in x to simplify.

    1  ax+b+cx+d
    2  k(x+b)+cx+d
    3  k(ax+b)-m(cx+d)

A derivation expands the brackets, moves the terms in x to the front, and adds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mathppo.problems.families.expression import (
    Group,
    canonical_groups,
    expand,
    format_groups,
    last_negative,
    parse_groups,
)
from mathppo.problems.families.family import Family, nonzero_integers
from mathppo.problems.families.terms import Term, format_terms

INSTRUCTION = "Simplify: "


@dataclass(frozen=True, slots=True)
class Simplify:
    """A sum of terms in x and 1, and of brackets of such terms."""

    groups: tuple[Group, ...]

    @property
    def question(self) -> str:
        return f"{INSTRUCTION}{format_groups(self.groups)}"

    @property
    def reference(self) -> str:
        return format_terms(_added(expand(self.groups)))

    @property
    def canonical(self) -> str:
        return canonical_groups("simplify", self.groups)

    def slips(self) -> tuple[str, ...]:
        """`bracket`: the last term of a bracket after a minus keeps its sign. `x`: a moved term in x changes sign."""
        bracket = ("bracket",) if last_negative(self.groups) is not None else ()
        expanded = expand(self.groups)
        return (*bracket, "x") if _collected(expanded) != expanded else bracket

    def derivation(self, slip: str | None = None) -> str:
        expanded = expand(self.groups, with_slip=slip == "bracket")
        collected = _collected(expanded)
        if slip == "x":
            last = max(index for index, (_, symbol) in enumerate(collected) if symbol)
            collected[last] = (-collected[last][0], "x")
        lines = [format_terms(expanded)] if any(group.factor is not None for group in self.groups) else []
        if collected != expanded:
            lines.append(format_terms(collected))
        return "\n".join([*lines, f"\\boxed{{{format_terms(_added(collected))}}}"])


def _collected(terms: Sequence[Term]) -> list[Term]:
    return [term for term in terms if term[1]] + [term for term in terms if not term[1]]


def _added(terms: Sequence[Term]) -> list[Term]:
    return [(sum(value for value, name in terms if name == symbol), symbol) for symbol in ("x", "")]


def _parse(text: str) -> Simplify:
    return Simplify(parse_groups(text))


def _build(level: int, numbers: Sequence[int]) -> Simplify | None:
    if level == 1:
        a, b, c, d = numbers
        return Simplify((Group(None, ((a, "x"), (b, ""), (c, "x"), (d, ""))),))
    if level == 2:
        k, b, c, d = numbers
        return Simplify((Group(k, ((1, "x"), (b, ""))), Group(None, ((c, "x"), (d, "")))))
    k, a, b, m, c, d = numbers
    return Simplify((Group(k, ((a, "x"), (b, ""))), Group(-m, ((c, "x"), (d, "")))))


SIMPLIFY = Family(
    name="simplify",
    instruction=INSTRUCTION,
    axes={
        1: (range(1, 6), nonzero_integers(9), nonzero_integers(5), nonzero_integers(9)),
        2: (range(2, 6), nonzero_integers(9), nonzero_integers(5), nonzero_integers(9)),
        3: (range(2, 5), range(1, 3), nonzero_integers(5), range(1, 5), range(1, 4), nonzero_integers(5)),
    },
    build=_build,
    parse_text=_parse,
)
