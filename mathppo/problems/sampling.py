"""Problems drawn from the built-in families, by seed, on either side of the held-out split."""

import hashlib
import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from mathppo.errors import BadInput, BadSetting
from mathppo.problems.families import family_named
from mathppo.problems.family import Family, Item, pick
from mathppo.records import Problem
from mathppo.seeds import derive_seed

Split = Literal["train", "held_out"]
Mix = Sequence[tuple[str, int, float]]
"""Family, level and weight of each part."""

HELD_OUT_SHARE = 0.5
"""Share of the canonical forms that is never trained on: half, because level 1 has 738 forms in all (M-problems-2)."""

LINEAR_MIX: Mix = tuple(("linear", level, 1.0) for level in range(1, 6))
"""The five linear levels, evenly."""

_MAX_MISSES = 2_000


def split_of(canonical: str) -> Split:
    """The side of the split that a canonical form lies on: the SHA-256 of the form against `HELD_OUT_SHARE`."""
    return "held_out" if _hash64(f"split {canonical}") < HELD_OUT_SHARE * 2**64 else "train"


def sample_problems(mix: Mix, count: int, *, seed: int, split: Split = "train") -> list[Problem]:
    """Draw problems from families and levels in proportion to their weights.

    A problem depends on the seed and its index alone, so a shorter list is the head of a longer one. Training problems
    may repeat, as small spaces make them; held-out problems are unique by canonical form.

    Args:
        mix: parts (family, level, weight), weights positive.
        count: how many, at least 0.
        seed: any integer.
        split: `"train"` never gives a form that `"held_out"` could.

    Raises:
        BadSetting: an unknown family, level or split, no part, or a weight or count out of range.
        BadInput: a held-out space has too few canonical forms.
    """
    parts = _check(mix, count, split)
    bounds = list(accumulate(weight for _, _, weight in mix))
    seen: set[str] = set()
    problems = []
    for index in range(count):
        rng = random.Random(derive_seed(seed, "problem", split, index))
        point = rng.random() * bounds[-1]
        family, level = parts[next((i for i, bound in enumerate(bounds) if point < bound), len(parts) - 1)]
        item, canonical = _draw_on_side(family, level, rng, split, seen)
        if split == "held_out":
            seen.add(canonical)
            problem_id = held_out_id(family.name, level, canonical)
        else:
            problem_id = f"{family.name}-{level}-train-{seed}-{index}"
        problems.append(to_problem(item, problem_id, family.name, level, canonical))
    return problems


def demonstrate(problem: Problem, rng: random.Random, slip_rate: float = 0.0) -> str:
    """A worked derivation of a built-in problem, by a teacher who slips.

    With probability `slip_rate` exactly one term that moves keeps its sign; everything after follows correctly from
    that, so the boxed answer is then usually wrong. Where no term moves, as in ax = c, there is nothing to slip on
    (M-problems-3).

    Args:
        problem: of a built-in family.
        rng: advanced by up to two draws.
        slip_rate: in [0, 1]; at 0 the derivation is right.

    Raises:
        BadSetting: the rate is out of range, or the family is not built in.
        BadInput: the question is not the family's.
    """
    if not 0 <= slip_rate <= 1:
        raise BadSetting(f"slip_rate: expected a number from 0 to 1, got {slip_rate}")
    item = family_named(problem.family).parse(problem.question)
    slips = item.slips()
    slip = pick(rng, slips) if slips and rng.random() < slip_rate else None
    return item.derivation(slip)


def forms(family: str, level: int, split: Split | None = None) -> dict[str, Item]:
    """Every canonical form of a level, each with one problem that has it, chosen by hash among its scalings.

    Enumerates the level's whole space: up to a few seconds.

    Raises:
        BadSetting: an unknown family or level.
    """
    chosen: dict[str, tuple[int, Item]] = {}
    for item in family_named(family).space(level):
        canonical = item.canonical
        rank = _hash64(f"form {item.question}")
        if canonical not in chosen or rank < chosen[canonical][0]:
            chosen[canonical] = rank, item
    return {form: item for form, (_, item) in chosen.items() if split is None or split_of(form) == split}


def held_out_set(family: str, count: int) -> list[Problem]:
    """The family's held-out evaluation set: every level alike as far as its forms reach, in an order that mixes levels.

    A form counts for the lowest level that has it. What a small level lacks the larger ones share out; the set is
    shorter than `count` only where the family has no more held-out forms. Which forms are taken and their order follow
    from hashes, so that the head of the set is a fair sample of it.

    Raises:
        BadSetting: an unknown family.
    """
    levels = family_named(family).axes
    by_level: dict[int, dict[str, Item]] = {}
    for level in sorted(levels):
        lower = {form for found in by_level.values() for form in found}
        by_level[level] = {form: item for form, item in forms(family, level, "held_out").items() if form not in lower}
    chosen: list[tuple[str, int, Item]] = []
    by_size = sorted(by_level, key=lambda level: len(by_level[level]))
    for position, level in enumerate(by_size):
        quota = round((count - len(chosen)) / (len(by_size) - position))
        ranked = sorted(by_level[level], key=lambda form: _hash64(f"take {form}"))
        chosen += [(form, level, by_level[level][form]) for form in ranked[:quota]]
    chosen.sort(key=lambda entry: _hash64(f"order {entry[0]}"))
    return [to_problem(item, held_out_id(family, level, form), family, level, form) for form, level, item in chosen]


def held_out_id(family: str, level: int, canonical: str) -> str:
    """Id of a held-out problem: the same wherever the problem turns up."""
    return f"{family}-{level}-{_hash64(f'id {canonical}'):016x}"


def to_problem(item: Item, problem_id: str, family: str, level: int, canonical: str) -> Problem:
    """The record of an item, with its right demonstration."""
    return Problem(
        id=problem_id,
        question=item.question,
        reference=item.reference,
        family=family,
        level=level,
        canonical=canonical,
        demonstration=item.derivation(),
    )


def _draw_on_side(family: Family, level: int, rng: random.Random, split: Split, seen: set[str]) -> tuple[Item, str]:
    misses = 0
    while True:
        item = family.draw(level, rng)
        canonical = item.canonical
        if canonical not in seen and split_of(canonical) == split:
            return item, canonical
        misses += 1
        if misses == _MAX_MISSES and not forms(family.name, level, split).keys() - seen:
            raise BadInput(
                f"{split} problems of {family.name} level {level}: expected one more canonical form, got all "
                f"{len(forms(family.name, level, split))} already; ask for fewer or mix in other levels"
            )


def _check(mix: Mix, count: int, split: str) -> list[tuple[Family, int]]:
    if split not in ("train", "held_out"):
        raise BadSetting(f"split: expected 'train' or 'held_out', got {split!r}")
    if count < 0:
        raise BadSetting(f"count: expected at least 0 problems, got {count}")
    if not mix or not all(0 < weight < float("inf") for _, _, weight in mix):
        raise BadSetting(f"mix: expected parts (family, level, weight) with positive finite weights, got {list(mix)}")
    parts = [(family_named(name), level) for name, level, _ in mix]
    for family, level in parts:
        family.axes_of(level)
    return parts


def _hash64(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
