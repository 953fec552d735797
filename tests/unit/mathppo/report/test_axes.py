"""Ticks, scales and short numbers."""

import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mathppo.report import axes
from mathppo.report.axes import Scale, bounds, tick_labels, ticks

finite = st.floats(-1e9, 1e9, allow_subnormal=False)


def test_examples_of_the_docstrings() -> None:
    assert doctest.testmod(axes).failed == 0


def test_a_scale_maps_its_ends() -> None:
    scale = Scale(2, 4, 100, 0)
    assert (scale(2), scale(3), scale(4)) == (100, 50, 0)


@given(finite, st.floats(1e-6, 1e9), st.integers(2, 10))
@settings(deadline=None)
def test_ticks_are_round_inside_the_range_and_distinct(low: float, span: float, count: int) -> None:
    high = low + span
    if not (high - low) > 1e-9 * max(abs(low), abs(high)):
        return
    marks = ticks(low, high, count)
    assert len(marks) <= count + 2
    slack = 1e-6 * span
    assert all(low - slack <= mark <= high + slack for mark in marks)
    assert marks == sorted(marks)


def test_tick_labels_are_distinct() -> None:
    for low, high in ((0, 1), (0.9998, 1.0002), (0, 0.004), (-0.05, 0.03), (0, 137), (3, 3.4), (0, 9000), (0, 2e5)):
        marks = ticks(low, high)
        labels = tick_labels(marks)
        assert len(set(labels)) == len(marks), (low, high, labels)
        assert all(len(label) <= 7 for label in labels), labels


def test_empty_range_has_one_tick() -> None:
    assert ticks(3.0, 3.0) == [3.0]


@pytest.mark.parametrize(
    ("values", "within", "expected"),
    [
        ([0.2, 0.8], (0, 1), (0, 1)),
        ([0.0, 1.0], (None, None), (-0.06, 1.06)),
        ([0.5, 1.0], (0, None), (0, 1.06)),
        ([], (None, None), (-0.06, 1.06)),
    ],
)
def test_bounds(values, within, expected) -> None:
    assert bounds(values, within) == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.0, 5.0, -3.0])
@pytest.mark.parametrize("within", [(None, None), (0, None), (None, 1)])
def test_bounds_are_never_empty(value: float, within) -> None:
    low, high = bounds([value, value], within)
    assert high > low


def test_range_of_rounding_errors_counts_as_one_number() -> None:
    low, high = bounds([1.0, 1.0 - 1e-13])
    assert (low, high) == pytest.approx(bounds([1.0]))
    marks = ticks(low, high)
    assert len(set(tick_labels(marks))) == len(marks) > 2
