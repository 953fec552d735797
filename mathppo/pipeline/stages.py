"""What a stage does to records, whoever calls it: the stage alone, or `train` with its engines warm.

Each writes one artefact and can be killed anywhere: what is finished is kept, and the rest is done by the next call.

Touches: artefacts, through the store.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from graders import GraderPool
from graders.verdict import Status
from mathppo import store
from mathppo.config import Config
from mathppo.errors import BadInput, StageFailed
from mathppo.generator.base import Generator, Request, Sampling
from mathppo.progress import SILENT, Reporter
from mathppo.prompts import PreTrainedTokenizerBase, encode_prompt, special_ids
from mathppo.records import Problem, Rollout, ScoredRollout
from mathppo.reward import reward_of
from mathppo.seeds import derive_seed

SAMPLED_AT_ONCE = 1024
"""Requests that an engine is given together: what a kill may cost."""

GRADED_AT_ONCE = 4096
"""Rollouts between two writes of the grade stage: what a kill may cost."""


def sampling_of(config: Config, tokenizer: PreTrainedTokenizerBase, *, temperature: float | None = None) -> Sampling:
    """Give the sampling of the run's completions, or the same at another temperature."""
    return Sampling(
        max_new_tokens=config.generator.max_new_tokens,
        temperature=config.generator.temperature if temperature is None else temperature,
        stop_token_ids=(special_ids(tokenizer).eos,),
    )


def choose_problems(problems: Sequence[Problem], iteration: int, count: int, seed: int) -> list[Problem]:
    """Give the problems of an iteration: consecutive blocks of an endless series of shuffles of them all."""
    if not problems:
        raise BadInput("problems: expected at least one, got none; run prepare with a source that has some")
    first, last = (divmod(position, len(problems)) for position in (iteration * count, (iteration + 1) * count - 1))
    chosen: list[Problem] = []
    for epoch in range(first[0], last[0] + 1):
        order = list(problems)
        random.Random(derive_seed(seed, "order", epoch)).shuffle(order)
        start = first[1] if epoch == first[0] else 0
        end = last[1] + 1 if epoch == last[0] else len(order)
        chosen += order[start:end]
    return chosen


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
    """
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


def write_rollouts(
    engine: Generator,
    requests: Sequence[Request],
    sampling: Sampling,
    out: Path,
    *,
    made_from: str,
    reporter: Reporter = SILENT,
    title: str = "generate",
) -> list[Rollout]:
    """Sample what the artefact at `out` does not hold yet; give all its rollouts, in the requests' order.

    Requests go to the engine in fixed portions, and a portion is kept whole or sampled again: what is batched with what
    is then the same however often the stage is killed, and so is the last bit of every log-probability.
    """
    if not store.is_finished(out, store.ROLLOUTS, made_from):
        with store.ArtefactWriter(out, store.ROLLOUTS, made_from, unit=SAMPLED_AT_ONCE) as writer:
            done = len(writer.done)
            with reporter.task(title, len(requests), done=done) as advance:
                for start in range(done, len(requests), SAMPLED_AT_ONCE):
                    portion = requests[start : start + SAMPLED_AT_ONCE]
                    finished = {}
                    for rollout in engine.generate(portion, sampling):
                        finished[rollout.problem_id, rollout.sample_index] = rollout
                        advance(1)
                    writer.append(finished[request.problem_id, request.sample_index] for request in portion)
            writer.finish()
    return store.read_artefact(out, store.ROLLOUTS)


def write_scored(
    pool: GraderPool,
    rollouts: Sequence[Rollout],
    problems: Mapping[str, Problem],
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
            missing = rollouts[len(writer.done) :]
            with reporter.task(title, len(rollouts), done=len(writer.done)) as advance:
                for start in range(0, len(missing), GRADED_AT_ONCE):
                    part = missing[start : start + GRADED_AT_ONCE]
                    writer.append(score(pool, part, problems, config))
                    advance(len(part))
            writer.finish()
    scored = store.read_artefact(out, store.SCORED)
    num_errors = sum(item.verdict.status is Status.ERROR for item in scored)
    if num_errors > config.grader.max_error_share * len(scored):
        example = next(item.verdict for item in scored if item.verdict.status is Status.ERROR)
        raise StageFailed(
            f"{out}: the grader itself failed on {num_errors} of {len(scored)} rollouts, more than "
            f"grader.max_error_share={config.grader.max_error_share:g} allows; first: {example.detail}"
        )
    return scored


def score(
    pool: GraderPool, rollouts: Sequence[Rollout], problems: Mapping[str, Problem], config: Config
) -> list[ScoredRollout]:
    """Grade completions and give each its terminal reward, in order."""
    for rollout in rollouts:
        if rollout.problem_id not in problems:
            raise BadInput(
                f"rollout of problem {rollout.problem_id!r}: expected one of the {len(problems)} problems given; give "
                "grade the problems that generate was given"
            )
    asked = [problems[rollout.problem_id] for rollout in rollouts]
    verdicts = pool.grade(
        [(r.completion, problem.reference, problem.question) for r, problem in zip(rollouts, asked, strict=True)]
    )
    penalised = config.learner.truncation == "penalty"
    budget = config.generator.max_new_tokens if penalised else 0
    return [
        ScoredRollout(
            rollout=rollout,
            verdict=verdict,
            reward=reward_of(verdict, rollout, config.reward, overlong_budget_tokens=budget),
        )
        for rollout, verdict in zip(rollouts, verdicts, strict=True)
    ]


def open_pool(config: Config) -> GraderPool:
    """Start the sandboxed grader that the settings name."""
    settings = config.grader
    return GraderPool(
        grader=settings.name,
        num_workers=settings.num_workers,
        time_limit_s=settings.time_limit_s,
        memory_limit_bytes=settings.memory_limit_bytes,
    )
