"""Sums of terms and brackets such as `9-2(x-5)`, for the families `arithmetic` and `simplify`."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mathppo.errors import BadInput
from mathppo.problems.families.terms import Term, format_terms

_GROUP = re.compile(r"([+-]?)(?:(\d{1,18})\*?)?\(([^()]+)\)")
_TERM = re.compile(r"([+-]?)(?:(\d{1,18}(?:/[1-9]\d{0,17})?)(x?)|(x))")


@dataclass(frozen=True, slots=True)
class Group:
    """Terms in a bracket after a factor; if the factor is None, terms without a bracket."""

    factor: int | None
    terms: tuple[Term, ...]


def last_negative(groups: Sequence[Group]) -> int | None:
    """Return the index of the last bracket after a minus, or None."""
    return max((i for i, group in enumerate(groups) if group.factor is not None and group.factor < 0), default=None)


def expand(groups: Sequence[Group], *, with_slip: bool = False) -> list[Term]:
    """Return the terms without brackets. A slip keeps the sign of the last term in the last bracket after a minus."""
    slipped = last_negative(groups) if with_slip else None
    terms: list[Term] = []
    for i, group in enumerate(groups):
        factor = 1 if group.factor is None else group.factor
        terms += [(factor * value, symbol) for value, symbol in group.terms]
        if i == slipped:
            value, symbol = terms[-1]
            terms[-1] = -value, symbol
    return terms


def format_groups(groups: Iterable[Group], times: str = "") -> str:
    """Format the expression, with `times` between a factor and its bracket."""
    text = ""
    for group in groups:
        inside = format_terms(group.terms)
        if group.factor is None:
            text += inside if not text or inside.startswith("-") else f"+{inside}"
            continue
        sign = "-" if group.factor < 0 else "+" if text else ""
        size = abs(group.factor)
        text += f"{sign}{'' if size == 1 else f'{size}{times}'}({inside})"
    return text


def canonical_groups(name: str, groups: Iterable[Group]) -> str:
    """Return a form that does not depend on the order of the summands or of the terms in a bracket."""
    parts = []
    for group in groups:
        if group.factor is None:
            parts += [format_terms([term]) for term in group.terms]
        else:
            inside = ",".join(sorted(format_terms([term]) for term in group.terms))
            parts.append(f"{group.factor}({inside})")
    return f"{name} {' '.join(sorted(parts))}"


def parse_groups(text: str) -> tuple[Group, ...]:
    """Parse the output of `format_groups`; adjacent terms outside brackets form one group.

    Raises:
        BadInput: the text is not such a sum.
    """
    groups: list[Group] = []
    position = 0
    while position < len(text):
        bracket, term = _GROUP.match(text, position), _TERM.match(text, position)
        match = bracket or term
        if match is None or (position and not match[1]):
            raise BadInput(f"expected a sum such as 9-2(x-5), got {text!r}; check the family")
        if bracket:
            inside = parse_groups(bracket[3])
            groups.append(Group(int(f"{bracket[1]}{bracket[2] or 1}"), inside[0].terms))
        elif term:
            value = Fraction(f"{term[1]}{term[2] or 1}"), term[3] or term[4] or ""
            before = groups.pop().terms if groups and groups[-1].factor is None else ()
            groups.append(Group(None, (*before, value)))
        position = match.end()
    if not groups:
        raise BadInput("expected a sum such as 9-2(x-5), got an empty text; check the family")
    return tuple(groups)
