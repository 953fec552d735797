"""Sums of terms and brackets such as `9-2(x-5)`: the parts that the families `arithmetic` and `simplify` share."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from mathppo.errors import BadInput
from mathppo.problems.terms import Term, join_terms

_GROUP = re.compile(r"([+-]?)(?:(\d{1,18})\*?)?\(([^()]+)\)")
_TERM = re.compile(r"([+-]?)(?:(\d{1,18}(?:/[1-9]\d{0,17})?)(x?)|(x))")


@dataclass(frozen=True, slots=True)
class Group:
    """Terms in a bracket with a factor before it; without a bracket where the factor is None."""

    factor: int | None
    terms: tuple[Term, ...]

    def opened(self, *, keeps_last_sign: bool = False) -> tuple[Term, ...]:
        """The terms without the bracket. With a slip the last one keeps the sign it had inside."""
        factor = 1 if self.factor is None else self.factor
        opened = tuple((factor * value, symbol) for value, symbol in self.terms)
        if keeps_last_sign:
            value, symbol = self.terms[-1]
            opened = (*opened[:-1], (abs(factor) * value, symbol))
        return opened


def group_text(groups: Iterable[Group], times: str = "") -> str:
    """The expression as text, with `times` between a factor and its bracket."""
    text = ""
    for group in groups:
        inside = join_terms(group.terms)
        if group.factor is None:
            text += inside if not text or inside.startswith("-") else f"+{inside}"
            continue
        sign = "-" if group.factor < 0 else "+" if text else ""
        size = abs(group.factor)
        text += f"{sign}{'' if size == 1 else f'{size}{times}'}({inside})"
    return text


def canonical_groups(name: str, groups: Iterable[Group]) -> str:
    """Canonical form under reordering of the summands and of the terms in each bracket."""
    parts = []
    for group in groups:
        if group.factor is None:
            parts += [join_terms([term]) for term in group.terms]
        else:
            inside = ",".join(sorted(join_terms([term]) for term in group.terms))
            parts.append(f"{group.factor}({inside})")
    return f"{name} {' '.join(sorted(parts))}"


def parse_groups(text: str) -> tuple[Group, ...]:
    """Read back what `group_text` wrote; neighbouring terms outside brackets form one group.

    Raises:
        BadInput: the text is anything else.
    """
    groups: list[Group] = []
    position = 0
    while position < len(text):
        bracket, term = _GROUP.match(text, position), _TERM.match(text, position)
        match = bracket or term
        if match is None or (position and not match[1]):
            raise BadInput(f"expected a sum such as 9-2(x-5), got {text!r}; only the built-in families' text is read")
        if bracket:
            inside = parse_groups(bracket[3])
            groups.append(Group(int(f"{bracket[1]}{bracket[2] or 1}"), inside[0].terms))
        elif term:
            value = Fraction(f"{term[1]}{term[2] or 1}"), term[3] or term[4] or ""
            before = groups.pop().terms if groups and groups[-1].factor is None else ()
            groups.append(Group(None, (*before, value)))
        position = match.end()
    if not groups:
        raise BadInput("expected a sum such as 9-2(x-5), got an empty text; only the built-in families' text is read")
    return tuple(groups)
