"""Records of the logs of samples and verdicts, each with a key of everything that decides it.

A sample's key is the hash of weights, prompt ids, sampling, seed and sample index, so a changed checkpoint or prompt
never finds an old entry. A verdict's key is the hash of the sample's key, the grader with its limits, and the
reference, so another grader or a corrected reference grades the sample again.
"""

from graders.verdict import Verdict
from mathppo.records import FinishReason, Record
from mathppo.storage.store import Kind


class Sample(Record, frozen=True, tag="sample/1"):
    """One completion of one benchmark problem, with everything that grading needs: the log alone can be graded again.

    Args:
        key: of the sample.
        identity: of the evaluation that asked for it, as in its `Result`.
        benchmark: the problem set.
        problem_id: the problem.
        sample_index: which of the problem's samples, from 0.
        completion: the decoded completion, special tokens left out.
        num_tokens: completion length, stop token included.
        finish_reason: terminated or truncated.
        policy_step: number of updates that the policy had seen.
        seed: seed of this sample.
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
    """The verdict on one logged sample.

    Args:
        key: of the verdict.
        sample: key of the sample.
        reference: the reference it was graded against.
        verdict: the grader's verdict.
    """

    key: str
    sample: str
    reference: str
    verdict: Verdict


SAMPLES = Kind("samples", Sample)
GRADED_SAMPLES = Kind("graded_samples", GradedSample)
