"""Linear equations in x with one root, in five levels.

    1  x+b=c         integer root
    2  ax=c          any root
    3  ax+b=c        integer root
    4  ax+b=c        root that is no integer
    5  ax+b=cx+d     any root

Coefficients reach 5; a constant beside x reaches 9, one alone on its side 20. A derivation shows the moved terms, the
reduced line and the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mathppo.errors import BadInput
from mathppo.problems.family import Family, signed, strip_instruction
from mathppo.problems.terms import canonical_equation, coefficient, has_symbols_among, join_terms, parse_terms

INSTRUCTION = "Solve for x: "


@dataclass(frozen=True, slots=True)
class Linear:
    """The equation ax + b = cx + d with a != c."""

    a: int
    b: int
    c: int
    d: int

    @property
    def question(self) -> str:
        left, right = join_terms([(self.a, "x"), (self.b, "")]), join_terms([(self.c, "x"), (self.d, "")])
        return f"{INSTRUCTION}{left}={right}"

    @property
    def reference(self) -> str:
        return str(Fraction(self.d - self.b, self.a - self.c))

    @property
    def canonical(self) -> str:
        return canonical_equation((self.a, self.b), (self.c, self.d))

    def slips(self) -> tuple[str, ...]:
        """`constant` and `x`: the term that crosses with its sign unchanged. Nothing crosses in ax = c."""
        constant = ("constant",) if self.b else ()
        return (*constant, "x") if self.c and self.a + self.c else constant

    def derivation(self, slip: str | None = None) -> str:
        moved_x = self.c if slip == "x" else -self.c
        moved_constant = self.b if slip == "constant" else -self.b
        lines = []
        if self.b or self.c:
            left, right = [(self.a, "x"), (moved_x, "x")], [(self.d, ""), (moved_constant, "")]
            lines.append(f"{join_terms(left)}={join_terms(right)}")
        a, d = self.a + moved_x, self.d + moved_constant
        lines += [f"{join_terms([(a, 'x')])}={d}", f"\\boxed{{{Fraction(d, a)}}}"]
        return "\n".join(lines)


def parse(question: str) -> Linear:
    """The item of a question of this family.

    Raises:
        BadInput: the text is no such question.
    """
    sides = strip_instruction(question, INSTRUCTION).split("=")
    if len(sides) != 2:
        raise BadInput(f"expected one equation, got {question!r}; is the family right?")
    left, right = map(parse_terms, sides)
    a, b, c, d = (coefficient(side, symbol) for side in (left, right) for symbol in ("x", ""))
    if a == c or not has_symbols_among(left + right, ("x", "")):
        raise BadInput(f"expected a linear equation with one root, got {question!r}; is the family right?")
    return Linear(a, b, c, d)


def _build(level: int, numbers: Sequence[int]) -> Linear | None:
    a, b, c, d = numbers
    if a == c:
        return None
    has_integer_root = (d - b) % (a - c) == 0
    if (level == 3 and not has_integer_root) or (level == 4 and has_integer_root):
        return None
    return Linear(a, b, c, d)


_ALONE = tuple(range(-20, 21))

LINEAR = Family(
    name="linear",
    axes={
        1: ((1,), signed(9), (0,), _ALONE),
        2: (range(2, 6), (0,), (0,), _ALONE),
        3: (range(2, 6), signed(9), (0,), _ALONE),
        4: (range(2, 6), signed(9), (0,), _ALONE),
        5: (range(1, 6), signed(9), range(1, 6), signed(9)),
    },
    build=_build,
    parse=parse,
)
