"""Graded samples, reduced to what the estimators need, and what several of them a problem tell.

Touches: nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from graders.verdict import Status
from mathppo.evaluate.consistency import g_pass_at_k, majority_at_k
from mathppo.evaluate.statistics import Interval, mean_interval, pass_at_k


class Outcome(NamedTuple):
    """What is left of a graded sample for the estimators.

    Args:
        status: what the grader said.
        num_tokens: completion length, stop token included.
        truncated: ran out of token budget.
        answer: class of equivalent answers; None where it gave none, or where classes are of no interest.
    """

    status: Status
    num_tokens: int
    truncated: bool
    answer: str | None = None

    @property
    def correct(self) -> bool:
        return self.status is Status.CORRECT


class Several(NamedTuple):
    """What several samples a problem tell beyond accuracy; the fields are those of `EvaluationRow`."""

    pass_at_k: dict[int, float]
    majority_at_k: dict[int, float]
    g_pass: dict[str, float]
    intervals: dict[str, Interval]


def of_several_samples(problems: Sequence[Sequence[Outcome]], seed: int, *, with_intervals: bool) -> Several:
    """Give pass@k, maj@k and G-Pass@k from each problem's samples, in any order.

    Samples on which the grader failed are left out, and so are problems of which none is left; all is empty where some
    problem has fewer than two. Each estimate starts from the seed.
    """
    graded = [[item for item in row if item.status is not Status.ERROR] for row in problems]
    rows = [row for row in graded if row]
    n = min(map(len, rows), default=0)
    if n < 2:
        return Several({}, {}, {}, {})
    correct, samples = [sum(item.correct for item in row) for row in rows], [len(row) for row in rows]
    passes = {k: pass_at_k(correct, samples, k) for k in range(1, n + 1)}
    powers = sorted({2**i for i in range(n.bit_length())} | {n})
    majorities: dict[int, NDArray[np.float64]] = {}
    if any(item.answer is not None for row in rows for item in row):
        # In the order of the answers, so that the order of problems and samples changes no bit.
        votes = sorted(sorted((str(o.answer or ""), o.correct) for o in row) for row in rows)
        for k in powers:
            generator = np.random.default_rng(seed)
            majorities[k] = np.array(
                [majority_at_k([a or None for a, _ in row], [c for _, c in row], k, generator) for row in votes]
            )
    stable = {f"{t:g}": _mean(g_pass_at_k(correct, samples, n, t)) for t in (0.25, 0.5, 0.75, 1.0)}
    # mG-Pass@k as the paper sums it: 2/k of the thresholds i/k for i from ceil(k/2) + 1 to k.
    over_half = range((n + 1) // 2 + 1, n + 1)
    stable["mean"] = 2 / n * sum(_mean(g_pass_at_k(correct, samples, n, i / n)) for i in over_half)
    named = {f"pass@{k}": passes[k] for k in powers} | {f"maj@{k}": values for k, values in majorities.items()}
    intervals = {
        name: mean_interval(values, np.random.default_rng(seed)) for name, values in named.items() if with_intervals
    }
    return Several(
        {k: _mean(values) for k, values in passes.items()},
        {k: _mean(values) for k, values in majorities.items()},
        stable,
        intervals,
    )


def _mean(values: ArrayLike) -> float:
    """Mean that does not depend on the order of the values, down to the last bit."""
    return float(np.sort(np.asarray(values, dtype=np.float64)).mean())
