"""The log of samples and the log of verdicts: append-only, one line each, keyed by all that decides them.

A sample's key is the hash of weights, prompt ids, sampling, seed and sample index: a changed checkpoint or prompt has
other keys and never meets an old entry. A verdict's key is the hash of the sample's key, the grader with its limits,
and the reference: another grader, or a corrected answer, grades anew.
"""

from typing import NamedTuple

from graders.verdict import Verdict
from mathppo.records import FinishReason, Record
from mathppo.storage import store
from mathppo.storage.store import Kind


class Sample(Record, frozen=True, tag="sample/1"):
    """One completion of one benchmark problem, with what grading needs: a log can be graded again on its own.

    Args:
        key: of the sample.
        identity: of the evaluation that asked for it, as its `Result` has it.
        benchmark: the problem set.
        problem_id: the problem.
        sample_index: which of the problem's samples, from 0.
        completion: the decoded completion, special tokens left out.
        num_tokens: completion length, stop token included.
        finish_reason: terminated or truncated.
        policy_step: number of updates that the policy had seen.
        seed: the sample's own.
    """

    key: str
    identity: str
    benchmark: str
    problem_id: str
    sample_index: int
    completion: str
    num_tokens: int
    finish_reason: FinishReason
    policy_step: int
    seed: int


class GradedSample(Record, frozen=True, tag="graded_sample/1"):
    """One verdict on one logged sample.

    Args:
        key: of the verdict.
        sample: key of the sample.
        reference: what it was held against.
        verdict: what the grader said.
    """

    key: str
    sample: str
    reference: str
    verdict: Verdict


SAMPLES = Kind("samples", Sample, True)
GRADED_SAMPLES = Kind("graded_samples", GradedSample, True)


class GraderIdentity(NamedTuple):
    """What decides a verdict, beside the completion and the reference.

    Args:
        name: as `grader.name` has it.
        source: sha256 of a grader's file; "" for a shipped or installed one.
        version: of the package that grades.
        time_limit_s: of one completion.
        memory_limit_bytes: of a worker.
    """

    name: str
    source: str
    version: str
    time_limit_s: float
    memory_limit_bytes: int


def graded_key(sample_key: str, grader: GraderIdentity, reference: str, question: str) -> str:
    """Give the key of a verdict."""
    return store.fingerprint(sample=sample_key, grader=grader, reference=reference, question=question)
