"""Comparison of two evaluations."""

import random
from typing import Any

import msgspec
import numpy as np
import pytest
from results import result

from mathppo.errors import BadInput
from mathppo.evaluate.compare import Comparison, compare_results
from mathppo.evaluate.paired import mcnemar_p


def test_single_samples_are_compared_by_mcnemar() -> None:
    (one,) = compare_results([result([1, 1, 0, 0, 0])], [[result([1, 0, 1, 1, 1], model="B")]]).sets
    assert (one.accuracy_a, one.accuracy_b, one.difference) == (0.4, 0.8, pytest.approx(0.4))
    assert (one.test, one.p, one.p_holm) == ("mid-p McNemar", mcnemar_p(1, 3), mcnemar_p(1, 3))
    assert sorted(one.wins) == ["p2", "p3", "p4"]
    assert one.losses == ["p1"]
    assert one.low <= one.difference <= one.high
    assert "B and A do not differ significantly on set.plain.greedy (5 problems): +40.0 points" in one.sentence


def test_several_samples_are_compared_by_permutation() -> None:
    a, b = result([1] * 40, 4), result([3] * 40, 4, model="B")
    (one,) = compare_results([a], [[b]]).sets
    assert one.test == "mid-p permutation"
    assert one.p < 1e-3
    assert one.sentence.startswith("B is better than A on set.plain.sampled (40 problems): +50.0 points")
    (other,) = compare_results([b], [[a]]).sets
    assert "A is worse than B" in other.sentence


def test_wins_and_losses_are_sorted_by_size() -> None:
    (one,) = compare_results([result([0, 2, 4, 1], 4)], [[result([4, 3, 0, 0], 4, model="B")]]).sets
    assert one.wins == ["p0", "p1"]
    assert one.losses == ["p2", "p3"]


def test_p_is_adjusted_for_all_comparisons() -> None:
    a = [result([0] * 8), result([0] * 8, name="two")]
    b = [result([1] * 8, model="B"), result([0] * 8, name="two", model="B")]
    first, second = compare_results(a, [b]).sets
    assert first.p == mcnemar_p(8, 0)
    assert first.p_holm == 2 * first.p
    assert second.p_holm == 1


def test_third_policy_is_compared_with_the_first() -> None:
    found = compare_results([result([1, 0])], [[result([1, 1], model="B")], [result([0, 0], model="C")]])
    assert [(one.model_a, one.model_b) for one in found.sets] == [("A", "B"), ("A", "C")]
    assert msgspec.json.decode(msgspec.json.encode(found), type=Comparison) == found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problems_sha256": "x"}, r"different problems or reference answers \(2 and 2\)"),
        ({"prompts_sha256": "x"}, r"different prompts \(templates plain and plain, or different tokenizers\)"),
        ({"max_new_tokens": 64}, r"different max_new_tokens \(32 and 64\)"),
        ({"temperature": 1.0}, r"different temperature \(0\.0 and 1\.0\)"),
        ({"grader": "exact"}, r"different grader \(math and exact\)"),
    ],
)
def test_different_settings_are_rejected_unless_forced(changes: dict[str, Any], message: str) -> None:
    a, b = result([1, 0]), result([1, 1], model="B", **changes)
    with pytest.raises(BadInput, match=f"compare set.plain.greedy: expected the same settings for both, got {message}"):
        compare_results([a], [[b]])
    (one,) = compare_results([a], [[b]], force=True).sets
    assert len(one.notes) == 1


def test_forced_comparison_uses_the_common_problems() -> None:
    a = result([1, 0, 1])
    b = result([1, 1, 0], model="B", problem_ids=["p0", "p1", "other"], problems_sha256="x")
    (one,) = compare_results([a], [[b]], force=True).sets
    assert (one.num_problems, one.wins, one.losses) == (2, ["p1"], [])
    disjoint = msgspec.structs.replace(b, problem_ids=["x", "y", "z"])
    with pytest.raises(BadInput, match="problems with graded samples of both, got none"):
        compare_results([a], [[disjoint]], force=True)


def test_results_that_cannot_be_paired_are_rejected() -> None:
    with pytest.raises(BadInput, match=r"greedy per folder, got 1 problems x 1 of A and 1 problems x 1 of B"):
        compare_results([result([1]), result([1], model="B")], [[result([0])]])
    with pytest.raises(BadInput, match=r"a set that both have, got set\.plain\.greedy and two\.plain\.greedy"):
        compare_results([result([1])], [[result([0], name="two")]])


def test_counts_must_cover_every_problem() -> None:
    with pytest.raises(BadInput, match="two counts for each of 1 problems, got 2 and 2"):
        result([1, 0], problem_ids=["p0"])


@pytest.mark.slow
@pytest.mark.parametrize(("num_problems", "n"), [(200, 1), (1319, 1), (200, 4), (30, 32)])
def test_false_positive_rate_matches_the_significance_level(num_problems: int, n: int) -> None:
    """Compare 2,000 simulated pairs of equal policies on problems of varying difficulty.

    The accepted range is 5 % plus or minus 1 point. At a true rate of 5 %, the standard error of the measured rate is
    0.49 points, and the seed is fixed.
    """
    source, template = np.random.default_rng(5), result([0] * num_problems, n)
    rejected = 0
    for repeat in range(2_000):
        skill = source.beta(0.6, 0.6, size=num_problems)
        a, b = (
            msgspec.structs.replace(template, model=m, num_correct=source.binomial(n, skill).tolist()) for m in "AB"
        )
        rejected += compare_results([a], [[b]], seed=repeat).sets[0].p < 0.05
    assert 0.04 <= rejected / 2_000 <= 0.06


def test_comparison_is_deterministic() -> None:
    source = random.Random(0)
    a, b = ([source.randrange(5) for _ in range(30)] for _ in "ab")
    first = compare_results([result(a, 4)], [[result(b, 4, model="B")]])
    assert compare_results([result(a, 4)], [[result(b, 4, model="B")]]) == first
