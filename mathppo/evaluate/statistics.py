"""Accuracy estimators and confidence intervals, as pure functions of counts per problem.

N problems with K samples per problem; `num_correct[i]` of the `num_samples[i]` samples of problem i are correct. The
samples of one problem are not independent, so with several samples per problem the bootstrap resamples problems.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mathppo.errors import BadInput

NUM_RESAMPLES = 10_000
"""Bootstrap resamples; the Monte Carlo error of a bound is about 2 % of the width of the interval."""


class Interval(NamedTuple):
    """Bounds of a confidence interval, `low <= high`."""

    low: float
    high: float


def wilson_interval(num_correct: int, num_samples: int, *, confidence: float = 0.95) -> Interval:
    """Return Wilson's score interval for a proportion of independent trials.

    With p = c / n and z the two-sided normal quantile, the bounds solve |p - q| = z sqrt(q (1 - q) / n) for q:
    (p + z^2/2n ± z sqrt(p (1 - p) / n + z^2/4n^2)) / (1 + z^2/n).

    Args:
        num_correct: c, 0 <= c <= n.
        num_samples: n; 0 returns [0, 1].
        confidence: nominal coverage, in (0, 1).

    Returns:
        Bounds within [0, 1]; the lower is exactly 0 if c = 0, the upper exactly 1 if c = n.

    Raises:
        BadInput: counts or confidence out of range.

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
    """Return a BCa bootstrap interval over problems for the accuracy, sum(num_correct) / sum(num_samples).

    A resample of N problems is determined by how often each distinct pair (num_correct, num_samples) is drawn, and
    those counts are multinomial. One multinomial draw per resample has the same distribution as N drawn indices, is
    thousands of times faster, and does not depend on the order of the problems.

    The bounds are quantiles of the resampled accuracies, corrected for bias and skew (BCa): near 0 and 1, plain
    percentile intervals cover less often than their nominal confidence (note M-eval-2).

    If every problem has the same accuracy, the bootstrap distribution is a single point, and the result is Wilson's
    interval with problems, not samples, as trials (note M-eval-1).

    Args:
        num_correct: [N] correct samples per problem.
        num_samples: [N] graded samples per problem; problems without any are ignored.
        generator: random generator; the same state yields the same bounds.
        confidence: nominal coverage, in (0, 1).
        num_resamples: at least 1.

    Returns:
        Bounds within [0, 1]; exactly [0, 1] if no problem has a graded sample.

    Raises:
        BadInput: lengths differ, counts or confidence are out of range, or num_resamples is below 1.

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
    resampled = (draws @ pairs[:, 0]) / (draws @ pairs[:, 1])
    accuracy = correct.sum() / samples.sum()
    # The influence of a problem on a ratio of sums, proportional to its jackknife difference.
    influence = pairs[:, 0] - accuracy * pairs[:, 1]
    acceleration = float((counts @ influence**3) / (6 * (counts @ influence**2) ** 1.5))
    levels = _bca_levels(resampled, accuracy, acceleration, confidence)
    low, high = np.quantile(resampled, levels)
    return Interval(float(low), float(high))


def accuracy_interval(
    num_correct: ArrayLike, num_samples: ArrayLike, generator: np.random.Generator, *, confidence: float = 0.95
) -> Interval:
    """Return the interval to report with an accuracy: Wilson's for one sample per problem, else the bootstrap.

    Args:
        num_correct: [N] correct samples per problem.
        num_samples: [N] graded samples per problem.
        generator: random generator, unused if each problem has one sample.
        confidence: nominal coverage, in (0, 1).

    Returns:
        Bounds within [0, 1].

    Raises:
        BadInput: as for `wilson_interval` and `bootstrap_interval`.
    """
    correct, samples = check_counts(num_correct, num_samples)
    if not len(samples) or samples.max() <= 1:
        return wilson_interval(int(correct.sum()), int(samples.sum()), confidence=confidence)
    return bootstrap_interval(correct, samples, generator, confidence=confidence)


def mean_interval(
    values: ArrayLike, generator: np.random.Generator, *, confidence: float = 0.95, num_resamples: int = NUM_RESAMPLES
) -> Interval:
    """Return a percentile bootstrap interval over problems for the mean of one estimate per problem, such as pass@k.

    Args:
        values: [N >= 1] estimates within [0, 1].
        generator: random generator; the same state yields the same bounds.
        confidence: nominal coverage, in (0, 1).
        num_resamples: at least 1.

    Returns:
        Bounds within [0, 1]; Wilson's over problems if all estimates are equal (note M-eval-1).

    Raises:
        BadInput: no value, a value outside [0, 1], or confidence out of range.

    Source:
        B. Efron and R. Tibshirani, "An Introduction to the Bootstrap" (1993), section 13.3.
    """
    estimates = np.round(np.asarray(values, dtype=np.float64), 12)
    _check_confidence(confidence)
    if estimates.ndim != 1 or not len(estimates) or not np.all((estimates >= 0) & (estimates <= 1)):
        raise BadInput("interval: expected one estimate per problem, each within [0, 1]")
    distinct, counts = np.unique(estimates, return_counts=True)
    if len(distinct) == 1:
        return _wilson(float(distinct[0]), len(estimates), confidence)
    draws = generator.multinomial(len(estimates), counts / len(estimates), size=num_resamples)
    low, high = np.quantile(draws @ distinct / len(estimates), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


def pass_at_k(num_correct: ArrayLike, num_samples: ArrayLike, k: int) -> NDArray[np.float64]:
    """Return, per problem, the unbiased estimate of the probability that at least one of k samples is correct.

    1 - C(n - c, k) / C(n, k), computed as 1 - prod_{i = n-c+1..n} (1 - k / i), which cannot overflow.

    Args:
        num_correct: [N] c per problem.
        num_samples: [N] n per problem, each at least k.
        k: at least 1.

    Returns:
        [N] estimates within [0, 1]; their mean is the pass@k of the set, and k = 1 returns c / n.

    Raises:
        BadInput: counts out of range, or a problem with fewer than k samples.

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
    """Return the mean over problems of the accuracy per problem; every problem has the same weight.

    Args:
        num_correct: [N] correct samples per problem.
        num_samples: [N] samples per problem, each at least 1.

    Returns:
        The mean, in [0, 1].

    Raises:
        BadInput: no problem, a problem without samples, or counts out of range.

    >>> avg_at_n([1, 4], [2, 4])
    0.75
    """
    correct, samples = check_counts(num_correct, num_samples)
    if not len(samples) or samples.min() < 1:
        raise BadInput("avg@n: expected at least one problem, and one sample of every problem; generate more samples")
    return float(np.mean(correct / samples))


