"""How steadily a policy solves a problem: estimators from many samples of each.

Touches: nothing.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mathppo.errors import BadInput
from mathppo.evaluate.statistics import check_counts, check_k


def g_pass_at_k(num_correct: ArrayLike, num_samples: ArrayLike, k: int, threshold: float) -> NDArray[np.float64]:
    """Chance, problem by problem, that at least a `threshold` share of k samples is right: stability, not luck.

    The sum over j from ceil(threshold k) to k of C(c, j) C(n - c, k - j) / C(n, k), where at least one must be right.

    Args:
        num_correct: [N] c of each problem.
        num_samples: [N] n of each problem, each at least k.
        k: at least 1.
        threshold: in [0, 1]; 0 gives pass@k, 1 the chance that all k are right.

    Returns:
        [N] estimates within [0, 1].

    Raises:
        BadInput: counts or a threshold out of range, or fewer than k samples of a problem.

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
    # 0.1 * 30 is 3.0000000000000004 in floating point, and must need 3 right samples, not 4.
    needed = max(1, math.ceil(threshold * k - 1e-9))
    return np.array(
        [
            sum(math.comb(c, j) * math.comb(n - c, k - j) for j in range(needed, k + 1)) / math.comb(n, k)
            for c, n in zip(correct.tolist(), samples.tolist(), strict=True)
        ]
    )


def majority(groups: Sequence[Hashable | None], is_correct: Sequence[bool]) -> float:
    """Score one problem by its most frequent answer; answers that tie share the vote.

    Args:
        groups: of each sample, the class of equivalent answers it fell into; None where it gave no answer: no vote.
        is_correct: of each sample.

    Returns:
        The share of the winning classes that are correct; 0 where nobody voted.

    Raises:
        BadInput: lengths that differ, or a class that is both right and wrong.

    Source:
        X. Wang et al., "Self-consistency improves chain of thought reasoning" (2022), https://arxiv.org/abs/2203.11171

    >>> majority(["7", "7", "5", "5", None], [True, True, False, False, False])
    0.5
    """
    if len(groups) != len(is_correct):
        raise BadInput(f"majority: expected as many answers as verdicts ({len(is_correct)}), got {len(groups)}")
    right: dict[Hashable, bool] = {}
    for group, correct in zip(groups, is_correct, strict=True):
        if group is not None and right.setdefault(group, correct) != correct:
            raise BadInput(f"majority: expected one verdict for answers that are equivalent, got two for {group!r}")
    votes = Counter(group for group in groups if group is not None)
    winners = [group for group, count in votes.items() if count == max(votes.values())]
    return sum(right[group] for group in winners) / len(winners) if winners else 0.0
