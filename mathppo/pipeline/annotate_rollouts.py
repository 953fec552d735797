"""Rollouts for a person to read, with what the actor and the critic thought of each token.

They are held-out rollouts of the warm start and of the last policy, looked at through the very checkpoints that sampled
them, so that every number belongs to the policy that it describes.
"""

from collections.abc import Sequence

from mathppo.batch import collate
from mathppo.evaluate.accuracy import Mode
from mathppo.learner.experience import OldPolicy
from mathppo.learner.learner import Learner
from mathppo.pipeline.run_directory import RunDirectory
from mathppo.prompts import PreTrainedTokenizerBase, special_ids
from mathppo.records import Problem, ScoredRollout
from mathppo.report import RolloutView
from mathppo.storage import store

NUM_VIEWS = 30
"""Rollouts shown of each policy; verdict statuses take turns, so that rare ones are seen."""


def views_of(
    learner: Learner, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], run: RunDirectory
) -> list[RolloutView]:
    """Give views of some sampled held-out rollouts of the learner's step, those of rare verdicts before others."""
    scored = _some_of_each_status(
        store.read_artefact(run.evaluation(learner.step) / Mode.SAMPLED / "scored", store.SCORED)
    )
    by_id = {problem.id: problem for problem in problems}
    experience = learner.experience(collate(scored, pad_id=special_ids(tokenizer).pad))
    assert isinstance(experience.old, OldPolicy)
    views = []
    for row, item in enumerate(scored):
        length, problem = len(item.rollout.completion_ids), by_id[item.rollout.problem_id]
        has_critic = learner.critic is not None
        views.append(
            RolloutView(
                problem_id=problem.id,
                question=problem.question,
                reference=problem.reference,
                prompt=[str(tokenizer.decode([token])) for token in item.rollout.prompt_ids],
                completion=[str(tokenizer.decode([token])) for token in item.rollout.completion_ids],
                behaviour_logprobs=item.rollout.behaviour_logprobs,
                old_logprobs=experience.old.logprobs[row, :length].tolist(),
                values=experience.values[row, :length].tolist() if has_critic else None,
                advantages=experience.raw_advantages[row, :length].tolist() if has_critic else None,
                verdict=item.verdict,
                reward=item.reward,
                truncated=item.rollout.truncated,
                policy_step=item.rollout.policy_step,
            )
        )
    return views


def _some_of_each_status(scored: Sequence[ScoredRollout], count: int = NUM_VIEWS) -> list[ScoredRollout]:
    """Give the first ones of each status, as many of each as are there until the count is reached."""
    place: dict[str, int] = {}
    turns = []
    for index, item in enumerate(scored):
        place[item.verdict.status] = place.get(item.verdict.status, 0) + 1
        turns.append((place[item.verdict.status], index))
    return [scored[index] for _, index in sorted(sorted(turns)[:count], key=lambda turn: turn[1])]
