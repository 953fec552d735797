"""Stage `generate`: problems and a policy to an artefact of rollouts."""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mathppo.config import Config
from mathppo.errors import BadInput
from mathppo.generator.base import Generator, Request, Sampling
from mathppo.progress import SILENT, Reporter
from mathppo.prompts import PreTrainedTokenizerBase, encode_prompt, special_ids
from mathppo.records import Problem, Rollout
from mathppo.seeds import derive_seed
from mathppo.storage import store

PORTION = 1024
"""Requests per call of the engine: the most work that a kill loses."""

MAX_REQUESTS = 1_000_000
"""Limit for one iteration or one problem set: requests and their results are held in memory, about 3 KiB each."""


def sampling_of(config: Config, tokenizer: PreTrainedTokenizerBase, *, temperature: float | None = None) -> Sampling:
    """Return the sampling of the run's completions, at another temperature if one is given."""
    return Sampling(
        max_new_tokens=config.generator.max_new_tokens,
        temperature=config.generator.temperature if temperature is None else temperature,
        top_p=config.generator.top_p,
        top_k=config.generator.top_k,
        stop_token_ids=tuple(dict.fromkeys((special_ids(tokenizer).eos, *config.generator.stop_token_ids))),
        stop=tuple(config.generator.stop),
    )


def choose_problems(problems: Sequence[Problem], iteration: int, count: int, seed: int) -> list[Problem]:
    """Return the problems of an iteration: consecutive blocks of an endless sequence of shuffled epochs."""
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


def check_size(name: str, num_problems: int, samples: int) -> None:
    """Check that the completions fit in memory, before the first is sampled.

    Raises:
        BadInput: more than `MAX_REQUESTS`.
    """
    if num_problems * samples > MAX_REQUESTS:
        raise BadInput(
            f"{name}: expected at most {MAX_REQUESTS:,} completions at once, got {num_problems:,} problems x "
            f"{samples:,} = {num_problems * samples:,}; ask for fewer problems or fewer samples of each"
        )


def make_requests(
    problems: Sequence[Problem],
    tokenizer: PreTrainedTokenizerBase,
    config: Config,
    *,
    samples: int,
    purpose: Sequence[int | str],
    template: str | None = None,
    system: str | None = None,
) -> list[Request]:
    """Return one request per problem and sample; a problem that occurs twice gets further samples.

    Args:
        problems: what to ask.
        tokenizer: the policy's tokenizer.
        config: of the run.
        samples: completions per problem.
        purpose: parts of each sample's seed, after the run's seed and before problem id and sample index.
        template: prompt template; None for the one in the settings.
        system: system prompt of a chat; None for the template's default.

    Raises:
        BadInput: more requests than fit in memory, or a prompt that the tokenizer cannot encode.
    """
    check_size("samples", len(problems), samples)
    requests, num_drawn = [], dict[str, int]()
    for problem in problems:
        prompt_ids = tuple(
            encode_prompt(problem, tokenizer, template=template or config.problems.template, system=system)
        )
        first = num_drawn.get(problem.id, 0)
        num_drawn[problem.id] = first + samples
        requests += [
            Request(
                problem_id=problem.id,
                sample_index=index,
                prompt_ids=prompt_ids,
                seed=derive_seed(config.run.seed, *purpose, problem.id, index),
            )
            for index in range(first, first + samples)
        ]
    return requests


class TokenRate:
    """Tokens sampled per second since construction, for the progress display."""

    def __init__(self) -> None:
        self._started, self._num_tokens = time.monotonic(), 0

    def __call__(self, rollout: Rollout) -> dict[str, float]:
        """Count a rollout and return the rate by its displayed name."""
        self._num_tokens += len(rollout.completion_ids)
        return {"tokens/s": self._num_tokens / max(time.monotonic() - self._started, 1e-9)}


def generate(
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
    """Sample the rollouts that the artefact at `out` lacks, and return all of them in the requests' order.

    Requests go to the engine in fixed portions, and an incomplete portion is sampled again: the composition of batches,
    and with it the last bit of every log-probability, does not depend on when the stage was killed.

    Args:
        engine: holds the policy.
        requests: the completions to sample.
        sampling: how to sample them.
        out: the artefact.
        made_from: fingerprint of everything that decides the rollouts.
        on_rollout: called with each new rollout as it finishes, for instance to grade it in the background.
        reporter: shows progress.
        title: name of the work in the progress display.
    """
    if store.is_finished(out, store.ROLLOUTS, made_from):
        return store.read_artefact(out, store.ROLLOUTS)
    with store.ArtefactWriter(out, store.ROLLOUTS, made_from, unit=PORTION) as writer:
        rollouts = writer.done
        with reporter.task(title, len(requests), done=len(rollouts)) as advance:
            rate = TokenRate()
            for start in range(len(rollouts), len(requests), PORTION):
                portion = requests[start : start + PORTION]
                finished = {}
                for rollout in engine.generate(portion, sampling):
                    finished[rollout.key] = rollout
                    on_rollout(rollout)
                    advance(1, **rate(rollout))
                new = [finished[request.problem_id, request.sample_index] for request in portion]
                writer.append(new)
                rollouts += new
        writer.finish()
    return rollouts