def check_counts(num_correct: ArrayLike, num_samples: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return both as integer arrays, [N] each.

    Raises:
        BadInput: lengths differ, or the counts do not satisfy 0 <= num_correct <= num_samples.
    """
    correct, samples = np.asarray(num_correct), np.asarray(num_samples)
    if correct.shape != samples.shape or correct.ndim != 1:
        raise BadInput(f"counts: expected two lists of the same length, got shapes {correct.shape} and {samples.shape}")
    whole = [x.astype(np.int64) for x in (correct, samples)]
    if any(np.any(x != y) for x, y in zip((correct, samples), whole, strict=True)):
        raise BadInput("counts: expected integer numbers of correct and of all samples")
    bad = np.flatnonzero((whole[0] < 0) | (whole[0] > whole[1]))
    if len(bad):
        i = int(bad[0])
        raise BadInput(
            f"counts: expected 0 <= num_correct <= num_samples, got {correct[i]} of {samples[i]} at problem {i}"
        )
    return whole[0], whole[1]


def _bca_levels(resampled: NDArray[np.float64], accuracy: float, acceleration: float, confidence: float) -> list[float]:
    """Return the two quantile levels of the resampled accuracies that BCa uses as bounds."""
    normal = NormalDist()
    below = float(np.mean(resampled < accuracy) + np.mean(resampled <= accuracy)) / 2
    bias = normal.inv_cdf(min(max(below, 1 / len(resampled)), 1 - 1 / len(resampled)))

    def level(tail: float) -> float:
        shifted = bias + normal.inv_cdf(tail)
        scale = 1 - acceleration * shifted
        return normal.cdf(bias + shifted / scale) if scale > 0 else float(shifted > 0)

    return [level((1 - confidence) / 2), level((1 + confidence) / 2)]


def check_k(samples: NDArray[np.int64], k: int) -> None:
    """Check that every problem has at least k samples.

    Raises:
        BadInput: k is below 1 or above the smallest number of samples of a problem.
    """
    fewest = int(samples.min()) if len(samples) else k
    if not 1 <= k <= fewest:
        raise BadInput(
            f"pass@k: expected 1 <= k <= samples of every problem ({fewest}), got k = {k}; generate more samples"
        )


def _check_confidence(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise BadInput(f"interval: expected a confidence in (0, 1), got {confidence}")
    return confidence


def _wilson(share: float, num_trials: int, confidence: float) -> Interval:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    scale = 1 + z * z / num_trials
    centre = (share + z * z / (2 * num_trials)) / scale
    half = z * math.sqrt(share * (1 - share) / num_trials + (z / (2 * num_trials)) ** 2) / scale
    # At 0 and 1 the two terms cancel up to a rounding error, which could exclude the share itself.
    low = 0.0 if share == 0 else max(0.0, centre - half)
    high = 1.0 if share == 1 else min(1.0, centre + half)
    return Interval(low, high)
