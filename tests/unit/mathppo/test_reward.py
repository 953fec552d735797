"""From a verdict to the terminal reward."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import scored_rollout

from graders.verdict import Status
from mathppo.config import RewardSettings
from mathppo.reward import overlong_penalty, reward_of


def reward(status: Status, **settings: object) -> float | None:
    item = scored_rollout(status=status)
    return reward_of(item.verdict, item.rollout, RewardSettings(**settings))  # type: ignore[arg-type]


def test_only_a_correct_verdict_earns() -> None:
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
def test_a_grader_error_earns_nothing_and_loses_nothing_under_any_control(kind: str) -> None:
    assert reward(Status.ERROR, kind=kind) is None


def test_the_format_control_pays_for_stating_an_answer() -> None:
    assert [s for s in Status if reward(s, kind="format")] == [Status.CORRECT, Status.INCORRECT]


def test_the_random_control_is_a_fair_coin_that_does_not_look_and_falls_the_same_way_again() -> None:
    def toss(seed: int, status: Status) -> float | None:
        item = scored_rollout(status=status, seed=seed)
        return reward_of(item.verdict, item.rollout, RewardSettings(kind="random"))

    right, wrong = ([toss(seed, status) for seed in range(2000)] for status in (Status.CORRECT, Status.INCORRECT))
    assert right == wrong
    assert 0.45 < sum(x or 0.0 for x in right) / 2000 < 0.55


def test_soft_overlong_penalty_of_the_paper() -> None:
    settings = RewardSettings(overlong_buffer_tokens=20, overlong_penalty=1.0)
    assert [overlong_penalty(n, 100, settings) for n in (79, 80, 90, 100)] == [0.0, 0.0, 0.5, 1.0]


@given(n=st.integers(1, 300), budget=st.integers(1, 300), buffer=st.integers(1, 100), penalty=st.floats(0, 10))
def test_the_penalty_grows_with_length_and_stays_in_its_bounds(
    n: int, budget: int, buffer: int, penalty: float
) -> None:
    settings = RewardSettings(overlong_buffer_tokens=buffer, overlong_penalty=penalty)
    assert 0.0 <= overlong_penalty(n, budget, settings) <= overlong_penalty(n + 1, budget, settings) <= penalty


def test_the_penalty_is_taken_off_only_where_it_is_on() -> None:
    item = scored_rollout(completion_ids=[5] * 10)
    settings = RewardSettings(overlong_buffer_tokens=4, overlong_penalty=0.5)
    assert reward_of(item.verdict, item.rollout, settings) == 1.0
    assert reward_of(item.verdict, item.rollout, settings, overlong_budget_tokens=10) == 0.5
