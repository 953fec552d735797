"""Expressions in x to simplify.

    1  ax+b+cx+d
    2  k(x+b)+cx+d
    3  k(ax+b)-m(cx+d)

A derivation opens the brackets, moves the terms in x to the front, and adds up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mathppo.problems.expression import Group, canonical_groups, group_text, parse_groups
from mathppo.problems.family import Family, signed, strip_instruction
from mathppo.problems.terms import Term, join_terms

INSTRUCTION = "Simplify: "


@dataclass(frozen=True, slots=True)
class Simplify:
    """A sum of terms in x and 1, and of brackets of such terms."""

    groups: tuple[Group, ...]

    @property
    def question(self) -> str:
        return f"{INSTRUCTION}{group_text(self.groups)}"

    @property
    def reference(self) -> str:
        return join_terms(_added(self._opened(None)))

    @property
    def canonical(self) -> str:
        return canonical_groups("simplify", self.groups)

    def slips(self) -> tuple[str, ...]:
        """`bracket`: the last term of a bracket after a minus keeps its sign. `x`: a term in x that moves loses its."""
        bracket = ("bracket",) if self._last_negative() is not None else ()
        opened = self._opened(None)
        return (*bracket, "x") if _collected(opened) != opened else bracket

    def derivation(self, slip: str | None = None) -> str:
        opened = self._opened(slip)
        collected = _collected(opened)
        if slip == "x":
            last = max(index for index, (_, symbol) in enumerate(collected) if symbol)
            collected[last] = (-collected[last][0], "x")
        lines = [join_terms(opened)] if any(group.factor is not None for group in self.groups) else []
        if collected != opened:
            lines.append(join_terms(collected))
        return "\n".join([*lines, f"\\boxed{{{join_terms(_added(collected))}}}"])

    def _last_negative(self) -> int | None:
        negative = [i for i, group in enumerate(self.groups) if group.factor is not None and group.factor < 0]
        return negative[-1] if negative else None

    def _opened(self, slip: str | None) -> list[Term]:
        slipped = self._last_negative() if slip == "bracket" else None
        opened = (group.opened(keeps_last_sign=i == slipped) for i, group in enumerate(self.groups))
        return [term for terms in opened for term in terms]


def _collected(terms: Sequence[Term]) -> list[Term]:
    return [term for term in terms if term[1]] + [term for term in terms if not term[1]]


def _added(terms: Sequence[Term]) -> list[Term]:
    return [(sum(value for value, name in terms if name == symbol), symbol) for symbol in ("x", "")]


def parse(question: str) -> Simplify:
    """The item of a question of this family.

    Raises:
        BadInput: the text is no such question.
    """
    return Simplify(parse_groups(strip_instruction(question, INSTRUCTION)))


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
    axes={
        1: (range(1, 6), signed(9), signed(5), signed(9)),
        2: (range(2, 6), signed(9), signed(5), signed(9)),
        3: (range(2, 5), range(1, 3), signed(5), range(1, 5), range(1, 4), signed(5)),
    },
    build=_build,
    parse=parse,
)
