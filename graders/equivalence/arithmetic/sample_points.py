"""Sample points for the free names of trees, and the double closest to a value."""

from collections.abc import Iterator, Mapping
from fractions import Fraction

from graders.equivalence.arithmetic.balls import evaluate_ball
from graders.equivalence.arithmetic.evaluate_tree import NoValue, TooLarge
from graders.parsing.tree import Apply, Name, Node, walk

CONSTANT_NAMES = frozenset({"pi", "e", "i", "infinity"})
NUM_POINTS = 8
_INTEGER_OPS = frozenset(
    {"factorial", "double_factorial", "binomial", "permutations", "sum", "prod", "gcd", "lcm", "mod"}
)
_INTEGER_NAMES = frozenset("i j k l m n N M K p q r a b".split())


def variables(*nodes: Node) -> list[str]:
    """Return the free names of the trees, sorted; bound indices and named constants are not free."""
    found: set[str] = set()
    bound: set[str] = set()
    for node in nodes:
        for current, _ in walk(node):
            if isinstance(current, Name) and current.text not in CONSTANT_NAMES:
                found.add(current.text)
            elif isinstance(current, Apply) and current.op in ("sum", "prod") and isinstance(current.args[1], Name):
                bound.add(current.args[1].text)
    return sorted(found - bound)


def sample_points(*nodes: Node) -> Iterator[dict[str, Fraction]]:
    """Yield rational values for the free names: the same values for the same names, on every machine.

    A single name takes both signs, so `sqrt(x^2)` differs from `x`. Several names are the parameters of a formula and
    stay positive, unless the trees contain an absolute value or a sign.
    """
    free = variables(*nodes)
    if not free:
        yield {}
        return
    integer = any(_needs_integers(node) for node in nodes)
    signed = len(free) == 1 or any(_has_absolute_value(node) for node in nodes)
    state = 88172645463325252
    for at in range(2 * NUM_POINTS):
        point: dict[str, Fraction] = {}
        for name in free:
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            draw = state >> 33
            if integer:
                point[name] = Fraction(2 + draw % 9)
            else:
                size = Fraction(draw % 9973 + 1013, 4099)
                point[name] = -size if signed and at % 2 and draw % 3 else size
        yield point


def _has_absolute_value(node: Node) -> bool:
    return any(isinstance(current, Apply) and current.op in ("abs", "sgn") for current, _ in walk(node))


def _needs_integers(node: Node) -> bool:
    for current, _ in walk(node):
        if not isinstance(current, Apply):
            continue
        if current.op in _INTEGER_OPS:
            return True
        base = current.args[0]
        if current.op == "^" and isinstance(base, Apply) and base.op == "neg" and variables(current.args[1]):
            return True
        if current.op in ("floor", "ceil") and set(variables(current)) <= _INTEGER_NAMES and variables(current):
            return True
    return False


def float_value(node: Node, point: Mapping[str, Fraction] | None = None) -> float | None:
    """Return a double close to the value, for ordering; None if the value is undefined or not real."""
    try:
        ball = evaluate_ball(node, point or {})
    except (NoValue, OverflowError, ZeroDivisionError, TooLarge):
        return None
    return ball.mid.real if ball.is_real else None
