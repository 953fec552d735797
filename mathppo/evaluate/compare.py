"""Comparison of two evaluations: paired differences, significance, and a sentence that summarises them."""

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
"""Smallest p that is printed; smaller ones are printed as a bound, because the tests do not resolve them."""


class SetComparison(Record, frozen=True, tag=False):
    """Comparison of policy B with policy A on one set under one prompt.

    Args:
        label: set, prompt and mode.
        model_a: display name of A.
        model_b: display name of B.
        num_problems: problems with a graded sample of both.
        accuracy_a: mean accuracy per problem of A.
        accuracy_b: mean accuracy per problem of B.
        difference: accuracy_b - accuracy_a.
        low: lower bound of the 95 % interval of the difference, by paired bootstrap over problems.
        high: upper bound of that interval.
        test: the test that computed p.
        p: two-sided p value.
        p_holm: p adjusted for all sets that are compared together.
        wins: problems on which B is more accurate, the largest gains first.
        losses: problems on which B is less accurate, the largest losses first.
        detectable: the true difference that such a comparison detects with 80 % power; None for a single problem.
        notes: differences in settings that `force` overrode.
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
        """Summary of the comparison in one sentence."""
        where = f"on {self.label} ({self.num_problems:,} problems)"
        numbers = f"{100 * self.difference:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        p = f"{self.test}, p {'= ' if self.p_holm >= SMALLEST_P else ''}{write_p(self.p_holm)} after Holm"
        if self.p_holm < SIGNIFICANCE:
            word = "better" if self.difference > 0 else "worse"
            return f"{self.model_b} is {word} than {self.model_a} {where}: {numbers}, {p}."
        bound = ""
        if self.detectable:
            bound = f"; a true difference below {100 * self.detectable:.1f} points is missed in at least 20 % of cases"
        return f"{self.model_b} and {self.model_a} do not differ significantly {where}: {numbers}, {p}{bound}."


class Comparison(Record, frozen=True, tag="comparison/1"):
    """Comparisons of all sets, in order of set and then of policy."""

    sets: list[SetComparison]


def write_p(p: float) -> str:
    """Return a p value as it is printed.

    >>> write_p(0.0123), write_p(3e-9)
    ('0.012', '< 0.0001')
    """
    return f"{p:.2g}" if p >= SMALLEST_P else f"< {SMALLEST_P:.4f}"


def compare_results(
    baseline: Sequence[Result], others: Sequence[Sequence[Result]], *, force: bool = False, seed: int = 0
) -> Comparison:
    """Compare each of the others with the baseline on every set that both have.

    Args:
        baseline: results of A, at most one per label.
        others: results of B, of C and so on.
        force: compare even if prompts, problems or budgets differ, over the problems that both have.
        seed: seed of bootstrap and permutation.

    Raises:
        BadInput: a group has two results of one label, no set is in common, or, unless forced, the problems, reference
            answers, prompts, temperature, token budget or grader differ.
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
            f"compare: expected a set that both have, got {', '.join(first)} and {', '.join(theirs)}; evaluate both on "
            "the same sets with the same templates"
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
                f"compare: expected one result of {label} per folder, got {got}; pass the folder of one within results/"
            )
        found[label] = result
    return found


def _compare(a: Result, b: Result, force: bool, seed: int) -> SetComparison:
    """Compare two results; `p_holm` is not adjusted yet."""
    notes = _differences(a, b)
    if notes and not force:
        raise BadInput(
            f"compare {a.label}: expected the same settings for both, got {'; '.join(notes)}; evaluate again with the "
            "same settings, or pass --force to compare anyway"
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
        raise BadInput(f"compare {a.label}: expected problems with graded samples of both, got none")
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
    """Return a description of each setting that differs and should not."""
    found = []
    if a.problems_sha256 != b.problems_sha256:
        found.append(f"different problems or reference answers ({len(a.problem_ids)} and {len(b.problem_ids)})")
    if a.prompts_sha256 != b.prompts_sha256:
        found.append(f"different prompts (templates {a.template} and {b.template}, or different tokenizers)")
    for name in ("temperature", "max_new_tokens", "grader"):
        if getattr(a, name) != getattr(b, name):
            found.append(f"different {name} ({getattr(a, name)} and {getattr(b, name)})")
    return found
