"""Graded samples, reduced to what the estimators need, and what several of them a problem tell."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

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


Pattern = tuple[Any, ...]
"""Number of samples without an answer, then (size, is right) of each class of answers, in order."""


class Several(NamedTuple):
    """What several samples a problem tell beyond accuracy; the fields are those of `EvaluationRow`."""

    pass_at_k: dict[int, float]
    majority_at_k: dict[int, float]
    g_pass: dict[str, float]
    intervals: dict[str, Interval]


def of_several_samples(
    problems: Sequence[Sequence[Outcome]],
    seed: int,
    *,
    with_intervals: bool,
    known: dict[tuple[Pattern, int], float] | None = None,
) -> Several:
    """Give pass@k, maj@k and G-Pass@k from each problem's samples, in any order.

    Samples on which the grader failed are left out, and so are problems of which none is left; all is empty where some
    problem has fewer than two. Each estimate starts from the seed.

    Args:
        problems: each one's samples.
        seed: of intervals and of maj@k's subsets.
        with_intervals: give intervals too.
        known: maj@k by pattern of votes, kept from call to call of one seed.
    """
    known = {} if known is None else known
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
        patterns = [_pattern(row) for row in rows]
        majorities = {k: np.array([_majority(pattern, k, seed, known) for pattern in patterns]) for k in powers}
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


def _pattern(samples: Sequence[Outcome]) -> Pattern:
    """Give sizes of the classes of answers, each with whether it is right; those without an answer come as one each.

    Two problems with the same pattern have the same maj@k, whatever the answers are and in whatever order they came.
    """
    sizes = Counter((item.answer, item.correct) for item in samples if item.answer is not None)
    silent = sum(item.answer is None for item in samples)
    return (silent, *sorted((size, right) for (_, right), size in sizes.items()))


def _majority(pattern: Pattern, k: int, seed: int, known: dict[tuple[Pattern, int], float]) -> float:
    if (pattern, k) not in known:
        silent, *classes = pattern
        groups = [number for number, (size, _) in enumerate(classes) for _ in range(size)]
        right = [is_right for size, is_right in classes for _ in range(size)]
        known[pattern, k] = majority_at_k(
            [*groups, *[None] * silent], [*right, *[False] * silent], k, np.random.default_rng([seed, k])
        )
    return known[pattern, k]


def _mean(values: ArrayLike) -> float:
    """Mean that does not depend on the order of the values, down to the last bit."""
    return float(np.sort(np.asarray(values, dtype=np.float64)).mean())
