"""Paired comparison of two policies on the same problems: differences, intervals and significance tests.

Pairing by problem removes the variance of problem difficulty, so it detects far smaller differences than a comparison
of two intervals. `differences[i]` is the accuracy on problem i under A minus that under B, in [-1, 1].
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mathppo.errors import BadInput
from mathppo.evaluate.statistics import NUM_RESAMPLES, Interval


def mcnemar_p(num_only_a: int, num_only_b: int, *, mid: bool = True) -> float:
    """Return the p value of McNemar's test on the problems that only one policy solved.

    Under the null hypothesis, each such problem was solved by A with probability 1/2. The exact p is twice
    P(Binomial(a + b, 1/2) <= min(a, b)), at most 1; the mid-p gives the observed split half weight (note M-eval-7).

    Args:
        num_only_a: a, problems that only A solved.
        num_only_b: b, problems that only B solved.
        mid: return the mid-p, whose rejection rate is close to the level; False for the exact p, which rejects less.

    Returns:
        Two-sided p, in [0, 1]; 1 if both counts are 0.

    Raises:
        BadInput: a negative count.

    Source:
        Q. McNemar, Psychometrika 12 (1947), p. 153; mid-p: M. Fagerland, S. Lydersen and P. Laake, BMC Medical Research
        Methodology 13:91 (2013), https://doi.org/10.1186/1471-2288-13-91

    >>> mcnemar_p(8, 2), mcnemar_p(8, 2, mid=False)
    (0.0654296875, 0.109375)
    """
    if num_only_a < 0 or num_only_b < 0:
        raise BadInput(f"McNemar: expected counts of at least 0, got {num_only_a} and {num_only_b}")
    total, fewer = num_only_a + num_only_b, min(num_only_a, num_only_b)
    if total == 0:
        return 1.0
    tail = sum(math.comb(total, i) for i in range(fewer + 1))
    # Doubling the tail counts the middle of an even split twice; the cap at 1 corrects that for the exact test.
    doubled = 2 * tail - (math.comb(total, fewer) if mid else 0)
    return min(1.0, doubled / 2**total)


def sign_flip_p(differences: ArrayLike, generator: np.random.Generator, *, num_flips: int = NUM_RESAMPLES) -> float:
    """Return the p value of a paired permutation test of a mean difference of 0, which swaps the policies per problem.

    Sums take values on a grid, so many swaps tie with the observed sum; ties have half weight (mid-p, note M-eval-7).
    The m problems with the same absolute difference are flipped together: their signs sum to 2 Binomial(m, 1/2) - m.

    Args:
        differences: [N] per problem.
        generator: random generator of the flips.
        num_flips: number of random swaps; the observed one is added as a tie, so p is never 0.

    Returns:
        Two-sided p, in (0, 1].

    Raises:
        BadInput: no problem, or a difference outside [-1, 1].

    Source:
        R. A. Fisher, "The Design of Experiments" (1935), section 21; adding the observed swap: B. Phipson and G. Smyth,
        Statistical Applications in Genetics and Molecular Biology 9 (2010), https://doi.org/10.2202/1544-6115.1585;
        mid-p: H. O. Lancaster, "Significance tests in discrete distributions", JASA 56 (1961), p. 223.
    """
    values = _check_differences(differences)
    sizes, counts = np.unique(np.abs(values), return_counts=True)
    sums = (2 * generator.binomial(counts, 0.5, size=(num_flips, len(counts))) - counts) @ sizes
    observed, near = abs(float(values.sum())), 1e-9 * max(1.0, float(sizes.sum()))
    if observed <= near:
        return 1.0  # as for an even split in McNemar's test
    # Sums that are equal in exact arithmetic may differ by rounding errors.
    excess = np.abs(sums) - observed
    return float((np.sum(excess > near) + (1 + np.sum(np.abs(excess) <= near)) / 2) / (1 + num_flips))


def difference_interval(
    differences: ArrayLike,
    generator: np.random.Generator,
    *,
    confidence: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
) -> Interval:
    """Return a paired percentile bootstrap interval over problems for the mean difference.

    Args:
        differences: [N] per problem.
        generator: random generator of the resamples.
        confidence: nominal coverage, in (0, 1).
        num_resamples: at least 1.

    Returns:
        Bounds within [-1, 1]; both equal if all differences are equal.

    Raises:
        BadInput: no problem, a difference outside [-1, 1], or confidence out of range.

    Source:
        B. Efron and R. Tibshirani, "An Introduction to the Bootstrap" (1993), section 13.3.
    """
    values = _check_differences(differences)
    if not 0 < confidence < 1:
        raise BadInput(f"interval: expected a confidence in (0, 1), got {confidence}")
    distinct, counts = np.unique(values, return_counts=True)
    draws = generator.multinomial(len(values), counts / len(values), size=num_resamples)
    low, high = np.quantile(draws @ distinct / len(values), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p values of several comparisons to control the family-wise error rate.

    In ascending order, the i-th of m (from 0) becomes the running maximum of (m - i) p, at most 1.

    Args:
        p_values: of m comparisons.

    Returns:
        Adjusted p values, in the order given.

    Raises:
        BadInput: a value outside [0, 1].

    Source:
        S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statistics 6 (1979), p. 65.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise BadInput(f"Holm: expected p values in [0, 1], got {list(p_values)}")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def smallest_detectable_difference(differences: ArrayLike, *, power: float = 0.8, significance: float = 0.05) -> float:
    """Return the true mean difference that a set of this size and variance detects with the given power.

    (z_{1 - significance / 2} + z_power) sd / sqrt(N), where sd is the standard deviation of `differences`.

    Args:
        differences: [N >= 2] per problem.
        power: probability of detection, in (0, 1).
        significance: two-sided level, in (0, 1).

    Returns:
        The difference in accuracy, at least 0.

    Raises:
        BadInput: fewer than two problems, or a difference outside [-1, 1].

    Source:
        E. Miller, "Adding error bars to evals" (2024), section 5, https://arxiv.org/abs/2411.00640
    """
    values = _check_differences(differences)
    if len(values) < 2:
        raise BadInput("smallest detectable difference: expected at least 2 problems, got 1")
    z = NormalDist().inv_cdf(1 - significance / 2) + NormalDist().inv_cdf(power)
    return float(z * values.std(ddof=1) / math.sqrt(len(values)))


def _check_differences(differences: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise BadInput(f"paired comparison: expected one difference per problem, got shape {values.shape}")
    if not np.all(np.abs(values) <= 1):
        raise BadInput("paired comparison: expected differences of accuracies, in [-1, 1]")
    # -0.0 and 0.0, and two roundings of 1/3, must become equal.
    return np.round(values, 12) + 0.0
