"""Two evaluations set beside each other: differences problem by problem, and what they allow one to say."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from mathppo.errors import BadInput
from mathppo.evaluate.paired import (
    difference_interval,
    holm,
    mcnemar_p,
    sign_flip_p,
    smallest_detectable_difference,
)
from mathppo.evaluate.result import Result
from mathppo.records import Record

Probability = Annotated[float, Meta(ge=0, le=1)]
SIGNIFICANCE = 0.05
SMALLEST_P = 1e-4
"""Below it, only that it is below is written: no test here is exact about more."""


class SetComparison(Record, frozen=True, tag=False):
    """Two policies on one set under one prompt; B is held against A.

    Args:
        label: set, prompt and mode.
        model_a: what a person calls A.
        model_b: and B.
        num_problems: problems that both have a graded sample of.
        accuracy_a: mean share of right samples of A.
        accuracy_b: of B.
        difference: accuracy_b - accuracy_a.
        low: lower bound of the difference's 95 % interval, by paired bootstrap over problems.
        high: upper bound.
        test: which test gave p.
        p: two-sided.
        p_holm: adjusted for all sets that are compared at once.
        wins: problems of which B gets a larger share right, the largest gains first.
        losses: those of which it gets a smaller one, the largest losses first.
        detectable: the true difference that such a comparison finds 4 times in 5; None for a single problem.
        notes: what was forced.
    """

    label: str
    model_a: str
    model_b: str
    num_problems: int
    accuracy_a: Probability
    accuracy_b: Probability
    difference: float
    low: float
    high: float
    test: str
    p: Probability
    p_holm: Probability
    wins: list[str]
    losses: list[str]
    detectable: float | None
    notes: list[str]

    @property
    def sentence(self) -> str:
        """Say in words what can be said."""
        where = f"on {self.label} ({self.num_problems:,} problems)"
        numbers = f"{100 * self.difference:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        p = f"{self.test}, p {'= ' if self.p_holm >= SMALLEST_P else ''}{write_p(self.p_holm)} after Holm"
        if self.p_holm < SIGNIFICANCE:
            word = "better" if self.difference > 0 else "worse"
            return f"{self.model_b} is {word} than {self.model_a} {where}: {numbers}, {p}."
        bound = ""
        if self.detectable:
            bound = f"; a true difference below {100 * self.detectable:.1f} points is missed once in 5 times or more"
        return f"{self.model_b} and {self.model_a} cannot be told apart {where}: {numbers}, {p}{bound}."


class Comparison(Record, frozen=True, tag="comparison/1"):
    """All sets of one call to compare, in order of set and then of policy."""

    sets: list[SetComparison]


def write_p(p: float) -> str:
    """Give a p value as a person reads it.

    >>> write_p(0.0123), write_p(3e-9)
    ('0.012', '< 0.0001')
    """
    return f"{p:.2g}" if p >= SMALLEST_P else f"< {SMALLEST_P:.4f}"


def compare_results(
    baseline: Sequence[Result], others: Sequence[Sequence[Result]], *, force: bool = False, seed: int = 0
) -> Comparison:
    """Hold each of the others against the baseline on every set that both have.

    Args:
        baseline: results of A, at most one a label.
        others: results of B, of C and so on.
        force: compare different prompts, problems or budgets all the same, over the problems that both have.
        seed: of bootstrap and permutation.

    Raises:
        BadInput: two results of one label in one group, no set in common, or, unless forced, other problems, right
            answers, prompts, temperature or token budget.
    """
    first = _by_label(baseline, force)
    pairs = [
        (first[label], result)
        for other in others
        for label, result in sorted(_by_label(other, force).items())
        if label in first
    ]
    if not pairs:
        theirs = sorted({label for other in others for label in _by_label(other, force)})
        raise BadInput(
            f"compare: expected a set that both have, got {', '.join(first)} against {', '.join(theirs)}; evaluate "
            "both on the same sets with the same templates"
        )
    compared = [_compare(a, b, force, seed) for a, b in pairs]
    adjusted = holm([one.p for one in compared])
    sets = [msgspec.structs.replace(one, p_holm=p) for one, p in zip(compared, adjusted, strict=True)]
    return Comparison(sets=sorted(sets, key=lambda one: (one.label, one.model_b)))


def _by_label(results: Sequence[Result], force: bool) -> dict[str, Result]:
    found: dict[str, Result] = {}
    for result in results:
        label = f"{result.benchmark}.{result.evaluation.mode}" if force else result.label
        if label in found:
            got = " and ".join(
                f"{len(one.problem_ids)} problems x {one.evaluation.samples_per_problem} of {one.model}"
                for one in (found[label], result)
            )
            raise BadInput(
                f"compare: expected one result of {label} in each folder, got {got}; give one's folder within results/"
            )
        found[label] = result
    return found


def _compare(a: Result, b: Result, force: bool, seed: int) -> SetComparison:
    """Compare two results as the only ones: p is not adjusted yet."""
    notes = _differences(a, b)
    if notes and not force:
        raise BadInput(
            f"compare {a.label}: expected the same for both, got {'; '.join(notes)}; evaluate again with the same "
            "settings, or give --force to compare all the same"
        )
    shares = [
        {
            name: correct / graded
            for name, correct, graded in zip(one.problem_ids, one.num_correct, one.num_graded, strict=True)
            if graded
        }
        for one in (a, b)
    ]
    both = [name for name in a.problem_ids if name in shares[0] and name in shares[1]]
    if not both:
        raise BadInput(f"compare {a.label}: expected problems that both have graded samples of, got none")
    differences = np.array([shares[1][name] - shares[0][name] for name in both])
    order = np.argsort(differences, kind="stable")
    wins = [both[i] for i in order[::-1] if differences[i] > 0]
    losses = [both[i] for i in order if differences[i] < 0]
    single = max(*a.num_graded, *b.num_graded) == 1
    low, high = difference_interval(differences, np.random.default_rng(seed))
    p = mcnemar_p(len(losses), len(wins)) if single else sign_flip_p(differences, np.random.default_rng(seed))
    return SetComparison(
        label=a.label,
        model_a=a.model,
        model_b=b.model,
        num_problems=len(both),
        accuracy_a=float(np.mean([shares[0][name] for name in both])),
        accuracy_b=float(np.mean([shares[1][name] for name in both])),
        difference=float(differences.mean()),
        low=low,
        high=high,
        test="mid-p McNemar" if single else "mid-p permutation",
        wins=wins,
        losses=losses,
        detectable=smallest_detectable_difference(differences) if len(both) > 1 else None,
        notes=notes,
        p=p,
        p_holm=p,
    )


def _differences(a: Result, b: Result) -> list[str]:
    """Name what differs and should not."""
    found = []
    if a.problems_sha256 != b.problems_sha256:
        found.append(f"other problems or right answers ({len(a.problem_ids)} and {len(b.problem_ids)})")
    if a.prompts_sha256 != b.prompts_sha256:
        found.append(f"other prompts (templates {a.template} and {b.template}, or another tokenizer)")
    for name in ("temperature", "max_new_tokens", "grader"):
        if getattr(a, name) != getattr(b, name):
            found.append(f"another {name} ({getattr(a, name)} and {getattr(b, name)})")
    return found
