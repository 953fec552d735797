"""From a verdict to the terminal reward, term by term.

The reward is paid on the completion's last token and nowhere else. A grader's own failure pays nothing and takes
nothing: the rollout leaves the losses. Two controls, `random` and `format`, show what part of a gain the verifier is
not needed for (Shao et al. 2025, "Spurious Rewards", arXiv:2506.10947).
"""

import random

from graders.verdict import Status, Verdict
from mathppo.config import RewardSettings
from mathppo.records import Rollout

STATES_NO_ANSWER = (Status.NO_ANSWER, Status.UNPARSABLE)
"""Verdicts on completions that state no answer, or none that can be read."""


def reward_of(
    verdict: Verdict, rollout: Rollout, settings: RewardSettings, *, overlong_budget_tokens: int = 0
) -> float | None:
    """Give the terminal reward of one completion, what it earned minus its penalties; None where the grader failed.

    Args:
        verdict: the grader's.
        rollout: what was graded.
        settings: the kind of reward and its values.
        overlong_budget_tokens: the completion's token budget, where the soft overlong penalty is on; else 0.
    """
    if verdict.status is Status.ERROR:
        return None
    penalties = penalties_of(verdict, rollout, settings, overlong_budget_tokens=overlong_budget_tokens)
    return _earned(verdict, rollout, settings) - sum(penalties.values())


def penalties_of(
    verdict: Verdict, rollout: Rollout, settings: RewardSettings, *, overlong_budget_tokens: int = 0
) -> dict[str, float]:
    """Give what each penalty that is switched on takes off this completion, by its name; arguments as in `reward_of`.

    `missing_stop_penalty` goes by the flag that the engine set, never by the ids: a completion may end in a stop token
    that is not the tokenizer's own.
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
    """Give the soft overlong penalty: 0 up to the buffer's start, then linear to `overlong_penalty` at the budget.

    Source: DAPO (Yu et al. 2025, arXiv:2503.14476), equation 13.
    """
    into_buffer = num_tokens - (budget_tokens - settings.overlong_buffer_tokens)
    return settings.overlong_penalty * min(max(into_buffer / settings.overlong_buffer_tokens, 0.0), 1.0)


def _earned(verdict: Verdict, rollout: Rollout, settings: RewardSettings) -> float:
    if settings.kind == "random":
        # The sample's own seed, so that the coin falls the same way whenever it is thrown again.
        earned = random.Random(f"reward {rollout.seed}").random() < 0.5
    elif settings.kind == "format":
        earned = verdict.status not in (*STATES_NO_ANSWER, Status.OVER_BUDGET)
    else:
        earned = verdict.status is Status.CORRECT
    return settings.correct if earned else settings.incorrect
