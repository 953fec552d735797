"""Grades the solution of an equation by substitution, without a reference answer.

The problem is the question or, without one, the reference: a polynomial equation in one unknown or a linear system in
several, such as `Solve for x: x^2 = 2` or `x + y = 3; x - y = 1`. A solution set is correct if it contains every real
solution and no other value; Sturm's theorem or the rank of the system gives the number of solutions.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from graders.builtin.answer_grader import AnswerGrader, Outcome, failed
from graders.builtin.answer_reader import Reading
from graders.builtin.polynomials import (
    CONSTANTS,
    NotPolynomialError,
    Polynomial,
    difference,
    num_real_roots,
    polynomial,
    rank,
)
from graders.equivalence import TooLarge, compare
from graders.equivalence.arithmetic.balls import evaluate_ball
from graders.equivalence.arithmetic.evaluate_tree import NoValue
from graders.equivalence.canonical.canonicalize import canonicalize
from graders.errors import BadReference
from graders.grader import GraderOptions
from graders.parsing.parse import ParseError, parse
from graders.parsing.tree import Apply, List, Name, Node, Number, Relation, Set, Text, Tuple, names
from graders.verdict import Status

MAX_PROBLEM_CHARS = 2_000
MAX_SOLUTIONS = 24
ZERO = Fraction(0)
_EVERYTHING = Text("all real numbers")
_NOTHING = Text("no solution")


class Problem(NamedTuple):
    """Equations `left = right` and their unknowns, in the order of a tuple of solutions."""

    equations: tuple[tuple[Node, Node], ...]
    unknowns: tuple[str, ...]


class EquationGrader(AnswerGrader):
    """Correct if the completion states every real solution of the problem's equations and no other value."""

    name = "equation"
    options = GraderOptions(
        examples=(
            ("\\boxed{5}", "Solve for x: 3x+5=20", "correct"),
            ("\\boxed{x = 1 \\pm \\sqrt{2}}", "x^2-2x-1=0", "correct"),
            ("\\boxed{2}", "x^2=4", "incorrect"),
            ("\\boxed{(2, 1)}", "x+y=3; x-y=1", "correct"),
            ("\\boxed{\\text{no solution}}", "x=x+1", "correct"),
            ("\\boxed{\\text{all real numbers}}", "x+x=2x", "correct"),
        )
    )

    def compare(self, reading: Reading, reference: str, question: str | None) -> Outcome:
        """Substitute the stated solutions and count them.

        Raises:
            BadReference: the problem has no equations of the kinds above.
        """
        problem = problem_of(question if question and "=" in question else reference)
        if reading.node is None:
            return failed(reading)
        try:
            fault = _fault(problem, reading.node)
        except TooLarge as error:
            return Status.OVER_BUDGET, "substitution", str(error)
        if fault:
            return Status.INCORRECT, "substitution", fault
        return Status.CORRECT, "substitution", "every solution, and no other"


def problem_of(text: str) -> Problem:
    """Return the equations of a problem text: after its last colon, separated by semicolons.

    Raises:
        BadReference: there is no equation, or one cannot be parsed or is of another kind.
    """
    stated = text.rpartition(":")[2].strip().rstrip(".")
    if not 0 < len(stated) <= MAX_PROBLEM_CHARS:
        raise BadReference(
            f"equation grader: expected equations, got {text[:80]!r}; pass them as question or reference"
        )
    equations: list[tuple[Node, Node]] = []
    for part in re.split(r"[;\n]", stated):
        try:
            node = parse(part)
        except ParseError as error:
            raise BadReference(f"equation grader: expected an equation, got {part[:80]!r}: {error}") from error
        if not isinstance(node, Relation) or node.ops != ("=",):
            raise BadReference(f"equation grader: expected an equation, got {part[:80]!r}")
        equations.append((node.terms[0], node.terms[1]))
    unknowns = sorted(frozenset().union(*(names(side) for equation in equations for side in equation)) - CONSTANTS)
    if not unknowns:
        raise BadReference(f"equation grader: expected an unknown, got none in {stated[:80]!r}")
    return Problem(tuple(equations), tuple(unknowns))


