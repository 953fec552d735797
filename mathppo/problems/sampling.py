"""Sampling of problems from the built-in families, by seed and by side of the held-out split."""

import hashlib
import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from mathppo.errors import BadInput, BadSetting
from mathppo.problems.families import family_named
from mathppo.problems.families.family import Family, Item, pick
from mathppo.records import Problem
from mathppo.seeds import derive_seed

Split = Literal["train", "held_out"]
Mix = Sequence[tuple[str, int, float]]
"""Family, level and weight of each part."""

HELD_OUT_SHARE = 0.5
"""Share of the canonical forms that training never uses: half, because level 1 has only 738 forms (M-problems-2)."""

LINEAR_MIX: Mix = tuple(("linear", level, 1.0) for level in range(1, 6))
"""The five linear levels with equal weights."""

_MAX_MISSES = 2_000


def split_of(canonical: str) -> Split:
    """Return the side of the split of a canonical form, by its SHA-256 and `HELD_OUT_SHARE`."""
    return "held_out" if _hash64(f"split {canonical}") < HELD_OUT_SHARE * 2**64 else "train"


def sample_problems(mix: Mix, count: int, *, seed: int, split: Split = "train") -> list[Problem]:
    """Draw problems from families and levels in proportion to their weights.

    A problem depends only on the seed and its index, so a shorter list is a prefix of a longer one. Training problems
    may repeat if their space is small; held-out problems are unique by canonical form.

    Args:
        mix: parts (family, level, weight) with positive weights.
        count: number of problems, at least 0.
        seed: any integer.
        split: side of the split; no canonical form is on both.

    Raises:
        BadSetting: the family, level or split is unknown, the mix is empty, or a weight or the count is out of range.
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
    """Return a worked derivation of a built-in problem, with a sign slip at the given rate.

    With probability `slip_rate`, exactly one term that moves keeps its sign. The later lines follow correctly from the
    slip, so the boxed answer is usually wrong. If no term moves, as in ax = c, there is no slip (M-problems-3).

    Args:
        problem: a problem of a built-in family.
        rng: advanced by up to two draws.
        slip_rate: in [0, 1]; at 0 the derivation is correct.

    Raises:
        BadSetting: the rate is out of range, or the family is not built in.
        BadInput: the question does not belong to the family.
    """
    if not 0 <= slip_rate <= 1:
        raise BadSetting(f"slip_rate: expected a number from 0 to 1, got {slip_rate}")
    item = family_named(problem.family).parse(problem.question)
    slips = item.slips()
    slip = pick(rng, slips) if slips and rng.random() < slip_rate else None
    return item.derivation(slip)


def canonical_forms(family: str, level: int, split: Split | None = None) -> dict[str, Item]:
    """Return every canonical form of a level, each with one of its problems, chosen by hash.

    Enumerates the whole space of the level, which takes up to a few seconds.

    Raises:
        BadSetting: the family or level is unknown.
    """
    chosen: dict[str, tuple[int, Item]] = {}
    for item in family_named(family).space(level):
        canonical = item.canonical
        rank = _hash64(f"form {item.question}")
        if canonical not in chosen or rank < chosen[canonical][0]:
            chosen[canonical] = rank, item
    return {form: item for form, (_, item) in chosen.items() if split is None or split_of(form) == split}


def held_out_set(family: str, count: int) -> list[Problem]:
    """Return the held-out evaluation set of a family, with equal shares for its levels.

    A form belongs to the lowest level that has it. If a level has too few forms, the larger levels fill its share; the
    set is shorter than `count` only if the family has no more held-out forms. Hashes select and order the forms, so a
    prefix of the set is a fair sample of it.

    Raises:
        BadSetting: the family is unknown.
    """
    levels = family_named(family).axes
    by_level: dict[int, dict[str, Item]] = {}
    for level in sorted(levels):
        lower = {form for found in by_level.values() for form in found}
        by_level[level] = {
            form: item for form, item in canonical_forms(family, level, "held_out").items() if form not in lower
        }
    chosen: list[tuple[str, int, Item]] = []
    by_size = sorted(by_level, key=lambda level: len(by_level[level]))
    for position, level in enumerate(by_size):
        quota = round((count - len(chosen)) / (len(by_size) - position))
        ranked = sorted(by_level[level], key=lambda form: _hash64(f"take {form}"))
        chosen += [(form, level, by_level[level][form]) for form in ranked[:quota]]
    chosen.sort(key=lambda entry: _hash64(f"order {entry[0]}"))
    return [to_problem(item, held_out_id(family, level, form), family, level, form) for form, level, item in chosen]


def held_out_id(family: str, level: int, canonical: str) -> str:
    """Return the id of a held-out problem, which depends only on the family, level and canonical form."""
    return f"{family}-{level}-{_hash64(f'id {canonical}'):016x}"


def to_problem(item: Item, problem_id: str, family: str, level: int, canonical: str) -> Problem:
    """Return the record of an item, with its correct demonstration."""
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
        if misses == _MAX_MISSES:
            available = canonical_forms(family.name, level, split)
            if not available.keys() - seen:
                raise BadInput(
                    f"{split} problems of {family.name} level {level}: expected one more canonical form, got all "
                    f"{len(available)} already; request fewer problems or add other levels to the mix"
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
