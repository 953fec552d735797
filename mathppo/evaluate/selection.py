"""Which step of a run to report, chosen on problems that are not reported on.

A run evaluated at many steps offers its luckiest one. Here half of the problems choose the step and the other half
gives its number, beside the number that picking on the reported half itself would have claimed.
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
    """The step that the dev half chooses.

    Args:
        label: set, prompt and mode.
        step: the chosen step; of equal ones the earliest.
        num_dev: problems that chose.
        num_held_out: problems that are reported on.
        dev: accuracy of the chosen step on the dev half.
        held_out: its accuracy on the other half: the number to report.
        low: lower bound of that one's 95 % interval.
        high: upper bound.
        last_step: the last step.
        last_held_out: accuracy of the last step on the same problems.
        picked_step: the step that is best on the reported half itself.
        picked_held_out: what picking it would have claimed.
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
        """Say in words which step was chosen, and what picking on the reported problems would add."""
        gain = 100 * (self.picked_held_out - self.held_out)
        claim = (
            f"picking step {self.picked_step} on those problems themselves would claim "
            f"{100 * self.picked_held_out:.1f}, {gain:.1f} points more"
            if gain > 0
            else "picking on those problems themselves would claim no more"
        )
        return (
            f"{self.label}: {self.num_dev:,} dev problems choose step {self.step} ({100 * self.dev:.1f} there); on the "
            f"other {self.num_held_out:,} it scores {100 * self.held_out:.1f} [{100 * self.low:.1f}, "
            f"{100 * self.high:.1f}], the last step ({self.last_step}) {100 * self.last_held_out:.1f}; {claim}."
        )


def is_dev(problem_id: str) -> bool:
    """Whether a problem chooses; the same for every run and every step."""
    return hashlib.sha256(f"dev {problem_id}".encode()).digest()[0] % 2 == 0


def choose_step(results: Sequence[Result], *, seed: int = 0) -> Choice:
    """Choose a step among evaluations of one run, over the problems that all of them have.

    Args:
        results: of one set, prompt and mode, one a step.
        seed: of the bootstrap.

    Raises:
        BadInput: results of several sets, two of one step, or a half without a problem in common.
    """
    if len({result.label for result in results}) != 1:
        raise BadInput(f"step choice: expected results of one set, got {sorted({r.label for r in results})}")
    by_step = {result.evaluation.policy_step: _counts(result) for result in results}
    if len(by_step) != len(results):
        raise BadInput("step choice: expected one result a step, got two of one; give the results of one run")
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
