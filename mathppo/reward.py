"""Terminal reward of a completion, term by term, from its verdict.

The reward is on the completion's last token. If the grader itself failed, there is no reward and the rollout is left
out of the losses. Two controls, `random` and `format`, show the part of a gain that does not need the verifier.

Source: Shao et al. 2025, "Spurious Rewards", https://arxiv.org/abs/2506.10947 (the controls).
"""

import random

from graders.verdict import Status, Verdict
from mathppo.config import RewardSettings
from mathppo.records import Rollout

STATES_NO_ANSWER = (Status.NO_ANSWER, Status.UNPARSABLE)
"""Verdicts on completions without an answer that can be read."""


def reward_of(
    verdict: Verdict, rollout: Rollout, settings: RewardSettings, *, overlong_budget_tokens: int = 0
) -> float | None:
    """Return the terminal reward of one completion minus its penalties; None if the grader itself failed.

    Args:
        verdict: the grader's verdict.
        rollout: the completion.
        settings: the kind of reward and its values.
        overlong_budget_tokens: the completion's token budget if the soft overlong penalty is on, else 0.
    """
    if verdict.status is Status.ERROR:
        return None
    penalties = penalties_of(verdict, rollout, settings, overlong_budget_tokens=overlong_budget_tokens)
    return _earned(verdict, rollout, settings) - sum(penalties.values())


def penalties_of(
    verdict: Verdict, rollout: Rollout, settings: RewardSettings, *, overlong_budget_tokens: int = 0
) -> dict[str, float]:
    """Return the penalties of one completion by name, those that are switched on; arguments as in `reward_of`.

    `missing_stop_penalty` depends on the flag that the engine set, not on the ids: a completion may end in a stop token
    other than the tokenizer's end token.
    """
    penalties = {}
    if settings.format_penalty:
        penalties["format_penalty"] = settings.format_penalty * (verdict.status in STATES_NO_ANSWER)
    if settings.missing_stop_penalty:
        penalties["missing_stop_penalty"] = settings.missing_stop_penalty * rollout.truncated
    if overlong_budget_tokens:
        length = len(rollout.completion_ids)
        penalties["overlong_penalty"] = overlong_penalty(length, overlong_budget_tokens, settings)
    return penalties


def overlong_penalty(num_tokens: int, budget_tokens: int, settings: RewardSettings) -> float:
    """Return the soft overlong penalty: 0 up to the buffer's start, then linear to `overlong_penalty` at the budget.

    Args:
        num_tokens: completion length, stop token included.
        budget_tokens: the completion's token budget.
        settings: the penalty and the buffer before the budget.

    Source: DAPO (Yu et al. 2025, https://arxiv.org/abs/2503.14476), equation 13.
    """
    into_buffer = num_tokens - (budget_tokens - settings.overlong_buffer_tokens)
    return settings.overlong_penalty * min(max(into_buffer / settings.overlong_buffer_tokens, 0.0), 1.0)


def _earned(verdict: Verdict, rollout: Rollout, settings: RewardSettings) -> float:
    if settings.kind == "random":
        # Seeded by the sample, so that grading again gives the same reward.
        earned = random.Random(f"reward {rollout.seed}").random() < 0.5
    elif settings.kind == "format":
        earned = verdict.status not in (*STATES_NO_ANSWER, Status.OVER_BUDGET)
    else:
        earned = verdict.status is Status.CORRECT
    return settings.correct if earned else settings.incorrect
