"""Properties of the problem families, checked by an equation parser that shares no code with them."""

import random
import re
from fractions import Fraction
from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from oracles_equations import equation_key, expression_key, fact_key, polynomial, root, summands, system_key

from mathppo.problems import demonstrate, sample_problems, split_of
from mathppo.problems.families import FAMILIES, family_named
from mathppo.problems.families.family import Item
from mathppo.problems.families.terms import canonical_equation, format_terms, parse_terms
from mathppo.prompts import build_equation_tokenizer, encode_text

PARTS = [(family.name, level) for family in FAMILIES for level in family.axes]
SEEDS = st.integers(0, 2**32)
FACTORS = st.integers(-6, 6).filter(bool)
COEFFICIENTS = st.integers(-30, 30)


@cache
def equation_tokenizer() -> Any:
    return build_equation_tokenizer()


def _drawn(name: str, level: int, seed: int) -> Item:
    return family_named(name).draw(level, random.Random(seed))


def _shuffled(text: str, rng: random.Random) -> str:
    parts = summands(text)
    rng.shuffle(parts)
    return "".join(parts).removeprefix("+")


def _scaled(text: str, factor: int) -> str:
    """Multiply every term of a side by a factor, in the order written."""
    return format_terms((factor * value, symbol) for value, symbol in parse_terms(text))


@settings(deadline=None)
@given(st.sampled_from(PARTS), SEEDS)
def test_question_and_tokens_round_trip(part: tuple[str, int], seed: int) -> None:
    item = _drawn(*part, seed)
    assert family_named(part[0]).parse(item.question) == item
    for text in (item.question, item.derivation(), *map(item.derivation, item.slips())):
        assert equation_tokenizer().decode(encode_text(text, equation_tokenizer())) == text


@settings(deadline=None)
@given(st.sampled_from([part for part in PARTS if part[0] in ("linear", "degenerate", "quadratic")]), SEEDS, FACTORS)
def test_reordered_swapped_and_scaled_equation_keeps_its_canonical_form(
    part: tuple[str, int], seed: int, factor: int
) -> None:
    item, rng = _drawn(*part, seed), random.Random(seed)
    sides = [_shuffled(_scaled(side, factor), rng) for side in item.question.partition(": ")[2].split("=")]
    rng.shuffle(sides)
    again = family_named(part[0]).parse(f"Solve for x: {sides[0]}={sides[1]}")
    assert again.canonical == item.canonical
    assert split_of(again.canonical) == split_of(item.canonical)
    assert again.reference == item.reference


@settings(deadline=None)
@given(st.sampled_from([1, 2, 3]), SEEDS, st.integers(1, 5), st.integers(1, 5))
def test_reordered_and_scaled_system_keeps_its_canonical_form(level: int, seed: int, first: int, second: int) -> None:
    item, rng = _drawn("system", level, seed), random.Random(seed)
    equations = []
    for equation, factor in zip(item.question.partition(": ")[2].split("; "), (first, second), strict=True):
        left, right = equation.split("=")
        equations.append(f"{_shuffled(_scaled(left, factor), rng)}={_scaled(right, factor)}")
    rng.shuffle(equations)
    again = family_named("system").parse(f"Solve for x and y: {'; '.join(equations)}")
    assert (again.canonical, again.reference) == (item.canonical, item.reference)


@settings(deadline=None)
@given(st.sampled_from([part for part in PARTS if part[0] in ("simplify", "arithmetic")]), SEEDS)
def test_reordered_expression_keeps_its_canonical_form(part: tuple[str, int], seed: int) -> None:
    item, rng = _drawn(*part, seed), random.Random(seed)
    instruction, _, body = item.question.partition(": ")
    body = re.sub(r"\(([^()]+)\)", lambda inside: f"({_shuffled(inside[1], rng)})", body)
    again = family_named(part[0]).parse(f"{instruction}: {_shuffled(body, rng)}")
    assert (again.canonical, again.reference) == (item.canonical, item.reference)


@settings(deadline=None)
@given(*[st.tuples(COEFFICIENTS, COEFFICIENTS)] * 4)
def test_canonical_forms_are_equal_exactly_if_the_oracle_keys_are(
    left: tuple[int, int], right: tuple[int, int], other_left: tuple[int, int], other_right: tuple[int, int]
) -> None:
    for candidate in (
        (other_left, other_right),
        (right, left),
        (tuple(-3 * v for v in left), tuple(-3 * v for v in right)),
    ):
        texts = [
            "=".join(format_terms(zip(side, ("x", ""), strict=True)) for side in sides)
            for sides in ((left, right), candidate)
        ]
        same = canonical_equation(left, right) == canonical_equation(*candidate)
        assert same == (equation_key(texts[0]) == equation_key(texts[1]))


@settings(deadline=None)
@given(st.sampled_from(PARTS), SEEDS, SEEDS)
def test_training_and_held_out_problems_never_share_the_oracles_key(
    part: tuple[str, int], seed: int, other: int
) -> None:
    keys = {"system": system_key, "simplify": expression_key, "arithmetic": expression_key, "facts": fact_key}
    key = keys.get(part[0], equation_key)
    trained = sample_problems([(*part, 1.0)], 20, seed=seed)
    held_out = sample_problems([(*part, 1.0)], 20, seed=other, split="held_out")
    trained_keys, held_out_keys = (
        {key(problem.question.partition(": ")[2]) for problem in problems} for problems in (trained, held_out)
    )
    assert not trained_keys & held_out_keys


@settings(deadline=None)
@given(st.sampled_from([1, 3, 4, 5]), SEEDS, st.floats(0, 1))
def test_a_linear_demonstration_has_one_slip_at_most_and_follows_from_it(level: int, seed: int, rate: float) -> None:
    """The lines after the question agree with each other; with a slip exactly one moved term has the wrong sign."""
    (problem,) = sample_problems([("linear", level, 1.0)], 1, seed=seed)
    moved, reduced, boxed = demonstrate(problem, random.Random(seed), rate).split("\n")
    answer = Fraction(boxed.removeprefix("\\boxed{").removesuffix("}"))
    assert root(moved) == root(reduced) == answer
    left, right = problem.question.removeprefix("Solve for x: ").split("=")
    a, b = polynomial(left)[1:]
    c, d = polynomial(right)[1:]
    (_, moved_a, _), (_, _, moved_d) = polynomial(moved.split("=")[0]), polynomial(moved.split("=")[1])
    x_flipped, constant_flipped = moved_a == a - c, moved_d == d - b
    assert x_flipped or moved_a == a + c
    assert constant_flipped or moved_d == d + b
    assert x_flipped or constant_flipped
    assert (answer == Fraction(problem.reference)) >= (x_flipped and constant_flipped)
    assert rate > 0 or (x_flipped and constant_flipped)


@settings(deadline=None)
@given(st.text(alphabet="0123456789xy+-*/=(),;{}^\n ", max_size=60), st.sampled_from(["", "no solution", "\\boxed{"]))
def test_any_text_of_the_alphabet_comes_back_exactly(text: str, phrase: str) -> None:
    assert equation_tokenizer().decode(encode_text(text + phrase + text, equation_tokenizer())) == text + phrase + text
