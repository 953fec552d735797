"""Estimators and intervals over problems and samples, as pure functions of counts.

N problems, K samples a problem; `num_correct[i]` of `num_samples[i]` samples of problem i are right. Samples of one
problem are not independent, so whatever has more than one sample a problem resamples problems, never samples.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mathppo.errors import BadInput

NUM_RESAMPLES = 10_000
"""Bootstrap resamples: the Monte Carlo error of a bound is then about 2 % of the interval's width."""


class Interval(NamedTuple):
    """Bounds of a confidence interval, `low <= high`."""

    low: float
    high: float


def wilson_interval(num_correct: int, num_samples: int, *, confidence: float = 0.95) -> Interval:
    """Wilson's score interval for a share of independent trials.

    With p = c / n and z the two-sided normal quantile, the bounds solve |p - q| = z sqrt(q (1 - q) / n) for q:
    (p + z^2/2n ± z sqrt(p (1 - p) / n + z^2/4n^2)) / (1 + z^2/n).

    Args:
        num_correct: c, 0 <= c <= n.
        num_samples: n; 0 gives the whole of [0, 1].
        confidence: coverage aimed at, in (0, 1).

    Returns:
        Bounds within [0, 1]; exactly 0 at c = 0 and exactly 1 at c = n.

    Raises:
        BadInput: counts or a confidence out of range.

    Source:
        E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927), p. 210;
        form and recommendation: Brown, Cai and DasGupta, Statistical Science 16 (2001), eq. 4,
        https://doi.org/10.1214/ss/1009213286

    >>> low, high = wilson_interval(8, 10)
    >>> round(low, 4), round(high, 4)
    (0.4902, 0.9433)
    """
    check_counts([num_correct], [num_samples])
    _check_confidence(confidence)
    return _wilson(num_correct / num_samples, num_samples, confidence) if num_samples else Interval(0.0, 1.0)


def bootstrap_interval(
    num_correct: ArrayLike,
    num_samples: ArrayLike,
    generator: np.random.Generator,
    *,
    confidence: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
) -> Interval:
    """Bootstrap over problems (BCa) for the share of right samples, sum(num_correct) / sum(num_samples).

    Resampling N problems with replacement only asks how often each distinct pair (num_correct, num_samples) is drawn,
    and those counts are multinomial: one draw a resample over the few distinct pairs, which is the same distribution
    as drawing N indices, thousands of times faster, and independent of the order of the problems.

    The bounds are quantiles of the resampled shares, corrected for bias and skew (BCa): near 0 and 1, where trained
    policies end up, plain percentiles cover less often than they say (note M-eval-2).

    Where every problem has the same share, the bootstrap distribution is a point, and a point is no interval: Wilson's
    is given with problems, not samples, as the trials (note M-eval-1).

    Args:
        num_correct: [N] right samples of each problem.
        num_samples: [N] graded samples of each problem; a problem with none says nothing and is left out.
        generator: source of the resamples; the same state gives the same bounds.
        confidence: coverage aimed at, in (0, 1).
        num_resamples: at least 1.

    Returns:
        Bounds within [0, 1]; the whole of it where no problem has a graded sample.

    Raises:
        BadInput: lengths that differ, counts out of range, no resamples.

    Source:
        B. Efron and R. Tibshirani, "An Introduction to the Bootstrap" (1993), section 14.3, eq. 14.9 to 14.15 (BCa);
        problems as the unit: E. Miller, "Adding error bars to evals" (2024), section 2.2, https://arxiv.org/abs/2411.00640
    """
    correct, samples = check_counts(num_correct, num_samples)
    if num_resamples < 1:
        raise BadInput(f"bootstrap: expected num_resamples >= 1, got {num_resamples}")
    _check_confidence(confidence)
    correct, samples = correct[samples > 0], samples[samples > 0]
    if not len(samples):
        return Interval(0.0, 1.0)
    pairs, counts = np.unique(np.stack([correct, samples], axis=1), axis=0, return_counts=True)
    if np.all(pairs[:, 0] * pairs[0, 1] == pairs[0, 0] * pairs[:, 1]):
        return _wilson(float(pairs[0, 0] / pairs[0, 1]), len(samples), confidence)
    draws = generator.multinomial(len(samples), counts / len(samples), size=num_resamples)
    shares = (draws @ pairs[:, 0]) / (draws @ pairs[:, 1])
    share = correct.sum() / samples.sum()
    # How far a problem pulls the share: proportional to the jackknife's difference, for a ratio of sums.
    pulls = pairs[:, 0] - share * pairs[:, 1]
    acceleration = float((counts @ pulls**3) / (6 * (counts @ pulls**2) ** 1.5))
    levels = _bca_levels(shares, share, acceleration, confidence)
    low, high = np.quantile(shares, levels)
    return Interval(float(low), float(high))


