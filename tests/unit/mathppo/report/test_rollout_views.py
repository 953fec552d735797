"""Rollout views: validation, storage and selection."""

import random
from pathlib import Path

import msgspec
import pytest
from synthetic_run import view

from graders.verdict import Status
from mathppo.errors import BadArtefact, BadInput
from mathppo.report.rollout_views import VIEWS_FILE, RolloutView, choose_views, read_views, write_views

changed = msgspec.structs.replace
VIEW = view(0, random.Random(1))


def test_views_are_read_back_as_written(tmp_path: Path) -> None:
    views = [view(i, random.Random(i)) for i in range(5)]
    write_views(tmp_path, views)
    assert read_views(tmp_path / VIEWS_FILE) == views
    assert msgspec.json.decode((tmp_path / VIEWS_FILE).read_bytes().splitlines()[0])["schema"] == "rollout_view/1"


@pytest.mark.parametrize("name", ["behaviour_logprobs", "old_logprobs", "values", "advantages"])
def test_lengths_and_numbers_are_checked(name: str) -> None:
    count = len(VIEW.completion)
    with pytest.raises(BadInput, match=rf"as many {name} as completion tokens \({count}\), got 1"):
        changed(VIEW, **{name: [0.5]})
    with pytest.raises(BadInput, match=f"expected finite {name}"):
        changed(VIEW, **{name: [float("nan")] * count})


def test_invalid_line_is_reported(tmp_path: Path) -> None:
    write_views(tmp_path, [VIEW])
    path = tmp_path / VIEWS_FILE
    path.write_bytes(path.read_bytes() + b'{"schema":"rollout/1"}\n')
    with pytest.raises(BadArtefact, match="line 2: expected a rollout view"):
        read_views(path)


def test_td_residuals_add_up_to_reward_minus_first_value() -> None:
    values = [0.2, 0.35, 0.55, 0.8]
    small = changed(
        VIEW, completion=list("abcd"), behaviour_logprobs=[0.0] * 4, old_logprobs=None, values=values,
        advantages=None, reward=1.0,
    )  # fmt: skip
    assert small.td_residuals == pytest.approx([0.15, 0.2, 0.25, 0.2])
    assert sum(small.td_residuals or []) == pytest.approx(1.0 - 0.2)
    assert changed(small, reward=None).td_residuals is None
    assert changed(small, values=None).td_residuals is None


def test_selection_covers_rare_verdicts_and_the_whole_run() -> None:
    def of(status: Status, step: int) -> RolloutView:
        verdict = msgspec.structs.replace(VIEW.verdict, status=status)
        return changed(VIEW, verdict=verdict, policy_step=step)

    views = [of(Status.CORRECT, step) for step in range(100)] + [of(Status.ERROR, 3), of(Status.NO_ANSWER, 5)]
    chosen = choose_views(views, 8)
    assert len(chosen) == 8
    assert {v.verdict.status for v in chosen} == {Status.CORRECT, Status.ERROR, Status.NO_ANSWER}
    steps = [v.policy_step for v in chosen if v.verdict.correct]
    assert len(steps) == 6
    assert min(steps) < 20
    assert max(steps) > 80
    assert choose_views(views[:3], 8) == views[:3]
    assert choose_views([], 8) == []
