"""Algebraic rung: normal forms over variables, constants, radicals and opaque functions.

A value is a quotient of two sums of rational multiples of monomials. The generators of a monomial are names, primes
under a radical, and functions of an argument in normal form; `i * i` becomes -1 and `sqrt(2) * sqrt(2)` becomes 2.
Distinct monomials in names, pi and prime radicals are linearly independent over the rationals (Besicovitch 1940).
Equal forms therefore prove equality, and different forms prove inequality if no generator is opaque. A pair that is
outside the bounds, or whose forms differ in opaque generators, is left to the next rung.
"""

from fractions import Fraction

from graders.equivalence.arithmetic.evaluate_tree import NoValue, TooLarge, number_tree, number_value
from graders.equivalence.arithmetic.rationals import exact_value
from graders.parsing.tree import Apply, Name, Node, Number, Quantity, names

MAX_MONOMIALS = 300
MAX_POWER = 40
MAX_WORK = 20_000
MAX_TRIAL_DIVISOR = 2_000

Monomial = tuple[tuple[str, Fraction], ...]
"""Generators with their powers, sorted; the empty monomial is 1."""
Sum = dict[Monomial, Fraction]
Quotient = tuple[Sum, Sum]

ONE: Monomial = ()
UNIT: Sum = {ONE: Fraction(1)}


class NoForm(Exception):
    """The tree has no normal form within the bounds."""


def same_form(left: Node, right: Node) -> bool | None:
    """Return whether two trees have the same normal form; None if there is no form or it does not decide.

    True proves equality at every point at which both sides are defined. False proves inequality.
    """
    try:
        forms = _Forms()
        (top, bottom), (other_top, other_bottom) = forms.form(left), forms.form(right)
        gap = forms.add(forms.multiply(top, other_bottom), _negate(forms.multiply(other_top, bottom)))
    except (NoForm, TooLarge, ZeroDivisionError):
        return None
    if not gap:
        return True
    return None if forms.opaque else False


def proportional_forms(left: Node, right: Node) -> bool | None:
    """Return True if the equations `left = 0` and `right = 0` have numerators that are multiples of each other.

    Factors of the denominators cannot be zero, so they are divided out. False if one equation is trivial, None if
    the numerators are not multiples.
    """
    try:
        forms = _Forms()
        (top, bottom), (other, other_bottom) = forms.form(left), forms.form(right)
    except (NoForm, TooLarge, ZeroDivisionError):
        return None
    divisors = {generator for part in (bottom, other_bottom) for monomial in part for generator, _ in monomial}
    top, other = _divide_out(top, divisors), _divide_out(other, divisors)
    if not top or not other:
        return False
    if top.keys() != other.keys():
        return None
    ratios = {top[monomial] / other[monomial] for monomial in top}
    return True if len(ratios) == 1 else None


