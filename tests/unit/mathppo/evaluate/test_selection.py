"""Step selection: chosen on one half of the problems, reported on the other."""

import msgspec
import pytest
from results import result

from mathppo.errors import BadInput
from mathppo.evaluate.result import Result
from mathppo.evaluate.selection import choose_step, is_dev

NAMES = [f"p{i}" for i in range(40)]
DEV = [name for name in NAMES if is_dev(name)]


def at(step: int, right: set[str]) -> Result:
    made = result([int(name in right) for name in NAMES])
    return msgspec.structs.replace(made, evaluation=msgspec.structs.replace(made.evaluation, policy_step=step))


def test_step_is_chosen_on_dev_and_reported_on_held_out() -> None:
    held_out = [name for name in NAMES if name not in DEV]
    results = [
        at(0, set()),
        at(10, {*DEV[:8], *held_out[:4]}),
        at(20, {*DEV[:5], *held_out[:9]}),
        at(30, {*DEV[:8], *held_out[:5]}),
    ]
    choice = choose_step(results)
    assert (choice.step, choice.num_dev, choice.num_held_out) == (10, len(DEV), len(held_out)), (
        "the earliest of tied steps"
    )
    assert choice.dev == 8 / len(DEV)
    assert choice.held_out == 4 / len(held_out)
    assert choice.low < choice.held_out < choice.high
    assert (choice.last_step, choice.last_held_out) == (30, 5 / len(held_out))
    assert (choice.picked_step, choice.picked_held_out) == (20, 9 / len(held_out))
    assert "dev problems choose step 10" in choice.sentence
    assert "choosing step 20 on those problems would report" in choice.sentence
    assert choose_step(results[::-1]) == choice


def test_sentence_reports_no_gain() -> None:
    everything = set(NAMES)
    assert "on those problems would report no more" in choose_step([at(0, set()), at(10, everything)]).sentence


def test_halves_have_similar_size() -> None:
    count = sum(is_dev(f"problem-{i}") for i in range(10_000))
    assert 4_800 < count < 5_200


def test_unrelated_results_are_rejected() -> None:
    with pytest.raises(BadInput, match="expected results of one set, got"):
        choose_step([result([1, 0]), result([1, 0], name="two")])
    with pytest.raises(BadInput, match="expected one result per step, got two of one step"):
        choose_step([at(0, set()), at(0, set())])
    with pytest.raises(BadInput, match="expected problems of all steps in both halves, got"):
        choose_step([result([1])])
