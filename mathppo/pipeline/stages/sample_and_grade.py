"""What a stage does to records, whoever calls it: the stage alone, or `train` with its engines warm.

Each writes one artefact and can be killed anywhere: what is finished is kept, and the rest is done by the next call.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from graders import GraderPool
from graders.verdict import Status, Verdict
from mathppo.config import Config, GraderSettings
from mathppo.errors import BadInput, StageFailed
from mathppo.generator.base import Generator, Request, Sampling
from mathppo.progress import SILENT, Reporter
from mathppo.prompts import PreTrainedTokenizerBase, encode_prompt, special_ids
from mathppo.records import Problem, Rollout, ScoredRollout
from mathppo.reward import reward_of
from mathppo.seeds import derive_seed
from mathppo.storage import store

SAMPLED_AT_ONCE = 1024
"""Requests that an engine is given together: what a kill may cost."""

MAX_REQUESTS = 1_000_000
"""Of one iteration or of one set: they, and what comes of them, are held in memory, at about 3 KiB each."""

GRADED_TOGETHER = 64
"""Rollouts that go to the grader's processes in one message."""

DETAIL_SHOWN = 300
"""Characters of a failing grader's own words in a message."""

GRADED_AT_ONCE = 4096
"""Rollouts between two writes of the grade stage: what a kill may cost."""


def sampling_of(config: Config, tokenizer: PreTrainedTokenizerBase, *, temperature: float | None = None) -> Sampling:
    """Give the sampling of the run's completions, or the same at another temperature."""
    return Sampling(
        max_new_tokens=config.generator.max_new_tokens,
        temperature=config.generator.temperature if temperature is None else temperature,
        top_p=config.generator.top_p,
        top_k=config.generator.top_k,
        stop_token_ids=tuple(dict.fromkeys((special_ids(tokenizer).eos, *config.generator.stop_token_ids))),
        stop=tuple(config.generator.stop),
    )


def choose_problems(problems: Sequence[Problem], iteration: int, count: int, seed: int) -> list[Problem]:
    """Give the problems of an iteration: consecutive blocks of an endless series of shuffles of them all."""
    if not problems:
        raise BadInput("problems: expected at least one, got none; run prepare with a source that has some")
    check_size("generator.prompts_per_iteration", count, 1)
    first, last = (divmod(position, len(problems)) for position in (iteration * count, (iteration + 1) * count - 1))
    chosen: list[Problem] = []
    for epoch in range(first[0], last[0] + 1):
        order = list(problems)
        random.Random(derive_seed(seed, "order", epoch)).shuffle(order)
        start = first[1] if epoch == first[0] else 0
        end = last[1] + 1 if epoch == last[0] else len(order)
        chosen += order[start:end]
    return chosen


def check_size(what: str, num_problems: int, samples: int) -> None:
    """Refuse more completions than memory holds, before the first is asked for.

    Raises:
        BadInput: more than `MAX_REQUESTS`.
    """
    if num_problems * samples > MAX_REQUESTS:
        raise BadInput(
            f"{what}: expected at most {MAX_REQUESTS:,} completions at once, got {num_problems:,} problems x "
            f"{samples:,} = {num_problems * samples:,}; ask for fewer problems or fewer samples of each"
        )


def make_requests(
    problems: Sequence[Problem],
    tokenizer: PreTrainedTokenizerBase,
    config: Config,
    *,
    samples: int,
    purpose: str,
    iteration: int = 0,
) -> list[Request]:
    """Give one request per problem and sample; a problem that is drawn twice gets further samples.

    The seed of a sample derives from the run's seed, the purpose, the iteration, the problem and the sample's index.

    Raises:
        BadInput: more requests than memory holds.
    """
    check_size("samples", len(problems), samples)
    requests, drawn = [], dict[str, int]()
    for problem in problems:
        prompt_ids = tuple(encode_prompt(problem, tokenizer, template=config.problems.template))
        first = drawn.get(problem.id, 0)
        drawn[problem.id] = first + samples
        requests += [
            Request(
                problem_id=problem.id,
                sample_index=index,
                prompt_ids=prompt_ids,
                seed=derive_seed(config.run.seed, purpose, iteration, problem.id, index),
            )
            for index in range(first, first + samples)
        ]
    return requests


class TokenRate:
    """How many tokens a second were sampled since it was made, as a number that progress shows."""

    def __init__(self) -> None:
        self._started, self._num_tokens = time.monotonic(), 0

    def __call__(self, rollout: Rollout) -> dict[str, float]:
        """Count a rollout."""
        self._num_tokens += len(rollout.completion_ids)
        return {"tokens/s": self._num_tokens / max(time.monotonic() - self._started, 1e-9)}