class _Forms:
    """One computation of normal forms, bounded in work and size; records if a generator was opaque."""

    def __init__(self) -> None:
        self.opaque = False
        self.work = 0

    def form(self, node: Node) -> Quotient:
        if isinstance(node, Number):
            return _constant(number_value(node.text)), UNIT
        if isinstance(node, Name):
            if node.text == "infinity":
                raise NoForm
            return {((node.text, Fraction(1)),): Fraction(1)}, UNIT
        if isinstance(node, Quantity) and node.unit in ("%", "degree"):
            top, bottom = self.form(node.value)
            if node.unit == "%":
                return top, self.multiply(bottom, _constant(Fraction(100)))
            return self.multiply(top, {(("pi", Fraction(1)),): Fraction(1, 180)}), bottom
        if not isinstance(node, Apply):
            raise NoForm
        return self._applied(node)

    def _applied(self, node: Apply) -> Quotient:
        match node.op:
            case "+":
                total: Quotient = ({}, UNIT)
                for term in node.args:
                    total = self._plus(total, self.form(term))
                return total
            case "*":
                product: Quotient = (UNIT, UNIT)
                for factor in node.args:
                    product = self._times(product, self.form(factor))
                return product
            case "neg":
                top, bottom = self.form(node.args[0])
                return _negate(top), bottom
            case "/":
                return self._times(self.form(node.args[0]), self._inverse(self.form(node.args[1])))
            case "^":
                return self._power(node.args[0], node.args[1])
            case "root":
                return self._power(node.args[0], Apply("/", (Number("1"), node.args[1])))
            case "sqrt" | "cbrt":
                index = Number("2" if node.op == "sqrt" else "3")
                return self._power(node.args[0], Apply("/", (Number("1"), index)))
            case "exp":
                return self._power(Name("e"), node.args[0])
        return self._function(node)

    def _function(self, node: Apply) -> Quotient:
        if not names(node):
            try:
                return _constant(exact_value(node)), UNIT
            except NoValue:
                pass
        self.opaque = True
        key = f"{node.op}({','.join(self._key(self.form(argument)) for argument in node.args)})"
        return {((key, Fraction(1)),): Fraction(1)}, UNIT

    def _power(self, base: Node, exponent: Node) -> Quotient:
        try:
            power = exact_value(exponent)
        except NoValue:
            return self._symbolic_power(base, exponent)
        quotient = self.form(base)
        if power < 0:
            quotient, power = self._inverse(quotient), -power
        if power.numerator > MAX_POWER * power.denominator:
            return self._large_power(quotient, power)
        whole, part = divmod(power, 1)
        result: Quotient = (UNIT, UNIT)
        for _ in range(int(whole)):
            result = self._times(result, quotient)
        if part:
            top = self._fractional(quotient[0], part)
            result = self._times(result, (top, self._fractional(quotient[1], part)))
        return result

    def _large_power(self, quotient: Quotient, power: Fraction) -> Quotient:
        """Return a power too large to expand, which is possible only if the base is a single monomial."""
        top, bottom = quotient
        if bottom != UNIT or len(top) != 1 or power.denominator != 1:
            raise NoForm
        ((monomial, factor),) = top.items()
        if factor != 1 or power > 10**6:
            raise NoForm
        return {tuple((generator, degree * power) for generator, degree in monomial): Fraction(1)}, UNIT

    def _symbolic_power(self, base: Node, exponent: Node) -> Quotient:
        """Return `b^(u + v)` as the product of `b^u` and `b^v`, so `2 * 2^n` and `2^(n+1)` have the same form."""
        self.opaque = True
        top, bottom = self.form(exponent)
        if len(bottom) != 1 or ONE not in bottom:
            bottom_key = self._key((UNIT, bottom))
        else:
            top, bottom_key = {monomial: factor / bottom[ONE] for monomial, factor in top.items()}, ""
        base_key = self._key(self.form(base))
        result: Quotient = (UNIT, UNIT)
        for monomial, factor in top.items():
            if monomial == ONE and not bottom_key:
                result = self._times(result, self._power(base, number_tree(factor)))
                continue
            generator = f"({base_key})^[{_key_of_sum({monomial: Fraction(1)})}{bottom_key}]"
            if factor.denominator == 1 and abs(factor) <= MAX_POWER and factor < 0:
                result = self._times(result, (UNIT, {((generator, -factor),): Fraction(1)}))
            else:
                result = self._times(result, ({((generator, factor),): Fraction(1)}, UNIT))
        return result

    def _fractional(self, base: Sum, power: Fraction) -> Sum:
        """Return `base ** power` for a power between 0 and 1."""
        if not base:
            return {}
        if base == UNIT:
            return UNIT
        if len(base) == 1:
            ((monomial, factor),) = base.items()
            if monomial == ONE and factor > 0:
                return self._radical(factor, power)
            if factor > 0 and len(monomial) == 1 and monomial[0][1] == 1 and monomial[0][0] != "i":
                return self.multiply(self._radical(factor, power), {((monomial[0][0], power),): Fraction(1)})
            if monomial == ONE and power == Fraction(1, 2):
                return self.multiply(self._radical(-factor, power), {(("i", Fraction(1)),): Fraction(1)})
        self.opaque = True
        return {((f"<{_key_of_sum(base)}>", power),): Fraction(1)}

    def _radical(self, value: Fraction, power: Fraction) -> Sum:
        """Return a radical of a positive rational as a rational times radicals of primes."""
        result: Sum = UNIT
        for number, sign in ((value.numerator, 1), (value.denominator, -1)):
            for prime, count in self._factors(number).items():
                whole, part = divmod(sign * count * power, 1)
                factor = _constant(Fraction(prime) ** int(whole))
                radical = {((f"#{prime}", part),): Fraction(1)} if part else UNIT
                result = self.multiply(result, self.multiply(factor, radical))
        return result

    def _factors(self, number: int) -> dict[int, int]:
        found: dict[int, int] = {}
        if number.bit_length() > 256:
            raise NoForm
        divisor = 2
        while number > 1 and divisor <= MAX_TRIAL_DIVISOR:
            while number % divisor == 0:
                found[divisor] = found.get(divisor, 0) + 1
                number //= divisor
            divisor += 1 if divisor == 2 else 2
            if divisor * divisor > number > 1:
                break
        if number > 1:
            found[number] = found.get(number, 0) + 1
            self.opaque = self.opaque or number > MAX_TRIAL_DIVISOR**2
        return found

    def add(self, left: Sum, right: Sum) -> Sum:
        total = dict(left)
        for monomial, factor in right.items():
            value = total.get(monomial, 0) + factor
            if value:
                total[monomial] = value
            else:
                total.pop(monomial, None)
        self._spend(len(right), len(total))
        return total

    def multiply(self, left: Sum, right: Sum) -> Sum:
        if left is UNIT or right is UNIT:
            return right if left is UNIT else left
        total: Sum = {}
        self._spend(len(left) * len(right), 0)
        for monomial, factor in left.items():
            for other, other_factor in right.items():
                product, scale = _multiply_monomials(monomial, other)
                value = total.get(product, 0) + factor * other_factor * scale
                if value:
                    total[product] = value
                else:
                    total.pop(product, None)
        self._spend(0, len(total))
        return total

    def _spend(self, work: int, size: int) -> None:
        self.work += work
        if self.work > MAX_WORK or size > MAX_MONOMIALS:
            raise NoForm

    def _plus(self, left: Quotient, right: Quotient) -> Quotient:
        if left[1] == right[1]:
            return self.add(left[0], right[0]), left[1]
        top = self.add(self.multiply(left[0], right[1]), self.multiply(right[0], left[1]))
        return top, self.multiply(left[1], right[1])

    def _times(self, left: Quotient, right: Quotient) -> Quotient:
        return self.multiply(left[0], right[0]), self.multiply(left[1], right[1])

    def _inverse(self, value: Quotient) -> Quotient:
        if not value[0]:
            raise ZeroDivisionError
        if len(value[0]) == 1 and ONE in value[0]:
            factor = 1 / value[0][ONE]
            return {monomial: scale * factor for monomial, scale in value[1].items()}, UNIT
        return value[1], value[0]

    def _key(self, value: Quotient) -> str:
        top, bottom = value
        lead = bottom[min(bottom)]
        scaled = {monomial: factor / lead for monomial, factor in top.items()}
        below = {monomial: factor / lead for monomial, factor in bottom.items()}
        return _key_of_sum(scaled) if below == UNIT else f"{_key_of_sum(scaled)}/{_key_of_sum(below)}"


def _constant(value: Fraction) -> Sum:
    """Return a rational as a sum; zero is the empty sum."""
    return {ONE: value} if value else {}


def _negate(value: Sum) -> Sum:
    """Return the sum with every sign inverted."""
    return {monomial: -factor for monomial, factor in value.items()}


def _key_of_sum(value: Sum) -> str:
    """Return a string that identifies a sum regardless of order, for the names of opaque generators."""
    return "+".join(f"{factor}*{monomial}" for monomial, factor in sorted(value.items())) or "0"


def _multiply_monomials(left: Monomial, right: Monomial) -> tuple[Monomial, Fraction]:
    """Return the product of two monomials and the rational factor that `i * i` and radicals contribute."""
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


def _divide_out(value: Sum, divisors: set[str]) -> Sum:
    """Return the sum divided by the powers of `divisors` that all its monomials share."""
    for generator in divisors:
        shared = min((dict(monomial).get(generator, Fraction(0)) for monomial in value), default=Fraction(0))
        if shared > 0:
            value = {
                tuple((name, power - shared * (name == generator)) for name, power in monomial): factor
                for monomial, factor in value.items()
            }
            value = {tuple(pair for pair in monomial if pair[1]): factor for monomial, factor in value.items()}
    return value
