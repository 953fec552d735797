"""Stage `grade`: rollouts and a grader to an artefact of scores."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from graders import GraderPool
from graders.verdict import Status, Verdict
from mathppo.config import Config, GraderSettings
from mathppo.errors import BadInput, StageFailed
from mathppo.progress import SILENT, Reporter
from mathppo.prompts import own_turn
from mathppo.records import Problem, Rollout, SampleKey, ScoredRollout
from mathppo.reward import reward_of
from mathppo.storage import store

MESSAGE_ROLLOUTS = 64
"""Rollouts per message to the grader's processes."""

PORTION = 4096
"""Rollouts per write: the most work that a kill loses."""

DETAIL_CHARS = 300
"""Characters of a failing grader's message that are shown."""


def open_pool(settings: GraderSettings) -> GraderPool:
    """Start the sandboxed grader that the settings name."""
    return GraderPool(
        grader=settings.name,
        num_workers=settings.num_workers,
        time_limit_s=settings.time_limit_s,
        memory_limit_bytes=settings.memory_limit_bytes,
    )


def grading_item(completion: str, problem: Problem, template: str) -> tuple[str, str, str]:
    """Return (completion, reference, question) as the grader gets them, without turns after the model's own."""
    return own_turn(completion, template), problem.reference, problem.question


class BackgroundGrader:
    """Grades rollouts in the background, while others are still being sampled.

    Args:
        pool: the grader.
        problems: by id.
        template: prompt template of the rollouts.
    """

    def __init__(self, pool: GraderPool, problems: Mapping[str, Problem], template: str) -> None:
        self._pool, self._problems, self._template = pool, problems, template
        self._waiting: list[Rollout] = []
        self._submitted: dict[SampleKey, tuple[Future[list[Verdict]], int]] = {}

    def add(self, rollout: Rollout) -> None:
        """Add a rollout; every `MESSAGE_ROLLOUTS` of them are submitted together.

        Raises:
            BadInput: it answers none of the problems.
        """
        if rollout.problem_id not in self._problems:
            raise BadInput(
                f"rollout of problem {rollout.problem_id!r}: expected one of the {len(self._problems)} problems given; "
                "give grade the problems that generate was given"
            )
        self._waiting.append(rollout)
        if len(self._waiting) == MESSAGE_ROLLOUTS:
            self._submit()

    def verdicts(self, rollouts: Sequence[Rollout]) -> list[Verdict]:
        """Return the verdicts on some rollouts in order, adding those that were not added before."""
        known = self._submitted.keys() | {rollout.key for rollout in self._waiting}
        for rollout in rollouts:
            if rollout.key not in known:
                self.add(rollout)
        self._submit()
        found = (self._submitted.pop(rollout.key) for rollout in rollouts)
        return [future.result()[index] for future, index in found]

    def _submit(self) -> None:
        future = self._pool.submit(
            [grading_item(r.completion, self._problems[r.problem_id], self._template) for r in self._waiting]
        )
        self._submitted |= {rollout.key: (future, index) for index, rollout in enumerate(self._waiting)}
        self._waiting = []


def grade(
    grader: BackgroundGrader,
    rollouts: Sequence[Rollout],
    config: Config,
    out: Path,
    *,
    source: Path,
    made_from: str,
    reporter: Reporter = SILENT,
    title: str = "grade",
) -> list[ScoredRollout]:
    """Grade the rollouts that the artefact at `out` lacks, and return all scored rollouts in the rollouts' order.

    Args:
        grader: grades the rollouts.
        rollouts: all records of the artefact at `source`.
        config: of the run.
        out: the artefact of scores.
        source: the artefact of the rollouts.
        made_from: fingerprint of everything that decides the scores.
        reporter: shows progress.
        title: name of the work in the progress display.

    Raises:
        BadInput: a rollout of an unknown problem.
        StageFailed: the grader itself failed on more than `grader.max_error_share` of the rollouts.
    """
    if store.is_finished(out, store.SCORED, made_from):
        return store.pair_scores(out, rollouts, store.read_artefact(out, store.SCORED))
    with store.ArtefactWriter(out, store.SCORED, made_from, source=source) as writer:
        scored = store.pair_scores(out, rollouts, writer.done)
        with reporter.task(title, len(rollouts), done=len(scored)) as advance:
            for start in range(len(scored), len(rollouts), PORTION):
                portion = rollouts[start : start + PORTION]
                new = [
                    _score(rollout, verdict, config)
                    for rollout, verdict in zip(portion, grader.verdicts(portion), strict=True)
                ]
                writer.append([item.score for item in new])
                scored += new
                advance(len(new))
        try:
            check_grader_errors(out, "rollouts", [item.verdict for item in scored], config.grader.max_error_share)
        except StageFailed:
            writer.discard()  # a run with a working grader must not find these verdicts
            raise
        writer.finish()
    return scored


def check_grader_errors(path: Path, name: str, verdicts: Sequence[Verdict], max_error_share: float) -> None:
    """Check that the grader itself did not fail too often.

    Raises:
        StageFailed: it failed on a larger share than `max_error_share`.
    """
    errors = [verdict for verdict in verdicts if verdict.status is Status.ERROR]
    if len(errors) > max_error_share * len(verdicts):
        raise StageFailed(
            f"{path}: the grader itself failed on {len(errors)} of {len(verdicts)} {name}, more than "
            f"grader.max_error_share={max_error_share:g} allows; first: {errors[0].detail[:DETAIL_CHARS]}"
        )


def overlong_budget(config: Config) -> int:
    """Return the token budget of the soft overlong penalty; 0 if it is off."""
    return config.generator.max_new_tokens if config.learner.truncation == "penalty" else 0


def _score(rollout: Rollout, verdict: Verdict, config: Config) -> ScoredRollout:
    reward = reward_of(verdict, rollout, config.reward, overlong_budget_tokens=overlong_budget(config))
    return ScoredRollout(rollout=rollout, verdict=verdict, reward=reward)
