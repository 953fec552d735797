"""Outcomes of graded samples: what the estimators need of them, and estimates from several samples per problem."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from graders import GraderPool
from graders.verdict import Status, Verdict
from mathppo.errors import BadInput
from mathppo.evaluate.consistency import g_pass_at_k, majority_at_k
from mathppo.evaluate.statistics import Interval, mean_interval, pass_at_k
from mathppo.records import Problem

CORRECT_CLASS = "correct"
"""The class of all right answers; classes of wrong ones are numbered."""


class Answer(NamedTuple):
    """A graded sample of a problem, from a log or an artefact.

    Args:
        problem_id: the problem.
        sample_index: which of the problem's samples.
        num_tokens: completion length, stop token included.
        truncated: ran out of token budget.
        verdict: the grader's verdict.
    """

    problem_id: str
    sample_index: int
    num_tokens: int
    truncated: bool
    verdict: Verdict


class Outcome(NamedTuple):
    """The part of a graded sample that the estimators need.

    Args:
        status: the grader's verdict.
        num_tokens: completion length, stop token included.
        truncated: ran out of token budget.
        answer: class of equivalent answers; None without an answer, or if answers are not classified.
    """

    status: Status
    num_tokens: int
    truncated: bool
    answer: str | None = None

    @property
    def correct(self) -> bool:
        return self.status is Status.CORRECT


def outcomes_of(
    name: str, problems: Sequence[Problem], answers: Sequence[Answer], *, pool: GraderPool | None = None
) -> dict[str, list[Outcome]]:
    """Return the outcomes of each problem's samples by problem id, in order of sample index.

    Args:
        name: the problem set, for messages.
        problems: the whole set.
        answers: every sample of every problem, each once; the same number of samples per problem.
        pool: grader that classifies the answers of problems with several samples, for maj@k; None leaves it out.

    Raises:
        BadInput: no problem, a problem twice, a sample of an unknown problem, a sample twice, or a problem with more or
            fewer samples than another.
    """
    by_problem = _by_problem(name, problems, answers)
    classes: dict[str, dict[str, str]] = {}
    if pool is not None:
        wrong = {
            problem_id: [a.verdict.answer for a in samples if a.verdict.answer is not None and not a.verdict.correct]
            for problem_id, samples in by_problem.items()
            # Wrong answers compete with right ones; without a right one, no vote can win.
            if len(samples) > 1 and any(a.verdict.correct for a in samples)
        }
        classes = answer_classes(pool, wrong, {problem.id: problem for problem in problems})
    return {
        problem_id: [
            Outcome(a.verdict.status, a.num_tokens, a.truncated, _class_of(a.verdict, classes.get(problem_id), pool))
            for a in samples
        ]
        for problem_id, samples in by_problem.items()
    }


def _by_problem(name: str, problems: Sequence[Problem], answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    where = f"evaluation {name!r}"
    if not problems:
        raise BadInput(f"{where}: expected at least one problem, got none")
    samples: dict[str, dict[int, Answer]] = {problem.id: {} for problem in problems}
    if len(samples) != len(problems):
        raise BadInput(f"{where}: expected problem ids that are unique, got {len(samples)} ids of {len(problems)}")
    for answer in answers:
        if answer.problem_id not in samples:
            raise BadInput(f"{where}: expected samples of its problems, got one of {answer.problem_id!r}")
        if answer.sample_index in samples[answer.problem_id]:
            raise BadInput(f"{where}: expected each sample once, got {answer.problem_id!r} {answer.sample_index} twice")
        samples[answer.problem_id][answer.sample_index] = answer
    expected = max(map(len, samples.values()))
    for problem_id, found in samples.items():
        if len(found) != expected or not found:
            raise BadInput(
                f"{where}: expected {max(expected, 1)} samples of every problem, got {len(found)} of {problem_id!r}; "
                "run the stage again to complete it"
            )
    return {problem_id: [found[index] for index in sorted(found)] for problem_id, found in samples.items()}


def answer_classes(
    pool: GraderPool, answers: Mapping[str, Sequence[str]], problems: Mapping[str, Problem]
) -> dict[str, dict[str, str]]:
    """Return the class of each problem's wrong answers: those that the grader finds equivalent share one.

    In rounds, for all problems together: the first answer without a class becomes the representative of a new class,
    and every other answer without a class is graded against it.
    """
    classes: dict[str, dict[str, str]] = {name: {} for name in answers}
    # Sorted, so that the order of the samples does not matter; answers that differ in spacing only are the same.
    waiting = {name: sorted({_squeezed(answer) for answer in found}) for name, found in answers.items() if found}
    number = 0
    while waiting:
        number += 1
        items = []
        for name, texts in waiting.items():
            classes[name][texts[0]] = f"wrong {number}"
            items += [(name, text, texts[0]) for text in texts[1:]]
        verdicts = pool.grade(
            [(f"\\boxed{{{text}}}", representative, problems[name].question) for name, text, representative in items]
        )
        left: dict[str, list[str]] = defaultdict(list)
        for (name, text, _), verdict in zip(items, verdicts, strict=True):
            if verdict.correct:
                classes[name][text] = f"wrong {number}"
            else:
                left[name].append(text)
        waiting = left
    return classes


def _class_of(verdict: Verdict, classes: Mapping[str, str] | None, pool: GraderPool | None) -> str | None:
    if verdict.correct and pool is not None:
        return CORRECT_CLASS
    if verdict.answer is None or classes is None:
        return None
    return classes[_squeezed(verdict.answer)]


def _squeezed(answer: str) -> str:
    return " ".join(answer.split())


Pattern = tuple[Any, ...]
"""Number of samples without an answer, then (size, is right) of each class of answers, in order."""


class SeveralSamples(NamedTuple):
    """Estimates from several samples per problem, beyond accuracy; the fields are those of `EvaluationRow`."""

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
) -> SeveralSamples:
    """Return pass@k, maj@k and G-Pass@k from each problem's samples, in any order.

    Samples on which the grader failed are left out, and so are problems without any other; everything is empty if a
    problem has fewer than two. Each estimate starts from the seed.

    Args:
        problems: the samples of each problem.
        seed: of intervals and of maj@k's subsets.
        with_intervals: estimate intervals too.
        known: cache of maj@k by pattern of votes, shared by calls with one seed.
    """
    known = {} if known is None else known
    graded = [[item for item in row if item.status is not Status.ERROR] for row in problems]
    rows = [row for row in graded if row]
    n = min(map(len, rows), default=0)
    if n < 2:
        return SeveralSamples({}, {}, {}, {})
    correct, samples = [sum(item.correct for item in row) for row in rows], [len(row) for row in rows]
    passes = {k: pass_at_k(correct, samples, k) for k in range(1, n + 1)}
    powers = sorted({2**i for i in range(n.bit_length())} | {n})
    majorities: dict[int, NDArray[np.float64]] = {}
    if any(item.answer is not None for row in rows for item in row):
        patterns = [_pattern(row) for row in rows]
        majorities = {k: np.array([_majority(pattern, k, seed, known) for pattern in patterns]) for k in powers}
    stable = {f"{t:g}": _mean(g_pass_at_k(correct, samples, n, t)) for t in (0.25, 0.5, 0.75, 1.0)}
    # mG-Pass@k as the paper defines it: 2/k times the sum over thresholds i/k for i from ceil(k/2) + 1 to k.
    over_half = range((n + 1) // 2 + 1, n + 1)
    stable["mean"] = 2 / n * sum(_mean(g_pass_at_k(correct, samples, n, i / n)) for i in over_half)
    named = {f"pass@{k}": passes[k] for k in powers} | {f"maj@{k}": values for k, values in majorities.items()}
    intervals = {
        name: mean_interval(values, np.random.default_rng(seed)) for name, values in named.items() if with_intervals
    }
    return SeveralSamples(
        {k: _mean(values) for k, values in passes.items()},
        {k: _mean(values) for k, values in majorities.items()},
        stable,
        intervals,
    )


def _pattern(samples: Sequence[Outcome]) -> Pattern:
    """Return the sizes of the answer classes, each with whether it is right; problems of one pattern share maj@k."""
    sizes = Counter((item.answer, item.correct) for item in samples if item.answer is not None)
    without_answer = sum(item.answer is None for item in samples)
    return (without_answer, *sorted((size, right) for (_, right), size in sizes.items()))


def _majority(pattern: Pattern, k: int, seed: int, known: dict[tuple[Pattern, int], float]) -> float:
    if (pattern, k) not in known:
        without_answer, *classes = pattern
        groups = [number for number, (size, _) in enumerate(classes) for _ in range(size)]
        right = [is_right for size, is_right in classes for _ in range(size)]
        known[pattern, k] = majority_at_k(
            [*groups, *[None] * without_answer],
            [*right, *[False] * without_answer],
            k,
            np.random.default_rng([seed, k]),
        )
    return known[pattern, k]


def _mean(values: ArrayLike) -> float:
    """Return a mean that does not depend on the order of the values, down to the last bit."""
    return float(np.sort(np.asarray(values, dtype=np.float64)).mean())
