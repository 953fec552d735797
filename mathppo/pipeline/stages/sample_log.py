"""A policy's samples of benchmarks: drawn where the log does not hold them yet, and logged."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mathppo.evaluate.samples import SAMPLES, Sample
from mathppo.generator.base import Generator, Request, Sampling
from mathppo.pipeline.stages.sample_and_grade import TokenRate
from mathppo.progress import SILENT, Reporter
from mathppo.prompts import PreTrainedTokenizerBase
from mathppo.records import Rollout
from mathppo.storage import store
from mathppo.storage.append_log import AppendLog, read_log

SAMPLED_AT_ONCE = 512
"""Samples that are drawn together and logged together: what a kill may cost, and what makes a resumed run the same."""


@dataclass(frozen=True)
class Policy:
    """A policy that is evaluated.

    Args:
        engine: holds its weights.
        tokenizer: its own.
        name: what a person calls it.
        weights: identity of the weights.
        step: number of updates that they have seen.
    """

    engine: Generator
    tokenizer: PreTrainedTokenizerBase
    name: str
    weights: str
    step: int


def draw_samples(
    policy: Policy,
    requests: Sequence[Request],
    sampling: Sampling,
    log: Path,
    *,
    benchmark: str,
    identity: str,
    reporter: Reporter = SILENT,
) -> list[Sample]:
    """Sample what the log does not hold yet; give all samples in the requests' order.

    A portion of requests that is not in the log as a whole is drawn again as a whole, and what is missing is added:
    what is batched with what, and so the last bit, does not depend on where an earlier run was killed.
    """
    keys = [_sample_key(policy, request, sampling) for request in requests]
    wanted = set(keys)
    with AppendLog(log, SAMPLES) as out:
        found = {sample.key: sample for sample in read_log(log, SAMPLES) if sample.key in wanted}
        done = sum(key in found for key in keys)
        with reporter.task(f"{benchmark} answers", len(requests), done=done) as advance:
            rate = TokenRate()
            for start in range(0, len(requests), SAMPLED_AT_ONCE):
                at_once = slice(start, start + SAMPLED_AT_ONCE)
                portion = dict(zip(keys[at_once], requests[at_once], strict=True))
                missing = [key for key in portion if key not in found]
                if not missing:
                    continue
                drawn: dict[tuple[str, int], Rollout] = {}
                new_ones = {(portion[key].problem_id, portion[key].sample_index) for key in missing}
                for rollout in policy.engine.generate(list(portion.values()), sampling):
                    drawn[rollout.problem_id, rollout.sample_index] = rollout
                    advance(int((rollout.problem_id, rollout.sample_index) in new_ones), **rate(rollout))
                new = [
                    _logged(key, drawn[portion[key].problem_id, portion[key].sample_index], benchmark, identity)
                    for key in missing
                ]
                out.append(new)
                found |= {sample.key: sample for sample in new}
    return [found[key] for key in keys]


def _sample_key(policy: Policy, request: Request, sampling: Sampling) -> str:
    return store.fingerprint(
        weights=policy.weights,
        prompt=request.prompt_ids,
        sampling=sampling,
        seed=request.seed,
        sample_index=request.sample_index,
    )


def _logged(key: str, rollout: Rollout, benchmark: str, identity: str) -> Sample:
    return Sample(
        key=key,
        identity=identity,
        benchmark=benchmark,
        problem_id=rollout.problem_id,
        sample_index=rollout.sample_index,
        completion=rollout.completion,
        num_tokens=len(rollout.completion_ids),
        finish_reason=rollout.finish_reason,
        policy_step=rollout.policy_step,
        seed=rollout.seed,
    )
