"""Records that stages exchange: `Problem → Rollout → ScoredRollout`.

Every record is frozen, rejects unknown fields, and has its schema version as its tag (`"schema": "rollout/1"`). Lengths
that must agree are checked on construction. `Verdict` comes from `graders`.
"""

import enum
import math

import msgspec

from graders.verdict import Verdict
from mathppo.errors import BadInput


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="schema"):
    """Base of all records."""


class Problem(Record, frozen=True, tag="problem/1"):
    """A question with a reference answer.

    Args:
        id: unique and stable within its source.
        question: the text shown to the model.
        reference: the right answer, in the form the grader reads.
        family: kind of problem, for instance `"linear"`, or the subject of a benchmark problem; "" if unknown.
        level: difficulty from 1; 0 if unknown.
        canonical: canonical form; problems with the same canonical form are the same problem.
        demonstration: a worked derivation that ends in the boxed answer; "" if there is none.
    """

    id: str
    question: str
    reference: str
    family: str = ""
    level: int = 0
    canonical: str = ""
    demonstration: str = ""

    def __post_init__(self) -> None:
        for field in ("id", "question", "reference"):
            if not getattr(self, field).strip():
                raise BadInput(f"problem {self.id!r}: expected a non-empty {field}, got {getattr(self, field)!r}")


class FinishReason(enum.StrEnum):
    """The reason why sampling ended, as reported by the engine."""

    STOP = "stop"
    """Sampled a stop token: terminated."""
    LENGTH = "length"
    """Ran out of token budget: truncated."""


SampleKey = tuple[str, int]
"""Problem id and sample index: unique among the rollouts of one artefact."""


class Rollout(Record, frozen=True, tag="rollout/1"):
    """One completion for one problem, exactly as sampled.

    Args:
        problem_id: the problem.
        sample_index: which of the problem's samples, from 0.
        prompt_ids: P token ids, at least one.
        completion_ids: T token ids, at least one; includes the stop token if it was sampled.
        completion: the decoded completion, special tokens left out.
        behaviour_logprobs: T log-probabilities in nats under the behaviour policy, at its temperature and filters.
        finish_reason: terminated or truncated.
        policy_step: number of updates that the behaviour policy had seen.
        seed: seed of this sample.
    """

    problem_id: str
    sample_index: int
    prompt_ids: list[int]
    completion_ids: list[int]
    completion: str
    behaviour_logprobs: list[float]
    finish_reason: FinishReason
    policy_step: int
    seed: int

    def __post_init__(self) -> None:
        where = f"rollout {self.problem_id!r} sample {self.sample_index}"
        if not self.prompt_ids or not self.completion_ids:
            raise BadInput(
                f"{where}: expected at least one prompt id and one completion id, got {len(self.prompt_ids)} and "
                f"{len(self.completion_ids)}; re-run generate"
            )
        if len(self.behaviour_logprobs) != len(self.completion_ids):
            raise BadInput(
                f"{where}: expected as many behaviour_logprobs as completion_ids ({len(self.completion_ids)}), got "
                f"{len(self.behaviour_logprobs)}; re-run generate"
            )
        if not all(math.isfinite(x) for x in self.behaviour_logprobs):
            raise BadInput(f"{where}: expected finite behaviour_logprobs; the model's logits are broken")

    @property
    def key(self) -> SampleKey:
        return self.problem_id, self.sample_index

    @property
    def terminated(self) -> bool:
        return self.finish_reason is FinishReason.STOP

    @property
    def truncated(self) -> bool:
        return self.finish_reason is FinishReason.LENGTH


class Score(Record, frozen=True, tag="scored_rollout/2"):
    """Verdict and reward of one rollout, as stored: it refers to the rollout by its key.

    Args:
        problem_id: the problem.
        sample_index: which of the problem's samples.
        verdict: the grader's verdict.
        reward: as in `ScoredRollout`.
    """

    problem_id: str
    sample_index: int
    verdict: Verdict
    reward: float | None

    @property
    def key(self) -> SampleKey:
        return self.problem_id, self.sample_index


class ScoredRollout(Record, frozen=True, tag=False):
    """A rollout with its verdict and its terminal reward, in memory; `score` is the part that is stored.

    Args:
        rollout: as sampled.
        verdict: the grader's verdict.
        reward: terminal reward, finite; None if the grader itself failed, and the rollout is left out of the losses.
    """

    rollout: Rollout
    verdict: Verdict
    reward: float | None

    def __post_init__(self) -> None:
        if self.reward is not None and not math.isfinite(self.reward):
            raise BadInput(
                f"rollout {self.rollout.problem_id!r} sample {self.rollout.sample_index}: expected a finite reward, "
                f"got {self.reward}"
            )

    @property
    def score(self) -> Score:
        problem_id, sample_index = self.rollout.key
        return Score(problem_id=problem_id, sample_index=sample_index, verdict=self.verdict, reward=self.reward)
