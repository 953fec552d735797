"""Terminal reward of a verdict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import scored_rollout

from graders.verdict import Status
from mathppo.config import RewardSettings
from mathppo.learner.diagnostics import of_rollouts
from mathppo.reward import overlong_penalty, penalties_of, reward_of


def reward(status: Status, **settings: object) -> float | None:
    item = scored_rollout(status=status)
    return reward_of(item.verdict, item.rollout, RewardSettings(**settings))  # type: ignore[arg-type]


def test_only_a_correct_verdict_is_rewarded() -> None:
    earned = {status: reward(status, correct=2.0, incorrect=-1.0) for status in Status}
    assert earned == {
        Status.CORRECT: 2.0,
        Status.INCORRECT: -1.0,
        Status.NO_ANSWER: -1.0,
        Status.UNPARSABLE: -1.0,
        Status.OVER_BUDGET: -1.0,
        Status.ERROR: None,
    }


@pytest.mark.parametrize("kind", ["random", "format"])
def test_grader_error_has_no_reward_under_any_control(kind: str) -> None:
    assert reward(Status.ERROR, kind=kind) is None


def test_format_control_rewards_any_readable_answer() -> None:
    assert [s for s in Status if reward(s, kind="format")] == [Status.CORRECT, Status.INCORRECT]


def test_random_control_is_fair_repeatable_and_independent_of_the_verdict() -> None:
    def toss(seed: int, status: Status) -> float | None:
        item = scored_rollout(status=status, seed=seed)
        return reward_of(item.verdict, item.rollout, RewardSettings(kind="random"))

    right, wrong = ([toss(seed, status) for seed in range(2000)] for status in (Status.CORRECT, Status.INCORRECT))
    assert right == wrong
    assert 0.45 < sum(x or 0.0 for x in right) / 2000 < 0.55


def test_soft_overlong_penalty_matches_the_paper() -> None:
    settings = RewardSettings(overlong_buffer_tokens=20, overlong_penalty=1.0)
    assert [overlong_penalty(n, 100, settings) for n in (79, 80, 90, 100)] == [0.0, 0.0, 0.5, 1.0]


@given(n=st.integers(1, 300), budget=st.integers(1, 300), buffer=st.integers(1, 100), penalty=st.floats(0, 10))
def test_overlong_penalty_grows_with_length_and_is_bounded(n: int, budget: int, buffer: int, penalty: float) -> None:
    settings = RewardSettings(overlong_buffer_tokens=buffer, overlong_penalty=penalty)
    assert 0.0 <= overlong_penalty(n, budget, settings) <= overlong_penalty(n + 1, budget, settings) <= penalty


def test_overlong_penalty_applies_only_if_it_is_on() -> None:
    item = scored_rollout(completion_ids=[5] * 10)
    settings = RewardSettings(overlong_buffer_tokens=4, overlong_penalty=0.5)
    assert reward_of(item.verdict, item.rollout, settings) == 1.0
    assert reward_of(item.verdict, item.rollout, settings, overlong_budget_tokens=10) == 0.5


def test_penalties_are_named_and_summed() -> None:
    settings = RewardSettings(
        format_penalty=0.25, missing_stop_penalty=0.5, overlong_buffer_tokens=4, overlong_penalty=1.0
    )
    cut = scored_rollout(completion_ids=[5] * 8, truncated=True, status=Status.NO_ANSWER, reward=0.0)
    found = penalties_of(cut.verdict, cut.rollout, settings, overlong_budget_tokens=8)
    assert found == {"format_penalty": 0.25, "missing_stop_penalty": 0.5, "overlong_penalty": 1.0}
    assert reward_of(cut.verdict, cut.rollout, settings, overlong_budget_tokens=8) == -1.75
    right = scored_rollout(completion_ids=[5] * 4)
    assert set(penalties_of(right.verdict, right.rollout, settings).values()) == {0.0}
    assert reward_of(right.verdict, right.rollout, settings, overlong_budget_tokens=8) == 1.0


@pytest.mark.parametrize(
    ("status", "penalised"),
    [(s, s in (Status.NO_ANSWER, Status.UNPARSABLE)) for s in Status if s is not Status.ERROR],
)
def test_format_penalty_applies_if_no_answer_can_be_read(status: Status, penalised: bool) -> None:
    base = reward(status)
    assert base is not None
    assert reward(status, format_penalty=0.5) == base - 0.5 * penalised


def test_missing_stop_penalty_depends_on_the_flag_and_not_on_the_last_id() -> None:
    settings = RewardSettings(missing_stop_penalty=0.5)
    other_stop = scored_rollout(completion_ids=[5, 9])  # ends in a stop token other than the tokenizer's end token
    looks_ended = scored_rollout(completion_ids=[5, 2], truncated=True)
    assert reward_of(other_stop.verdict, other_stop.rollout, settings) == 1.0
    assert reward_of(looks_ended.verdict, looks_ended.rollout, settings) == 0.5


def test_penalties_that_are_on_have_metrics() -> None:
    scored = [
        scored_rollout(completion_ids=[5] * 8, truncated=True, status=Status.NO_ANSWER, reward=0.0),
        scored_rollout(completion_ids=[5] * 4),
        scored_rollout(reward=None),
    ]
    names = {"format_penalty_mean", "missing_stop_penalty_mean", "overlong_penalty_mean"}
    settings = RewardSettings(format_penalty=0.5, missing_stop_penalty=0.25, overlong_buffer_tokens=4)
    row = of_rollouts(scored, settings, overlong_budget_tokens=8)
    assert {name: row[name] for name in names} == {
        "format_penalty_mean": 0.25,
        "missing_stop_penalty_mean": 0.125,
        "overlong_penalty_mean": 0.5,
    }
    assert not names & of_rollouts(scored, RewardSettings()).keys()
    assert not names & of_rollouts(scored[2:], settings).keys()