def _fault(problem: Problem, node: Node) -> str:
    """Return the fault of a stated solution set, or the empty string."""
    expected = _num_solutions(problem)
    whole = _EVERYTHING if expected is None else _NOTHING
    if expected is None or expected == 0:
        return "" if compare(node, whole).equal else f"the equation has {whole.text}"
    found = _solutions(canonicalize(node), problem.unknowns)
    if found is None or len(found) > MAX_SOLUTIONS:
        return "the answer states no values of the unknowns"
    distinct: list[tuple[Node, ...]] = []
    for values in found:
        if not all(_is_real(value) for value in values):
            return "a value is not a real number"
        assignment = dict(zip(problem.unknowns, values, strict=True))
        if not all(_holds(equation, assignment) for equation in problem.equations):
            return "a value does not satisfy the equation"
        if not any(all(compare(a, b).equal for a, b in zip(values, known, strict=True)) for known in distinct):
            distinct.append(values)
    return "" if len(distinct) == expected else f"{len(distinct)} of {expected} solutions are given"


def _num_solutions(problem: Problem) -> int | None:
    """Return the number of distinct real solutions, or None if every number is one."""
    try:
        sides = [difference(polynomial(left), polynomial(right)) for left, right in problem.equations]
    except (NotPolynomialError, ZeroDivisionError) as error:
        raise BadReference(f"equation grader: expected polynomial equations, got something else: {error}") from error
    if len(problem.unknowns) == 1 and len(sides) == 1:
        return _num_roots(sides[0])
    if any(len(monomial) > 1 for side in sides for monomial in side):
        raise BadReference("equation grader: expected one equation in one unknown or a linear system, got another kind")
    rows = [[side.get((name,), ZERO) for name in problem.unknowns] for side in sides]
    full = [[*row, side.get((), ZERO)] for row, side in zip(rows, sides, strict=True)]
    if rank(full) > rank(rows):
        return 0
    if rank(rows) < len(problem.unknowns):
        raise BadReference("equation grader: expected a system with one solution or none, got one with more")
    return 1


def _num_roots(side: Polynomial) -> int | None:
    degree = max((len(monomial) for monomial in side), default=-1)
    if degree <= 0:
        return None if degree < 0 else 0
    unknown = next(monomial[0] for monomial in side if monomial)
    return num_real_roots([side.get((unknown,) * power, ZERO) for power in range(degree + 1)])


def _solutions(node: Node, unknowns: Sequence[str]) -> list[tuple[Node, ...]] | None:
    """Return the stated solutions, each with one value per unknown, or None if the answer states no solutions."""
    if isinstance(node, Relation) and node.ops == ("=",):
        left, right = node.terms
        if isinstance(left, Name) and [left.text] == list(unknowns):
            return _solutions(right, unknowns)
        return _solutions(right, unknowns) if left == Tuple(tuple(Name(name) for name in unknowns)) else None
    if isinstance(node, Tuple) and len(node.items) == len(unknowns):
        return [node.items]
    if isinstance(node, List | Set):
        assigned = _assigned(node.items, unknowns)
        if assigned is not None:
            return [assigned]
        each = [_solutions(item, unknowns) for item in node.items]
        return None if None in each else [values for found in each if found is not None for values in found]
    return [(node,)] if len(unknowns) == 1 and not isinstance(node, Tuple | Text) else None


def _assigned(items: Sequence[Node], unknowns: Sequence[str]) -> tuple[Node, ...] | None:
    """Return the values of `x = 1, y = 2` in the order of the unknowns, or None if the items are of another form."""
    values: dict[str, Node] = {}
    if len(items) != len(unknowns) or len(unknowns) == 1:
        return None
    for item in items:
        if not isinstance(item, Relation) or item.ops != ("=",) or not isinstance(item.terms[0], Name):
            return None
        values[item.terms[0].text] = item.terms[1]
    return tuple(values[name] for name in unknowns) if sorted(values) == sorted(unknowns) else None


def _is_real(value: Node) -> bool:
    if names(value) - CONSTANTS:
        return False
    try:
        ball = evaluate_ball(value, {})
    except (NoValue, OverflowError, ZeroDivisionError):
        return False
    return abs(ball.mid.imag) <= ball.radius


def _holds(equation: tuple[Node, Node], values: dict[str, Node]) -> bool:
    left, right = (_substituted(side, values) for side in equation)
    return compare(left, right).equal is True


def _substituted(node: Node, values: dict[str, Node]) -> Node:
    if isinstance(node, Name):
        return values.get(node.text, node)
    if isinstance(node, Apply):
        return Apply(node.op, tuple(_substituted(argument, values) for argument in node.args))
    assert isinstance(node, Number)
    return node