def accuracy_interval(
    num_correct: ArrayLike, num_samples: ArrayLike, generator: np.random.Generator, *, confidence: float = 0.95
) -> Interval:
    """The interval to show beside an accuracy: Wilson's for one sample a problem, else the bootstrap over problems.

    Args:
        num_correct: [N] right samples of each problem.
        num_samples: [N] graded samples of each problem.
        generator: source of the resamples, unused where each problem has one sample.
        confidence: coverage aimed at, in (0, 1).

    Returns:
        Bounds within [0, 1].

    Raises:
        BadInput: as the two intervals do.
    """
    correct, samples = check_counts(num_correct, num_samples)
    if not len(samples) or samples.max() <= 1:
        return wilson_interval(int(correct.sum()), int(samples.sum()), confidence=confidence)
    return bootstrap_interval(correct, samples, generator, confidence=confidence)


def mean_interval(
    values: ArrayLike, generator: np.random.Generator, *, confidence: float = 0.95, num_resamples: int = NUM_RESAMPLES
) -> Interval:
    """Percentile bootstrap over problems for the mean of one estimate a problem, such as its pass@k.

    Args:
        values: [N >= 1] estimates within [0, 1].
        generator: source of the resamples; the same state gives the same bounds.
        confidence: coverage aimed at, in (0, 1).
        num_resamples: at least 1.

    Returns:
        Bounds within [0, 1]; Wilson's over problems where all estimates are alike (note M-eval-1).

    Raises:
        BadInput: no value, a value outside [0, 1], or a confidence out of range.

    Source:
        B. Efron and R. Tibshirani, "An Introduction to the Bootstrap" (1993), section 13.3.
    """
    estimates = np.round(np.asarray(values, dtype=np.float64), 12)
    _check_confidence(confidence)
    if estimates.ndim != 1 or not len(estimates) or not np.all((estimates >= 0) & (estimates <= 1)):
        raise BadInput("interval: expected at least one estimate a problem, each within [0, 1]")
    distinct, counts = np.unique(estimates, return_counts=True)
    if len(distinct) == 1:
        return _wilson(float(distinct[0]), len(estimates), confidence)
    draws = generator.multinomial(len(estimates), counts / len(estimates), size=num_resamples)
    low, high = np.quantile(draws @ distinct / len(estimates), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


def pass_at_k(num_correct: ArrayLike, num_samples: ArrayLike, k: int) -> NDArray[np.float64]:
    """Unbiased estimate, problem by problem, of the chance that at least one of k samples is right.

    1 - C(n - c, k) / C(n, k), as the product over i in n-c+1..n of (1 - k / i), which cannot overflow.

    Args:
        num_correct: [N] c of each problem.
        num_samples: [N] n of each problem, each at least k.
        k: at least 1.

    Returns:
        [N] estimates within [0, 1]; their mean is the set's pass@k, and k = 1 gives c / n.

    Raises:
        BadInput: counts out of range, or fewer than k samples of a problem.

    Source:
        M. Chen et al., "Evaluating large language models trained on code" (2021), eq. 1 and figure 3,
        https://arxiv.org/abs/2107.03374

    >>> pass_at_k([0, 1, 4], [4, 4, 4], 2).tolist()
    [0.0, 0.5, 1.0]
    """
    correct, samples = check_counts(num_correct, num_samples)
    check_k(samples, k)
    pairs, where = np.unique(np.stack([correct, samples], axis=1), axis=0, return_inverse=True)
    estimates = [
        1.0 if n - c < k else 1.0 - float(np.prod(1.0 - k / np.arange(n - c + 1, n + 1))) for c, n in pairs.tolist()
    ]
    return np.asarray(estimates, dtype=np.float64)[where.reshape(-1)]


def avg_at_n(num_correct: ArrayLike, num_samples: ArrayLike) -> float:
    """Mean over problems of each problem's share of right samples: every problem weighs the same.

    Args:
        num_correct: [N] right samples of each problem.
        num_samples: [N] samples of each problem, each at least 1.

    Returns:
        The average, in [0, 1].

    Raises:
        BadInput: no problem, a problem without samples, counts out of range.

    >>> avg_at_n([1, 4], [2, 4])
    0.75
    """
    correct, samples = check_counts(num_correct, num_samples)
    if not len(samples) or samples.min() < 1:
        raise BadInput("avg@n: expected at least one problem and one sample of every problem; sample more")
    return float(np.mean(correct / samples))


def check_counts(num_correct: ArrayLike, num_samples: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give both as whole numbers, [N] each.

    Raises:
        BadInput: lengths that differ, or counts that are not 0 <= right <= all.
    """
    correct, samples = np.asarray(num_correct), np.asarray(num_samples)
    if correct.shape != samples.shape or correct.ndim != 1:
        raise BadInput(f"counts: expected two lists of one length, got shapes {correct.shape} and {samples.shape}")
    whole = [x.astype(np.int64) for x in (correct, samples)]
    if any(np.any(x != y) for x, y in zip((correct, samples), whole, strict=True)):
        raise BadInput("counts: expected whole numbers of right and of all samples")
    bad = np.flatnonzero((whole[0] < 0) | (whole[0] > whole[1]))
    if len(bad):
        i = int(bad[0])
        raise BadInput(f"counts: expected 0 <= right <= all samples, got {correct[i]} of {samples[i]} at problem {i}")
    return whole[0], whole[1]


def _bca_levels(shares: NDArray[np.float64], share: float, acceleration: float, confidence: float) -> list[float]:
    """Give the two quantiles of the resampled shares that BCa takes for bounds."""
    normal = NormalDist()
    below = float(np.mean(shares < share) + np.mean(shares <= share)) / 2
    bias = normal.inv_cdf(min(max(below, 1 / len(shares)), 1 - 1 / len(shares)))

    def level(tail: float) -> float:
        reach = bias + normal.inv_cdf(tail)
        scale = 1 - acceleration * reach
        return normal.cdf(bias + reach / scale) if scale > 0 else float(reach > 0)

    return [level((1 - confidence) / 2), level((1 + confidence) / 2)]


def check_k(samples: NDArray[np.int64], k: int) -> None:
    """Refuse a k that some problem has too few samples for.

    Raises:
        BadInput: k below 1 or above the fewest samples of a problem.
    """
    fewest = int(samples.min()) if len(samples) else k
    if not 1 <= k <= fewest:
        raise BadInput(f"pass@k: expected 1 <= k <= samples of every problem ({fewest}), got k = {k}; sample more")


def _check_confidence(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise BadInput(f"interval: expected a confidence in (0, 1), got {confidence}")
    return confidence


def _wilson(share: float, num_trials: int, confidence: float) -> Interval:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    scale = 1 + z * z / num_trials
    centre = (share + z * z / (2 * num_trials)) / scale
    half = z * math.sqrt(share * (1 - share) / num_trials + (z / (2 * num_trials)) ** 2) / scale
    # At the ends the two terms cancel to a rounding error, which would leave the share itself outside.
    low = 0.0 if share == 0 else max(0.0, centre - half)
    high = 1.0 if share == 1 else min(1.0, centre + half)
    return Interval(low, high)
