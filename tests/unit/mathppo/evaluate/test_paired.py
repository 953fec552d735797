"""Paired tests and intervals, compared with scipy, enumeration and simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles_statistics import sign_flip_by_enumeration

from mathppo.errors import BadInput
from mathppo.evaluate.paired import (
    difference_interval,
    holm,
    mcnemar_p,
    sign_flip_p,
    smallest_detectable_difference,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(st.integers(0, 400), st.integers(0, 400))
@settings(deadline=None)
def test_mcnemar_equals_a_binomial_test(a: int, b: int) -> None:
    from scipy.stats import binom, binomtest

    expected = binomtest(a, a + b, 0.5).pvalue if a + b else 1.0
    assert mcnemar_p(a, b, mid=False) == pytest.approx(expected, rel=1e-9)
    assert mcnemar_p(a, b) == mcnemar_p(b, a)
    # The mid-p subtracts the probability of the observed split, unless the split is even and both are 1.
    observed = binom.pmf(a, a + b, 0.5) if a != b else 0
    assert mcnemar_p(a, b) == pytest.approx(expected - observed, rel=1e-9)


def test_mcnemar_matches_published_values() -> None:
    # Fagerland et al. 2013, airway hyper-responsiveness data: 1 and 7 discordant pairs.
    assert mcnemar_p(1, 7, mid=False) == pytest.approx(0.0703, abs=5e-5)
    assert mcnemar_p(1, 7) == pytest.approx(0.0391, abs=5e-5)


@given(st.lists(st.sampled_from([-1, -0.5, -0.25, 0, 0.25, 1 / 3, 0.5, 1]), min_size=1, max_size=9))
@settings(deadline=None, max_examples=40)
def test_sign_flip_p_agrees_with_enumeration(differences: list[float]) -> None:
    assert sign_flip_p(differences, rng(), num_flips=20_000) == pytest.approx(
        sign_flip_by_enumeration(differences), abs=0.02
    )


@pytest.mark.parametrize("num_samples", [1, 4])
def test_rejection_rate_and_coverage_are_nominal_for_equal_models(num_samples: int) -> None:
    source, repeats, count = rng(5), 2000, 400
    rejected = covered = 0
    for _ in range(repeats):
        skill = source.beta(0.8, 0.8, size=count)
        a, b = (source.binomial(num_samples, skill) for _ in range(2))
        differences = (a - b) / num_samples
        if num_samples == 1:
            p = mcnemar_p(int((a > b).sum()), int((b > a).sum()))
        else:
            p = sign_flip_p(differences, source, num_flips=400)
        rejected += p < 0.05
        low, high = difference_interval(differences, source, num_resamples=400)
        covered += low <= 0 <= high
    assert 0.04 <= rejected / repeats <= 0.06
    assert 0.93 <= covered / repeats <= 0.97


def test_detectable_difference_is_detected_with_the_stated_power() -> None:
    source, found, repeats = rng(6), 0, 600
    for _ in range(repeats):
        differences = source.choice([-1, 0, 1], p=[0.1, 0.72, 0.18], size=500)
        low, _ = difference_interval(differences, source, num_resamples=400)
        found += low > 0
    differences = source.choice([-1, 0, 1], p=[0.1, 0.72, 0.18], size=20_000)
    at_500 = smallest_detectable_difference(differences) * (20_000 / 500) ** 0.5
    assert at_500 == pytest.approx(0.066, abs=0.003)
    assert found / repeats > 0.8, "the true difference of 0.08 is larger"


def test_holm_matches_hand_computed_values() -> None:
    from scipy.stats import false_discovery_control

    assert holm([]) == []
    assert holm([0.02]) == [0.02]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.005, 0.011, 0.02, 0.04, 0.13]) == pytest.approx([0.025, 0.044, 0.06, 0.08, 0.13])
    p = [0.001, 0.3, 0.04]
    assert all(h >= f for h, f in zip(holm(p), false_discovery_control(p), strict=True)), "stricter than Benjamini"


def test_difference_interval_is_deterministic_and_contains_the_mean() -> None:
    differences = rng(1).choice([-0.5, 0, 0.25, 1], size=200)
    low, high = difference_interval(differences, rng(2))
    assert low < differences.mean() < high
    assert difference_interval(differences[::-1], rng(2)) == (low, high)
    assert difference_interval([0.5] * 9, rng()) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mcnemar_p(-1, 2), "at least 0, got -1 and 2"),
        (lambda: sign_flip_p([], rng()), r"one difference per problem, got shape \(0,\)"),
        (lambda: sign_flip_p([1.5], rng()), r"differences of accuracies, in \[-1, 1\]"),
        (lambda: difference_interval([float("nan")], rng()), "differences of accuracies"),
        (lambda: difference_interval([0.1], rng(), confidence=1.5), "confidence"),
        (lambda: holm([0.5, 1.2]), r"p values in \[0, 1\]"),
        (lambda: smallest_detectable_difference([0.5]), "at least 2 problems"),
    ],
)
def test_bad_input_is_rejected(call, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        call()
