"""Estimators and intervals, compared with published numbers, independent libraries and simulation."""

import numpy as np
import pytest
from oracles_statistics import bootstrap_shares

from mathppo.errors import BadInput
from mathppo.evaluate.statistics import (
    accuracy_interval,
    avg_at_n,
    bootstrap_interval,
    pass_at_k,
    wilson_interval,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(("correct", "samples"), [(0, 1), (1, 1), (0, 10), (10, 10), (81, 263), (1240, 1319), (3, 7)])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_wilson_agrees_with_scipy(correct: int, samples: int, confidence: float) -> None:
    from scipy.stats import binomtest

    expected = binomtest(correct, samples).proportion_ci(confidence, method="wilson")
    assert wilson_interval(correct, samples, confidence=confidence) == pytest.approx(
        (expected.low, expected.high), abs=1e-12
    )


def test_wilson_matches_published_values() -> None:
    # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3: 81/263, 15/148, 0/20, 1/29.
    for counts, bounds in {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }.items():
        assert wilson_interval(*counts) == pytest.approx(bounds, abs=5e-5)


def test_interval_without_samples_is_the_unit_interval() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert bootstrap_interval([], [], rng()) == (0.0, 1.0)
    assert bootstrap_interval([0, 0], [0, 0], rng()) == (0.0, 1.0)
    assert accuracy_interval([], [], rng()) == (0.0, 1.0)


@pytest.mark.parametrize(("num_problems", "hard"), [(60, 1.0), (150, 0.1)])
def test_bootstrap_agrees_with_scipy(num_problems: int, hard: float) -> None:
    from scipy.stats import bootstrap

    source = rng(3)
    samples = source.integers(1, 5, size=num_problems)
    correct = source.binomial(samples, source.beta(1, hard, size=num_problems))

    def share(c, n, axis=-1):
        return c.sum(axis=axis) / n.sum(axis=axis)

    expected = bootstrap(
        (correct, samples), share, paired=True, vectorized=True, n_resamples=20_000, method="BCa", rng=rng(4)
    ).confidence_interval
    assert bootstrap_interval(correct, samples, rng()) == pytest.approx((expected.low, expected.high), abs=0.004)


def test_bootstrap_agrees_with_drawing_indices() -> None:
    # For symmetric counts, bias and skew are 0 and the bounds are the plain percentiles.
    correct, samples = [0, 1, 2, 3, 4] * 12, [4] * 60
    shares = bootstrap_shares(correct, samples, 4000, seed=1)
    expected = np.quantile(shares, [0.025, 0.975])
    assert bootstrap_interval(correct, samples, rng()) == pytest.approx(expected.tolist(), abs=0.006)


def test_bootstrap_resamples_problems_not_samples() -> None:
    # 40 problems that are always or never solved: 64 samples of each carry no more information than one.
    correct = np.repeat([0, 1], 20)
    once = bootstrap_interval(correct, np.ones(40), rng())
    often = bootstrap_interval(correct * 64, np.full(40, 64), rng())
    assert often == once
    assert once.high - once.low > 0.28


def test_bootstrap_depends_on_the_seed_and_not_on_order() -> None:
    correct, samples = rng(5).integers(0, 5, size=100), np.full(100, 4)
    bounds = bootstrap_interval(correct, samples, rng(7))
    assert bootstrap_interval(rng(1).permutation(correct), samples, rng(7)) == bounds
    few = [bootstrap_interval(correct, samples, rng(seed), num_resamples=20) for seed in (8, 8, 9)]
    assert few[0] == few[1] != few[2]


@pytest.mark.parametrize("share", [0, 2, 4])
def test_bootstrap_of_equal_problems_has_positive_width(share: int) -> None:
    low, high = bootstrap_interval([share] * 20, [4] * 20, rng())
    assert low <= share / 4 <= high
    assert high - low > 0.1
    if share == 4:
        assert (low, high) == pytest.approx(wilson_interval(20, 20))


def test_accuracy_interval_uses_wilson_or_bootstrap() -> None:
    assert accuracy_interval([1, 0, 1, 0], [1, 1, 1, 0], rng()) == wilson_interval(2, 3)
    assert accuracy_interval([2, 0, 1], [2, 2, 2], rng()) == bootstrap_interval([2, 0, 1], [2, 2, 2], rng())


@pytest.mark.parametrize(("num_problems", "num_samples", "mean"), [(100, 4, 0.7), (100, 4, 0.95), (500, 1, 0.7)])
def test_intervals_have_nominal_coverage(num_problems: int, num_samples: int, mean: float) -> None:
    source, covered, repeats = rng(11), 0, 1500
    for _ in range(repeats):
        correct = source.binomial(num_samples, source.beta(4 * mean, 4 * (1 - mean), size=num_problems))
        counts = np.full(num_problems, num_samples)
        interval = (
            wilson_interval(int(correct.sum()), num_problems)
            if num_samples == 1
            else bootstrap_interval(correct, counts, source, num_resamples=600)
        )
        covered += interval.low <= mean <= interval.high
    assert 0.93 <= covered / repeats <= 0.97


def test_pass_at_k_matches_the_paper() -> None:
    # Chen et al. 2021, figure 3, evaluated by hand: 1 - C(7, 5) / C(10, 5) = 1 - 21 / 252.
    assert pass_at_k([3], [10], 5) == pytest.approx([1 - 21 / 252], abs=1e-15)
    assert pass_at_k([2, 3], [8, 8], 1) == pytest.approx([0.25, 0.375])
    assert pass_at_k([0, 1, 200], [200, 200, 200], 100) == pytest.approx([0, 0.5, 1])


def test_pass_at_k_is_unbiased() -> None:
    chance, n, k = 0.3, 10, 4
    correct = rng(2).binomial(n, chance, size=200_000)
    assert pass_at_k(correct, np.full(200_000, n), k).mean() == pytest.approx(1 - (1 - chance) ** k, abs=0.002)


def test_avg_at_n_weighs_problems_equally() -> None:
    assert avg_at_n([1, 8, 0], [1, 8, 2]) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wilson_interval(3, 2), "expected 0 <= num_correct <= num_samples, got 3 of 2 at problem 0"),
        (lambda: wilson_interval(-1, 2), "got -1 of 2"),
        (lambda: wilson_interval(1, 2, confidence=1.0), r"confidence in \(0, 1\), got 1.0"),
        (lambda: bootstrap_interval([1, 2], [2], rng()), r"two lists of the same length, got shapes \(2,\) and \(1,\)"),
        (lambda: bootstrap_interval([1, 3], [2, 2], rng()), "got 3 of 2 at problem 1"),
        (lambda: bootstrap_interval([0.5], [1], rng()), "integer numbers"),
        (lambda: bootstrap_interval([1], [2], rng(), num_resamples=0), "num_resamples >= 1, got 0"),
        (lambda: bootstrap_interval([1], [2], rng(), confidence=0.0), "confidence"),
        (lambda: pass_at_k([1], [2], 3), r"samples of every problem \(2\), got k = 3"),
        (lambda: pass_at_k([1], [2], 0), "got k = 0"),
        (lambda: avg_at_n([], []), "at least one problem"),
        (lambda: avg_at_n([0], [0]), "one sample of every problem"),
    ],
)
def test_invalid_counts_are_rejected(call, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        call()
