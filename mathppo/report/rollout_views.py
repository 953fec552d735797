"""Rollouts for display: tokens as text, each with the learner's numbers."""

import math
from collections.abc import Iterable
from pathlib import Path

import msgspec

from graders.verdict import Verdict
from mathppo.errors import BadArtefact, BadInput
from mathppo.records import Record
from mathppo.storage.files import write_file

VIEWS_FILE = "rollout_views.jsonl"


class RolloutView(Record, frozen=True, kw_only=True, tag="rollout_view/1"):
    """A rollout with its per-token numbers, T completion tokens.

    Args:
        problem_id: the problem.
        question: the problem's question.
        reference: reference answer.
        prompt: the prompt's tokens as text pieces.
        completion: T token texts, stop token included if sampled.
        behaviour_logprobs: T log-probabilities in nats under the behaviour policy.
        old_logprobs: T log-probabilities under the learner before its update; None if it did not train on them.
        values: T values V(prompt + completion[:t]); None without a critic.
        advantages: T advantages before whitening; None if not computed.
        verdict: verdict of the grader.
        reward: terminal reward; None if the grader failed.
        truncated: ran out of token budget.
        policy_step: number of updates that the behaviour policy had seen.
    """

    problem_id: str
    question: str
    reference: str
    prompt: list[str]
    completion: list[str]
    behaviour_logprobs: list[float]
    old_logprobs: list[float] | None = None
    values: list[float] | None
    advantages: list[float] | None
    verdict: Verdict
    reward: float | None
    truncated: bool
    policy_step: int

    def __post_init__(self) -> None:
        for name in ("behaviour_logprobs", "old_logprobs", "values", "advantages"):
            numbers = getattr(self, name)
            if numbers is None:
                continue
            where = f"rollout view {self.problem_id!r} of step {self.policy_step}"
            if len(numbers) != len(self.completion):
                raise BadInput(
                    f"{where}: expected as many {name} as completion tokens ({len(self.completion)}), "
                    f"got {len(numbers)}; re-run learn"
                )
            if not all(math.isfinite(x) for x in numbers):
                raise BadInput(f"{where}: expected finite {name}; re-run learn")

    @property
    def td_residuals(self) -> list[float] | None:
        """values[t+1] - values[t], with the reward as the value after the last token.

        With gamma = 1 and no KL term these are GAE's residuals, except for the last one of a bootstrapped rollout.
        """
        if self.values is None or self.reward is None:
            return None
        return [after - before for before, after in zip(self.values, [*self.values[1:], self.reward], strict=True)]


def write_views(run_dir: Path, views: Iterable[RolloutView]) -> None:
    """Write the rollout views of a run, replacing earlier ones."""
    write_file(run_dir / VIEWS_FILE, b"".join(msgspec.json.encode(view) + b"\n" for view in views))


def read_views(path: Path) -> list[RolloutView]:
    """Read rollout views, in order.

    Raises:
        BadArtefact: a line is not a rollout view.
    """
    views = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            views.append(msgspec.json.decode(line, type=RolloutView))
        except (msgspec.DecodeError, BadInput) as error:
            raise BadArtefact(
                f"{path} line {number}: expected a rollout view, got {line[:80]!r} ({error}); re-run train"
            ) from error
    return views


def choose_views(views: list[RolloutView], count: int) -> list[RolloutView]:
    """Choose up to `count` views across verdicts and across the run, so that rare failures are seen.

    The count is divided evenly over verdicts, and within a verdict over policy steps. The choice is deterministic and
    keeps the order of the input.
    """
    queues: dict[str, list[int]] = {}
    for index, view in enumerate(views):
        queues.setdefault(view.verdict.status, []).append(index)
    # Increase the quotas round-robin until the count is reached or no view is left.
    quota = dict.fromkeys(sorted(queues), 0)
    while sum(quota.values()) < min(count, len(views)):
        for status in quota:
            if quota[status] < len(queues[status]) and sum(quota.values()) < count:
                quota[status] += 1
    chosen: list[int] = []
    for status, take in quota.items():
        by_step = sorted(queues[status], key=lambda i: (views[i].policy_step, i))
        chosen += [by_step[(2 * j + 1) * len(by_step) // (2 * take)] for j in range(take)]
    return [views[i] for i in sorted(chosen)]
