"""Consistency of a policy on a problem: estimators from many samples per problem."""

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mathppo.errors import BadInput
from mathppo.evaluate.statistics import check_counts, check_k

NUM_SUBSETS = 512
"""Random subsets per problem for maj@k; over 100 problems, the standard error is at most 0.2 points."""


def g_pass_at_k(num_correct: ArrayLike, num_samples: ArrayLike, k: int, threshold: float) -> NDArray[np.float64]:
    """Return, per problem, the probability that at least a fraction `threshold` of k samples is correct (G-Pass@k).

    The sum over j from max(1, ceil(threshold k)) to k of C(c, j) C(n - c, k - j) / C(n, k).

    Args:
        num_correct: [N] c per problem.
        num_samples: [N] n per problem, each at least k.
        k: at least 1.
        threshold: in [0, 1]; 0 returns pass@k, 1 the probability that all k are correct.

    Returns:
        [N] estimates within [0, 1].

    Raises:
        BadInput: counts or threshold out of range, or a problem with fewer than k samples.

    Source:
        J. Liu et al., "Are your LLMs capable of stable reasoning?" (2024), the definition of G-Pass@k,
        https://arxiv.org/abs/2412.13147

    >>> g_pass_at_k([2], [4], 2, 1.0).tolist()
    [0.16666666666666666]
    """
    correct, samples = check_counts(num_correct, num_samples)
    check_k(samples, k)
    if not 0 <= threshold <= 1:
        raise BadInput(f"G-Pass@k: expected a threshold in [0, 1], got {threshold}")
    # 0.1 * 30 is 3.0000000000000004 in floating point, and must require 3 correct samples, not 4.
    needed = max(1, math.ceil(threshold * k - 1e-9))
    pairs, where = np.unique(np.stack([correct, samples], axis=1), axis=0, return_inverse=True)
    # Of k samples, at most c are correct and at most n - c incorrect; for k = n, one term remains.
    estimates = [
        sum(math.comb(c, j) * math.comb(n - c, k - j) for j in range(max(needed, k - n + c), min(k, c) + 1))
        / math.comb(n, k)
        for c, n in pairs.tolist()
    ]
    return np.asarray(estimates, dtype=np.float64)[where.reshape(-1)]


def majority(groups: Sequence[Hashable | None], is_correct: Sequence[bool]) -> float:
    """Return the majority-vote score of one problem; tied answers share the vote.

    Args:
        groups: per sample, the class of equivalent answers; None if it has no answer, and therefore no vote.
        is_correct: per sample.

    Returns:
        The fraction of the winning classes that are correct; 0 if there is no vote.

    Raises:
        BadInput: lengths differ, or a class is both correct and incorrect.

    Source:
        X. Wang et al., "Self-consistency improves chain of thought reasoning" (2022), https://arxiv.org/abs/2203.11171

    >>> majority(["7", "7", "5", "5", None], [True, True, False, False, False])
    0.5
    """
    if len(groups) != len(is_correct):
        raise BadInput(f"majority: expected as many answers as verdicts ({len(is_correct)}), got {len(groups)}")
    verdicts: dict[Hashable, bool] = {}
    for group, correct in zip(groups, is_correct, strict=True):
        if group is not None and verdicts.setdefault(group, correct) != correct:
            raise BadInput(f"majority: expected the same verdict for equivalent answers, got two for {group!r}")
    votes = Counter(group for group in groups if group is not None)
    winners = [group for group, count in votes.items() if count == max(votes.values())]
    return sum(verdicts[group] for group in winners) / len(winners) if winners else 0.0


def majority_at_k(
    groups: Sequence[Hashable | None],
    is_correct: Sequence[bool],
    k: int,
    generator: np.random.Generator,
    *,
    num_subsets: int = NUM_SUBSETS,
) -> float:
    """Return the expected `majority` of k of the n samples of one problem, drawn without replacement (maj@k).

    The value is exact if k is 1 or n, if no sample is correct, or if there are at most `num_subsets` subsets; otherwise
    it is the mean over `num_subsets` random subsets.

    Args:
        groups: n classes of equivalent answers, None for no vote.
        is_correct: per sample.
        k: 1 <= k <= n.
        generator: random generator of the subsets.
        num_subsets: number of random subsets; the standard error is at most 0.5 / sqrt(num_subsets) per problem.

    Returns:
        The estimate, in [0, 1].

    Raises:
        BadInput: lengths differ, k is out of range, or a class is both correct and incorrect.
    """
    exact = majority(groups, is_correct)
    if not 1 <= k <= len(groups):
        raise BadInput(
            f"maj@k: expected 1 <= k <= samples of every problem ({len(groups)}), got k = {k}; generate more samples"
        )
    if k == len(groups) or not any(is_correct):
        return exact
    if k == 1:
        return sum(is_correct) / len(is_correct)
    right = {group for group, correct in zip(groups, is_correct, strict=True) if correct}
    names = sorted(right, key=str) + sorted({g for g in groups if g is not None} - right, key=str)
    votes = np.zeros((len(groups), len(names)), dtype=np.int64)
    for row, group in enumerate(groups):
        if group is not None:
            votes[row, names.index(group)] = 1
    if math.comb(len(groups), k) <= num_subsets:
        chosen = np.array(list(itertools.combinations(range(len(groups)), k)))
    else:
        chosen = np.argpartition(generator.random((num_subsets, len(groups))), k - 1, axis=1)[:, :k]
    counts = votes[chosen].sum(axis=1)
    most = counts.max(axis=1, keepdims=True)
    wins = (counts == most) & (most > 0)
    shares = wins[:, : len(right)].sum(axis=1) / np.maximum(1, wins.sum(axis=1))
    return float(shares.mean())
