"""Before/after comparison of a run, problem by problem, with the worst regressions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mathppo.errors import MathPPOError
from mathppo.evaluate.compare import Comparison, compare_results
from mathppo.evaluate.result import Result
from mathppo.evaluate.selection import Choice, choose_step
from mathppo.records import Problem, ScoredRollout
from mathppo.storage import store

NUM_REGRESSIONS = 12
"""Maximum number of regressions shown."""


ByProblem = dict[str, list[ScoredRollout]]


@dataclass(frozen=True)
class Regression:
    """A problem that the first evaluation solved more often than the last.

    Args:
        problem: the problem.
        mode: greedy or sampled.
        before: first correct sample of the first evaluation.
        after: first wrong sample of the last evaluation, with its verdict.
        lost: share of correct samples, before minus after.
    """

    problem: Problem
    mode: str
    before: ScoredRollout
    after: ScoredRollout
    lost: float


def read_results(run_dir: Path, notes: list[str]) -> list[Result]:
    """Read the per-problem results of a run's evaluations; add a note for each unreadable file."""
    results = []
    for path in sorted(run_dir.glob("evaluations/*/*.result.json")):
        try:
            results.append(msgspec.json.decode(path.read_bytes(), type=Result))
        except (OSError, msgspec.DecodeError, MathPPOError) as error:
            notes.append(f"evaluations/{path.parent.name}/{path.name} is unreadable and left out ({error})")
    return sorted(results, key=lambda result: (result.label, result.evaluation.policy_step))


def compare_ends(results: Sequence[Result]) -> Comparison | None:
    """Compare the last evaluation of each set and mode with the first; None if there are not two."""
    first: dict[str, Result] = {}
    last: dict[str, Result] = {}
    for result in results:
        first.setdefault(result.label, result)
        last[result.label] = result
    labels = [label for label in first if first[label] is not last[label]]
    if not labels:
        return None
    try:
        # Forced: intermediate evaluations use fewer problems, and an interrupted run ends with one of them.
        return compare_results([first[label] for label in labels], [[last[label] for label in labels]], force=True)
    except MathPPOError:
        return None


def choices(results: Sequence[Result]) -> list[Choice]:
    """Choose a step for each set and mode with evaluations at three or more steps."""
    by_label: dict[str, list[Result]] = {}
    for result in results:
        by_label.setdefault(result.label, []).append(result)
    found = []
    for group in by_label.values():
        try:
            found += [choose_step(group)] if len(group) > 2 else []
        except MathPPOError:
            continue
    return found


def worst_regressions(run_dir: Path, results: Sequence[Result], count: int = NUM_REGRESSIONS) -> list[Regression]:
    """Return the problems whose accuracy fell most from the first to the last evaluation, greedy before sampled.

    They are read from the rollouts of the evaluations; a run without those has no regressions to show.
    """
    try:
        problems = {p.id: p for p in store.read_artefact(run_dir / "problems" / "held_out", store.PROBLEMS)}
    except (MathPPOError, OSError):
        return []
    found: list[Regression] = []
    folder = run_dir / "evaluations"
    for mode in ("greedy", "sampled"):
        steps = sorted({r.evaluation.policy_step for r in results if r.evaluation.mode == mode})
        if len(steps) < 2:
            continue
        try:
            before, after = (
                _by_problem(store.read_scored(folder / f"{step:06d}" / mode / "scored"))
                for step in (steps[0], steps[-1])
            )
        except (MathPPOError, OSError):
            continue
        found += _regressions(problems, mode, before, after)
    # The sort is stable: greedy before sampled, then the order of the set.
    return sorted(found, key=lambda one: -one.lost)[:count]


def _by_problem(scored: Sequence[ScoredRollout]) -> ByProblem:
    found: dict[str, list[ScoredRollout]] = {}
    for item in scored:
        found.setdefault(item.rollout.problem_id, []).append(item)
    return found


def _regressions(
    problems: dict[str, Problem],
    mode: str,
    before: dict[str, list[ScoredRollout]],
    after: dict[str, list[ScoredRollout]],
) -> list[Regression]:
    found = []
    for name, earlier in before.items():
        later = after.get(name, [])
        right, wrong = _right(earlier), [item for item in later if not item.verdict.correct]
        if not right or not wrong or name not in problems:
            continue
        lost = len(right) / len(earlier) - len(_right(later)) / len(later)
        if lost > 0:
            found.append(Regression(problems[name], mode, right[0], wrong[0], lost))
    return found


def _right(scored: Sequence[ScoredRollout]) -> list[ScoredRollout]:
    return [item for item in scored if item.verdict.correct]
