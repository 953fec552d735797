"""Selection of the step of a run to report, on problems that are not reported on.

The best of many evaluated steps is an optimistic estimate. Here one half of the problems (dev) chooses the step and
the other half (held-out) estimates its accuracy; the accuracy of the best step on the held-out half itself is reported
for comparison.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta

from mathppo.errors import BadInput
from mathppo.evaluate.result import Result
from mathppo.evaluate.statistics import accuracy_interval
from mathppo.records import Record

Share = Annotated[float, Meta(ge=0, le=1)]


class Choice(Record, frozen=True, tag="step_choice/1"):
    """The step chosen on the dev half.

    Args:
        label: set, prompt and mode.
        step: the chosen step; the earliest if several tie.
        num_dev: number of dev problems.
        num_held_out: number of held-out problems.
        dev: accuracy of the chosen step on the dev half.
        held_out: its accuracy on the held-out half: the number to report.
        low: lower bound of the 95 % interval of `held_out`.
        high: upper bound of that interval.
        last_step: the last step.
        last_held_out: accuracy of the last step on the held-out half.
        picked_step: the best step on the held-out half itself.
        picked_held_out: its accuracy there, an optimistic estimate.
    """

    label: str
    step: int
    num_dev: int
    num_held_out: int
    dev: Share
    held_out: Share
    low: Share
    high: Share
    last_step: int
    last_held_out: Share
    picked_step: int
    picked_held_out: Share

    @property
    def sentence(self) -> str:
        """Summary of the choice in one sentence."""
        gain = 100 * (self.picked_held_out - self.held_out)
        claim = (
            f"choosing step {self.picked_step} on those problems would report {100 * self.picked_held_out:.1f}, "
            f"{gain:.1f} points more"
            if gain > 0
            else "choosing on those problems would report no more"
        )
        return (
            f"{self.label}: {self.num_dev:,} dev problems choose step {self.step} ({100 * self.dev:.1f} there); on the "
            f"other {self.num_held_out:,} it scores {100 * self.held_out:.1f} [{100 * self.low:.1f}, "
            f"{100 * self.high:.1f}], the last step ({self.last_step}) {100 * self.last_held_out:.1f}; {claim}."
        )


def is_dev(problem_id: str) -> bool:
    """Return True if a problem is in the dev half, which is the same for every run and step."""
    return hashlib.sha256(f"dev {problem_id}".encode()).digest()[0] % 2 == 0


def choose_step(results: Sequence[Result], *, seed: int = 0) -> Choice:
    """Choose a step among the evaluations of one run, on the problems that all of them have.

    Args:
        results: results of one set, prompt and mode, one per step.
        seed: seed of the bootstrap.

    Raises:
        BadInput: several sets, two results of one step, or a half without a common problem.
    """
    if len({result.label for result in results}) != 1:
        raise BadInput(f"step choice: expected results of one set, got {sorted({r.label for r in results})}")
    by_step = {result.evaluation.policy_step: _counts(result) for result in results}
    if len(by_step) != len(results):
        raise BadInput("step choice: expected one result per step, got two of one step; pass the results of one run")
    shared = set.intersection(*(set(counts) for counts in by_step.values()))
    dev, held_out = sorted(filter(is_dev, shared)), sorted(name for name in shared if not is_dev(name))
    if not dev or not held_out:
        raise BadInput(f"step choice: expected problems of all steps in both halves, got {len(dev)}, {len(held_out)}")

    def accuracies(names: Sequence[str]) -> dict[int, float]:
        return {step: _accuracy(counts, names) for step, counts in sorted(by_step.items())}

    on_dev, on_held_out = accuracies(dev), accuracies(held_out)
    step, picked, last = _best(on_dev), _best(on_held_out), max(by_step)
    counts = [by_step[step][name] for name in held_out]
    low, high = accuracy_interval([c for c, _ in counts], [n for _, n in counts], np.random.default_rng(seed))
    return Choice(
        label=results[0].label,
        step=step,
        num_dev=len(dev),
        num_held_out=len(held_out),
        dev=on_dev[step],
        held_out=on_held_out[step],
        low=low,
        high=high,
        last_step=last,
        last_held_out=on_held_out[last],
        picked_step=picked,
        picked_held_out=on_held_out[picked],
    )


def _counts(result: Result) -> dict[str, tuple[int, int]]:
    triples = zip(result.problem_ids, result.num_correct, result.num_graded, strict=True)
    return {name: (correct, graded) for name, correct, graded in triples if graded}


def _accuracy(counts: Mapping[str, tuple[int, int]], names: Sequence[str]) -> float:
    return math.fsum(counts[name][0] for name in names) / math.fsum(counts[name][1] for name in names)


def _best(accuracies: Mapping[int, float]) -> int:
    return max(sorted(accuracies), key=lambda step: accuracies[step])
