"""Properties of the estimators for any counts, compared with brute force."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles_statistics import pass_at_k_by_counting, wilson_by_bisection

from mathppo.evaluate.statistics import avg_at_n, bootstrap_interval, pass_at_k, wilson_interval

counts = st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
small_counts = st.integers(1, 9).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts, st.sampled_from([0.5, 0.9, 0.95, 0.999]))
@settings(deadline=None)
def test_wilson_solves_its_equation(pair: tuple[int, int], confidence: float) -> None:
    correct, samples = pair
    low, high = wilson_interval(correct, samples, confidence=confidence)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    assert (low, high) == pytest.approx(wilson_by_bisection(correct, samples, z), abs=1e-9)
    assert 0 <= low <= correct / samples <= high <= 1
    mirrored = wilson_interval(samples - correct, samples, confidence=confidence)
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((low, high), abs=1e-12)


@given(st.lists(small_counts, min_size=1, max_size=5), st.data())
@settings(deadline=None)
def test_pass_at_k_equals_counting_every_subset(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    correct, samples = [c for c, _ in pairs], [n for _, n in pairs]
    k = data.draw(st.integers(1, min(samples)))
    estimates = pass_at_k(correct, samples, k)
    assert estimates == pytest.approx([pass_at_k_by_counting(c, n, k) for c, n in pairs], abs=1e-12)
    assert pass_at_k(correct, samples, 1).mean() == pytest.approx(avg_at_n(correct, samples))


@given(st.lists(small_counts, min_size=1, max_size=12), st.integers(0, 2**32), st.randoms())
@settings(deadline=None)
def test_bootstrap_bounds_are_valid_and_ignore_order(pairs: list[tuple[int, int]], seed: int, shuffler) -> None:
    def interval(rows: list[tuple[int, int]]):
        generator = np.random.default_rng(seed)
        return bootstrap_interval([c for c, _ in rows], [n for _, n in rows], generator, num_resamples=200)

    low, high = interval(pairs)
    assert 0 <= low <= high <= 1
    shuffled = list(pairs)
    shuffler.shuffle(shuffled)
    assert interval(shuffled) == (low, high)
    assert interval([*pairs, (0, 0)]) == (low, high)
    shares = [c / n for c, n in pairs]
    if len(set(shares)) > 1:
        assert min(shares) <= low
        assert high <= max(shares)
