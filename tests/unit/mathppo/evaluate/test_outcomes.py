"""Estimates from several samples per problem: pass@k, maj@k and G-Pass@k for all k, compared with counting."""

import itertools
import math
import random

import numpy as np
import pytest

from graders.verdict import Status
from mathppo.errors import BadInput
from mathppo.evaluate.accuracy import Group, summarise_outcomes
from mathppo.evaluate.consistency import majority, majority_at_k
from mathppo.evaluate.outcomes import Outcome, of_several_samples
from mathppo.evaluate.statistics import mean_interval, wilson_interval
from mathppo.records import Problem


def outcomes(pattern: str) -> list[Outcome]:
    """Return one sample per letter: R right; a, b, … wrong answers; `-` none; E an error of the grader."""
    kinds = {"R": (Status.CORRECT, "correct"), "-": (Status.NO_ANSWER, None), "E": (Status.ERROR, None)}
    return [
        Outcome(status, 3, letter == "-", answer)
        for letter in pattern
        for status, answer in [kinds.get(letter, (Status.INCORRECT, letter))]
    ]


def test_every_k_by_counting_subsets() -> None:
    found = of_several_samples([outcomes("RRaa"), outcomes("Rabb"), outcomes("aaaa")], 0, with_intervals=True)
    rows = ["RRaa", "Rabb", "aaaa"]
    for k in range(1, 5):
        subsets = [list(itertools.combinations(row, k)) for row in rows]
        expected = sum(sum("R" in s for s in each) / len(each) for each in subsets) / 3
        assert found.pass_at_k[k] == pytest.approx(expected)
    assert found.majority_at_k[1] == pytest.approx((2 / 4 + 1 / 4 + 0) / 3)
    assert found.majority_at_k[4] == pytest.approx((1 / 2 + 0 + 0) / 3), "ties share the vote"
    assert found.g_pass["0.5"] == pytest.approx(1 / 3), "only the first has two of four right"
    assert found.g_pass["1"] == 0
    assert found.g_pass["mean"] == 0
    assert set(found.intervals) == {"pass@1", "pass@2", "pass@4", "maj@1", "maj@2", "maj@4"}
    assert all(low <= high for low, high in found.intervals.values())


def test_mean_of_g_pass_matches_the_paper() -> None:
    # All of 4 samples right: G-Pass is 1 at every threshold, and 2/4 of the thresholds 3/4 and 1 add up to 1.
    assert of_several_samples([outcomes("RRRR")], 0, with_intervals=False).g_pass["mean"] == 1
    assert of_several_samples([outcomes("RRRa")], 0, with_intervals=False).g_pass["mean"] == 0.5


def test_one_sample_or_no_graded_problem_says_nothing_more() -> None:
    assert of_several_samples([outcomes("R"), outcomes("a")], 0, with_intervals=True).pass_at_k == {}
    assert of_several_samples([outcomes("EE")], 0, with_intervals=True).pass_at_k == {}
    assert of_several_samples([outcomes("EE"), outcomes("Ra")], 0, with_intervals=True).pass_at_k == {1: 0.5, 2: 1.0}


def test_errors_of_the_grader_leave_the_samples() -> None:
    found = of_several_samples([outcomes("RaE"), outcomes("RRR")], 0, with_intervals=False)
    assert found.pass_at_k == {1: 0.75, 2: 1.0}, "two graded samples are left of the first problem"


@pytest.mark.parametrize(("num_subsets", "error"), [(512, 1e-12), (50, 0.15)])
@pytest.mark.parametrize("k", [2, 3, 5, 7])
def test_majority_at_k_is_the_mean_over_subsets(k: int, num_subsets: int, error: float) -> None:
    samples = outcomes("RRaabb-c")
    groups, right = [s.answer for s in samples], [s.correct for s in samples]
    subsets = list(itertools.combinations(range(len(samples)), k))
    expected = math.fsum(majority([groups[i] for i in s], [right[i] for i in s]) for s in subsets) / len(subsets)
    found = majority_at_k(groups, right, k, np.random.default_rng(0), num_subsets=num_subsets)
    assert found == pytest.approx(expected, abs=error)


@pytest.mark.parametrize("k", [0, 3])
def test_majority_at_k_needs_k_samples(k: int) -> None:
    with pytest.raises(BadInput, match=rf"maj@k: expected 1 <= k <= samples of every problem \(2\), got k = {k}"):
        majority_at_k(["a", "b"], [True, False], k, np.random.default_rng(0))


def test_the_order_of_problems_and_samples_changes_no_bit() -> None:
    source = random.Random(1)
    rows = ["".join(source.choices("Rab-", k=8)) for _ in range(20)]
    first = of_several_samples([outcomes(row) for row in rows], 0, with_intervals=True)
    shuffled = ["".join(source.sample(row, len(row))) for row in source.sample(rows, len(rows))]
    assert of_several_samples([outcomes(row) for row in shuffled], 0, with_intervals=True) == first


def test_rows_by_type_of_the_right_answer() -> None:
    problems = [Problem(id=str(i), question="?", reference=text) for i, text in enumerate(["1", "2", "1/2"])]
    by_id = {p.id: outcomes("R" if p.id == "0" else "a") for p in problems}
    evaluation = summarise_outcomes("s", 0, "greedy", problems, by_id, by_answer=True)
    assert [(r.label, r.num_problems, r.accuracy) for r in evaluation.by(Group.ANSWER)] == [
        ("fraction", 1, 0.0),
        ("integer", 2, 0.5),
    ]


def test_mean_interval_of_like_estimates_is_wilsons() -> None:
    assert mean_interval([1.0] * 9, np.random.default_rng(0)) == wilson_interval(9, 9)
    low, high = mean_interval([0.0, 0.5, 1.0] * 30, np.random.default_rng(0))
    assert (low, high) == (pytest.approx(0.5 - 0.084, abs=0.01), pytest.approx(0.5 + 0.084, abs=0.01))


@pytest.mark.parametrize("values", [[], [1.5], [[0.5]]])
def test_estimates_out_of_range_have_no_interval(values: list[float]) -> None:
    with pytest.raises(BadInput, match="expected one estimate per problem, each within"):
        mean_interval(values, np.random.default_rng(0))
