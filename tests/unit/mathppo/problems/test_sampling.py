import random
from collections import Counter

import pytest

from mathppo.errors import BadInput, BadSetting
from mathppo.problems import LINEAR_MIX, canonical_forms, demonstrate, held_out_set, sample_problems, split_of
from mathppo.problems.families import FAMILIES, family_named
from mathppo.problems.families.family import nonzero_integers, pick
from mathppo.records import Problem


def test_sample_of_a_seed_is_stable() -> None:
    problems = sample_problems(LINEAR_MIX, 3, seed=0)
    assert [problem.id for problem in problems] == [
        f"linear-{problem.level}-train-0-{index}" for index, problem in enumerate(problems)
    ]
    assert [problem.question for problem in problems] == [
        "Solve for x: x+2=2",
        "Solve for x: 3x-3=-14",
        "Solve for x: 5x+1=1",
    ]


def test_shorter_list_is_a_prefix_of_a_longer_one() -> None:
    mix = [("linear", 5, 1.0), ("system", 1, 2.0)]
    for split in ("train", "held_out"):
        assert sample_problems(mix, 20, seed=3, split=split) == sample_problems(mix, 50, seed=3, split=split)[:20]
    assert sample_problems(mix, 20, seed=3) != sample_problems(mix, 20, seed=4)


def test_parts_are_sampled_in_proportion_to_their_weights() -> None:
    mix = [("linear", 1, 1.0), ("quadratic", 2, 3.0)]
    counts = Counter((problem.family, problem.level) for problem in sample_problems(mix, 2_000, seed=0))
    assert counts["linear", 1] / 2_000 == pytest.approx(0.25, abs=0.03)  # three standard errors
    assert counts.total() == counts["linear", 1] + counts["quadratic", 2]


@pytest.mark.parametrize("family", [family.name for family in FAMILIES])
def test_each_split_stays_on_its_side(family: str) -> None:
    mix = [(family, level, 1.0) for level in family_named(family).axes]
    for split in ("train", "held_out"):
        problems = sample_problems(mix, 100, seed=1, split=split)
        assert {split_of(problem.canonical) for problem in problems} == {split}
        assert {family_named(family).parse(problem.question).canonical for problem in problems} == {
            problem.canonical for problem in problems
        }
        assert len({problem.id for problem in problems}) == 100
        assert split == "train" or len({problem.canonical for problem in problems}) == 100


def test_exhausted_held_out_space_is_reported_with_its_size() -> None:
    everything = sample_problems([("linear", 2, 1.0)], 64, seed=0, split="held_out")
    assert {problem.canonical for problem in everything} == canonical_forms("linear", 2, "held_out").keys()
    with pytest.raises(BadInput, match=r"held_out problems of linear level 2: expected one more .* got all 64 already"):
        sample_problems([("linear", 2, 1.0)], 65, seed=0, split="held_out")


def test_training_problems_of_a_small_space_repeat() -> None:
    problems = sample_problems([("linear", 2, 1.0)], 500, seed=0)
    assert len({problem.question for problem in problems}) < len({problem.id for problem in problems}) == 500


@pytest.mark.parametrize(
    ("family", "level", "num_forms", "num_held_out"),
    [
        ("linear", 1, 738, 349),
        ("linear", 2, 121, 64),
        ("linear", 3, 764, 387),
        ("linear", 4, 1924, 927),
        ("linear", 5, 3176, 1556),
        ("degenerate", 1, 1841, 934),
        ("degenerate", 2, 254, 128),
        ("quadratic", 1, 189, 92),
        ("quadratic", 2, 513, 252),
        ("quadratic", 3, 259, 136),
        ("arithmetic", 3, 2057, 1036),
        ("facts", 1, 325, 167),
        ("facts", 2, 300, 147),
        ("facts", 3, 154, 73),
    ],
)
def test_the_sizes_of_the_spaces(family: str, level: int, num_forms: int, num_held_out: int) -> None:
    found = canonical_forms(family, level)
    assert len(found) == num_forms
    held_out = canonical_forms(family, level, "held_out")
    assert len(held_out) == num_held_out
    assert held_out.items() <= found.items()
    assert all(item.canonical == form for form, item in found.items())


def test_larger_levels_fill_the_share_of_a_small_level() -> None:
    problems = held_out_set("linear", 500)
    assert Counter(problem.level for problem in problems) == {1: 109, 2: 64, 3: 109, 4: 109, 5: 109}
    assert len({problem.canonical for problem in problems}) == 500
    everything = held_out_set("quadratic", 10_000)
    assert len(everything) == 92 + 252 + 136


def test_demonstrate_without_slips_returns_the_demonstration_of_the_record() -> None:
    for problem in sample_problems(LINEAR_MIX, 50, seed=0):
        assert demonstrate(problem, random.Random(0)) == problem.demonstration
        assert problem.demonstration.endswith(f"\\boxed{{{problem.reference}}}")


def test_demonstrations_slip_at_the_given_rate() -> None:
    rng = random.Random(0)
    problems = sample_problems([("linear", 4, 1.0)], 2_000, seed=0)
    slipped = sum(demonstrate(problem, rng, 0.65) != problem.demonstration for problem in problems)
    assert slipped / 2_000 == pytest.approx(0.65, abs=0.032)  # three standard errors
    assert all(demonstrate(problem, rng, 1.0) != problem.demonstration for problem in problems[:100])


def _problem(question: str = "Solve for x: 2x+3=11", family: str = "linear") -> Problem:
    return Problem(id="p", question=question, reference="4", family=family)


def test_demonstrate_rejects_invalid_arguments() -> None:
    with pytest.raises(BadSetting, match=r"slip_rate: expected a number from 0 to 1, got 1\.5"):
        demonstrate(_problem(), random.Random(0), 1.5)
    with pytest.raises(BadSetting, match=r"family: expected one of linear, .*, got 'poetry'"):
        demonstrate(_problem(family="poetry"), random.Random(0))
    with pytest.raises(BadInput, match="expected a question that starts with 'Solve for x: '"):
        demonstrate(_problem(question="How many apples?"), random.Random(0))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"split": "test"}, "split: expected 'train' or 'held_out', got 'test'"),
        ({"count": -1}, "count: expected at least 0 problems, got -1"),
        ({"mix": []}, "mix: expected parts"),
        ({"mix": [("linear", 1, 0.0)]}, "mix: expected parts"),
        ({"mix": [("linear", 1, float("nan"))]}, "mix: expected parts"),
        ({"mix": [("poetry", 1, 1.0)]}, "family: expected one of"),
        ({"mix": [("linear", 6, 1.0)]}, r"family 'linear': expected a level among \[1, 2, 3, 4, 5\], got 6"),
    ],
)
def test_sample_problems_rejects_invalid_settings(changed: dict, message: str) -> None:
    settings = {"mix": LINEAR_MIX, "count": 1, "seed": 0, "split": "train"} | changed
    with pytest.raises(BadSetting, match=message):
        sample_problems(settings.pop("mix"), settings.pop("count"), **settings)


def test_pick_is_uniform_and_nonzero_integers_omits_zero() -> None:
    rng = random.Random(0)
    counts = Counter(pick(rng, "abc") for _ in range(3_000))
    assert set(counts) == set("abc")
    assert max(counts.values()) < 1_100
    assert nonzero_integers(2) == (-2, -1, 1, 2)