def write_rollouts(
    engine: Generator,
    requests: Sequence[Request],
    sampling: Sampling,
    out: Path,
    *,
    made_from: str,
    on_rollout: Callable[[Rollout], None] = lambda rollout: None,
    reporter: Reporter = SILENT,
    title: str = "generate",
) -> list[Rollout]:
    """Sample what the artefact at `out` does not hold yet; give all its rollouts, in the requests' order.

    Each rollout goes to `on_rollout` as it finishes, for instance to a grader that works while others are sampled.

    Requests go to the engine in fixed portions, and a portion is kept whole or sampled again: what is batched with what
    is then the same however often the stage is killed, and so is the last bit of every log-probability.
    """
    if not store.is_finished(out, store.ROLLOUTS, made_from):
        with store.ArtefactWriter(out, store.ROLLOUTS, made_from, unit=SAMPLED_AT_ONCE) as writer:
            done = len(writer.done)
            with reporter.task(title, len(requests), done=done) as advance:
                rate = TokenRate()
                for start in range(done, len(requests), SAMPLED_AT_ONCE):
                    portion = requests[start : start + SAMPLED_AT_ONCE]
                    finished = {}
                    for rollout in engine.generate(portion, sampling):
                        finished[rollout.problem_id, rollout.sample_index] = rollout
                        on_rollout(rollout)
                        advance(1, **rate(rollout))
                    writer.append(finished[request.problem_id, request.sample_index] for request in portion)
            writer.finish()
    return store.read_artefact(out, store.ROLLOUTS)


class Grading:
    """Grades rollouts in the background, from the moment they are added.

    Args:
        pool: the grader.
        problems: by id.
    """

    def __init__(self, pool: GraderPool, problems: Mapping[str, Problem]) -> None:
        self._pool, self._problems = pool, problems
        self._waiting: list[Rollout] = []
        self._started: dict[tuple[str, int], tuple[Future[list[Verdict]], int]] = {}

    def add(self, rollout: Rollout) -> None:
        """Take a rollout; every `GRADED_TOGETHER` of them go to the grader's processes.

        Raises:
            BadInput: it answers none of the problems.
        """
        if rollout.problem_id not in self._problems:
            raise BadInput(
                f"rollout of problem {rollout.problem_id!r}: expected one of the {len(self._problems)} problems given; "
                "give grade the problems that generate was given"
            )
        self._waiting.append(rollout)
        if len(self._waiting) == GRADED_TOGETHER:
            self._start()

    def verdicts(self, rollouts: Sequence[Rollout]) -> list[Verdict]:
        """Give the verdicts on some rollouts, in order; those that were not added before are added now."""
        known = self._started.keys() | {_key(rollout) for rollout in self._waiting}
        for rollout in rollouts:
            if _key(rollout) not in known:
                self.add(rollout)
        self._start()
        found = (self._started.pop(_key(rollout)) for rollout in rollouts)
        return [future.result()[index] for future, index in found]

    def _start(self) -> None:
        asked = [(rollout.completion, self._problems[rollout.problem_id]) for rollout in self._waiting]
        future = self._pool.submit([(text, problem.reference, problem.question) for text, problem in asked])
        self._started |= {_key(rollout): (future, index) for index, rollout in enumerate(self._waiting)}
        self._waiting = []


def _key(rollout: Rollout) -> tuple[str, int]:
    return rollout.problem_id, rollout.sample_index


def write_scored(
    grading: Grading,
    rollouts: Sequence[Rollout],
    config: Config,
    out: Path,
    *,
    made_from: str,
    reporter: Reporter = SILENT,
    title: str = "grade",
) -> list[ScoredRollout]:
    """Grade what the artefact at `out` does not hold yet; give all its scored rollouts, in the rollouts' order.

    Raises:
        BadInput: a rollout of an unknown problem.
        StageFailed: the grader itself failed on more than `grader.max_error_share` of them.
    """
    if not store.is_finished(out, store.SCORED, made_from):
        with store.ArtefactWriter(out, store.SCORED, made_from) as writer:
            scored = writer.done
            with reporter.task(title, len(rollouts), done=len(scored)) as advance:
                for start in range(len(scored), len(rollouts), GRADED_AT_ONCE):
                    portion = rollouts[start : start + GRADED_AT_ONCE]
                    part = [
                        _scored(rollout, verdict, config)
                        for rollout, verdict in zip(portion, grading.verdicts(portion), strict=True)
                    ]
                    writer.append(part)
                    scored += part
                    advance(len(part))
            failure = _grader_failure(scored, config.grader.max_error_share)
            if failure:
                # Not kept: run again with a grader that works, the stage must not find these verdicts.
                writer.discard()
                raise StageFailed(f"{out}: {failure}")
            writer.finish()
    return store.read_artefact(out, store.SCORED)


def _scored(rollout: Rollout, verdict: Verdict, config: Config) -> ScoredRollout:
    budget = overlong_budget(config)
    reward = reward_of(verdict, rollout, config.reward, overlong_budget_tokens=budget)
    return ScoredRollout(rollout=rollout, verdict=verdict, reward=reward)


def _grader_failure(scored: Sequence[ScoredRollout], max_error_share: float) -> str:
    """Say what is wrong where the grader itself failed on too large a share; "" where it did not."""
    errors = [item.verdict for item in scored if item.verdict.status is Status.ERROR]
    if len(errors) <= max_error_share * len(scored):
        return ""
    return (
        f"the grader itself failed on {len(errors)} of {len(scored)} rollouts, more than grader.max_error_share="
        f"{max_error_share:g} allows; first: {errors[0].detail[:DETAIL_SHOWN]}"
    )


def overlong_budget(config: Config) -> int:
    """Give the token budget that the soft overlong penalty refers to; 0 where it is off."""
    return config.generator.max_new_tokens if config.learner.truncation == "penalty" else 0


def open_pool(settings: GraderSettings) -> GraderPool:
    """Start the sandboxed grader that the settings name."""
    return GraderPool(
        grader=settings.name,
        num_workers=settings.num_workers,
        time_limit_s=settings.time_limit_s,
        memory_limit_bytes=settings.memory_limit_bytes,
    )
