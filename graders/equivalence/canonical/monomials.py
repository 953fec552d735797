"""Sums of rational multiples of monomials: the data that normal forms are made of."""

from fractions import Fraction

from graders.parsing.tree import Apply, Node, Number

Monomial = tuple[tuple[str, Fraction], ...]
"""Generators with their powers, sorted; the empty one is 1."""
Sum = dict[Monomial, Fraction]
Quotient = tuple[Sum, Sum]

ONE: Monomial = ()
UNIT: Sum = {ONE: Fraction(1)}


def constant(value: Fraction) -> Sum:
    """A rational as a sum; zero is the empty one."""
    return {ONE: value} if value else {}


def negated(value: Sum) -> Sum:
    """The sum with every sign turned."""
    return {monomial: -factor for monomial, factor in value.items()}


def literal(value: Fraction) -> Node:
    """A rational as a tree."""
    top: Node = Number(str(abs(value.numerator)))
    if value < 0:
        top = Apply("neg", (top,))
    return top if value.denominator == 1 else Apply("/", (top, Number(str(value.denominator))))


def sum_text(value: Sum) -> str:
    """One text for one sum, whatever order it was built in: the name of an opaque generator."""
    return "+".join(f"{factor}*{monomial}" for monomial, factor in sorted(value.items())) or "0"


def merged(left: Monomial, right: Monomial) -> tuple[Monomial, Fraction]:
    """The product of two monomials, and the rational that falls out of `i * i` and of radicals."""
    if not left or not right:
        return left or right, Fraction(1)
    powers = dict(left)
    for generator, degree in right:
        powers[generator] = powers.get(generator, Fraction(0)) + degree
    scale = Fraction(1)
    for generator, degree in list(powers.items()):
        if generator == "i" and degree >= 2:
            scale *= (-1) ** int(degree // 2)
            powers[generator] = degree % 2
        elif generator[0] == "#" and degree >= 1:
            scale *= int(generator[1:]) ** int(degree // 1)
            powers[generator] = degree % 1
    return tuple(sorted((generator, degree) for generator, degree in powers.items() if degree)), scale


def without_factors(value: Sum, divisors: set[str]) -> Sum:
    """The sum without the powers of these generators that all its monomials share."""
    for generator in divisors:
        shared = min((dict(monomial).get(generator, Fraction(0)) for monomial in value), default=Fraction(0))
        if shared > 0:
            value = {
                tuple((name, power - shared * (name == generator)) for name, power in monomial): factor
                for monomial, factor in value.items()
            }
            value = {tuple(pair for pair in monomial if pair[1]): factor for monomial, factor in value.items()}
    return value
