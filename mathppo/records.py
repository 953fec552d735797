"""What is written down between stages: `Problem → Rollout → ScoredRollout`.

Every record is frozen, refuses unknown fields, and carries its schema version as its tag (`"schema": "rollout/1"`).
Lengths that must agree are checked where the record is built. `Verdict` comes from `graders`.
"""

import enum
import math

import msgspec

from graders.verdict import Verdict
from mathppo.errors import BadInput


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="schema"):
    """Base of all records on disk."""


class Problem(Record, frozen=True, tag="problem/1"):
    """A question with a reference answer.

    Args:
        id: unique and stable within its source.
        question: the text a model is shown.
        reference: the right answer, in the form the grader reads.
        family: kind of problem, for instance `"linear"`, or the subject of a benchmark problem; "" where unknown.
        level: difficulty from 1; 0 where unknown.
        canonical: canonical form; two problems with the same one are one problem.
        demonstration: a worked derivation that ends in the boxed answer; "" where there is none.
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
    """Why sampling ended, as the engine said it."""

    STOP = "stop"
    """Sampled a stop token: terminated."""
    LENGTH = "length"
    """Ran out of token budget: truncated."""


class Rollout(Record, frozen=True, tag="rollout/1"):
    """One completion for one problem, exactly as sampled.

    Args:
        problem_id: the problem.
        sample_index: which of the problem's samples, from 0.
        prompt_ids: P token ids, at least one.
        completion_ids: T token ids, at least one; the stop token included where it was sampled.
        completion: the decoded completion, special tokens left out.
        behaviour_logprobs: T log-probabilities in nats under the behaviour policy, at its temperature and filters.
        finish_reason: terminated or truncated.
        policy_step: number of updates that the behaviour policy had seen.
        seed: the sample's own seed.
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
    def terminated(self) -> bool:
        return self.finish_reason is FinishReason.STOP

    @property
    def truncated(self) -> bool:
        return self.finish_reason is FinishReason.LENGTH


class ScoredRollout(Record, frozen=True, tag="scored_rollout/1"):
    """A rollout with its verdict and its terminal reward.

    Args:
        rollout: as sampled.
        verdict: what the grader said.
        reward: terminal reward, finite; None where the grader itself failed, and the rollout leaves the losses.
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
