"""Held-out rollouts for the report, with each token's log-probabilities, values and advantages.

Rollouts of a step are annotated with the checkpoint of that step, which sampled them.
"""

from collections.abc import Mapping, Sequence

from mathppo.batch import collate
from mathppo.learner.learner import Learner
from mathppo.prompts import PreTrainedTokenizerBase, special_ids
from mathppo.records import Problem, ScoredRollout
from mathppo.report import RolloutView

NUM_ANNOTATED = 30
"""Rollouts shown of each policy."""


def choose_rollouts(scored: Sequence[ScoredRollout], count: int = NUM_ANNOTATED) -> list[ScoredRollout]:
    """Return `count` rollouts in their order, taken from each verdict status equally so that rare ones are shown."""
    num_seen: dict[str, int] = {}
    rounds = []
    for index, item in enumerate(scored):
        num_seen[item.verdict.status] = num_seen.get(item.verdict.status, 0) + 1
        rounds.append((num_seen[item.verdict.status], index))
    return [scored[index] for _, index in sorted(sorted(rounds)[:count], key=lambda item: item[1])]


def annotate(
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    problems: Mapping[str, Problem],
    scored: Sequence[ScoredRollout],
) -> list[RolloutView]:
    """Return views of rollouts that the learner's policy sampled; `problems` are given by id."""
    experience = learner.experience(collate(scored, pad_id=special_ids(tokenizer).pad))
    assert experience.old is not None
    has_critic = learner.critic is not None
    views = []
    for row, item in enumerate(scored):
        length, problem = len(item.rollout.completion_ids), problems[item.rollout.problem_id]
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
