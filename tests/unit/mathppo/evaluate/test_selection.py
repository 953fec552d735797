"""The step is chosen on one half of the problems and reported on the other."""

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


def test_the_dev_half_chooses_and_the_other_half_reports() -> None:
    held_out = [name for name in NAMES if name not in DEV]
    results = [
        at(0, set()),
        at(10, {*DEV[:8], *held_out[:4]}),
        at(20, {*DEV[:5], *held_out[:9]}),
        at(30, {*DEV[:8], *held_out[:5]}),
    ]
    choice = choose_step(results)
    assert (choice.step, choice.num_dev, choice.num_held_out) == (10, len(DEV), len(held_out)), "the earliest of equals"
    assert choice.dev == 8 / len(DEV)
    assert choice.held_out == 4 / len(held_out)
    assert choice.low < choice.held_out < choice.high
    assert (choice.last_step, choice.last_held_out) == (30, 5 / len(held_out))
    assert (choice.picked_step, choice.picked_held_out) == (20, 9 / len(held_out))
    assert "dev problems choose step 10" in choice.sentence
    assert "picking step 20 on those problems themselves would claim" in choice.sentence
    assert choose_step(results[::-1]) == choice


def test_no_gain_from_picking_is_said_too() -> None:
    everything = set(NAMES)
    assert "themselves would claim no more" in choose_step([at(0, set()), at(10, everything)]).sentence


def test_each_half_holds_about_half() -> None:
    count = sum(is_dev(f"problem-{i}") for i in range(10_000))
    assert 4_800 < count < 5_200


def test_results_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(BadInput, match="expected results of one set, got"):
        choose_step([result([1, 0]), result([1, 0], name="two")])
    with pytest.raises(BadInput, match="expected one result a step, got two of one"):
        choose_step([at(0, set()), at(0, set())])
    with pytest.raises(BadInput, match="expected problems of all steps in both halves, got"):
        choose_step([result([1])])
