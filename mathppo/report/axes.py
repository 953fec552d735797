"""Axes: scales, ticks at round numbers, and short number formats."""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Scale(NamedTuple):
    """A linear map of [low, high] to pixels [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers within [low, high], 1, 2 or 5 times a power of ten apart.

    >>> ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> ticks(3, 137, 4)
    [50.0, 100.0]
    """
    if not high > low:
        return [low]
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") + 0.0 for i in range(first, last + 1)]


def bounds(values: Sequence[float], within: tuple[float | None, float | None] = (None, None)) -> tuple[float, float]:
    """Return a non-empty axis range: the given ends, or the range of the values plus padding."""
    low = min(values, default=0.0) if within[0] is None else within[0]
    high = max(values, default=1.0) if within[1] is None else within[1]
    if not high - low > 1e-9 * max(abs(low), abs(high)):  # a range of rounding errors has no distinct labels
        pad = abs(low) * 0.1 or 1.0
        low, high = (low - pad if within[0] is None else low), low + pad
    pad = (high - low) * 0.06
    return (low - pad if within[0] is None else low), (high + pad if within[1] is None else high)


def number(value: float) -> str:
    """Format a number in few characters.

    >>> [number(x) for x in (0.0, 0.25, 1.0, 1234.0, 25000.0, 3e-4, -0.5)]
    ['0', '0.25', '1', '1,234', '25k', '3e-4', '-0.5']
    """
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.3g}k"
    if size >= 1000:
        return f"{value:,.0f}"
    return _scientific(value) if size < 1e-3 else f"{value:.3g}"


def tick_labels(marks: Sequence[float]) -> list[str]:
    """Format ticks with enough decimals to distinguish them.

    >>> tick_labels([0.9998, 1.0, 1.0002]), tick_labels([0.0, 5e-4, 1e-3]), tick_labels([0.0, 20000.0])
    (['0.9998', '1', '1.0002'], ['0', '5e-4', '1e-3'], ['0', '20k'])
    """
    largest = max(map(abs, marks), default=0.0)
    if len(marks) < 2 or largest >= 1000:
        return [number(mark) for mark in marks]
    if largest < 0.005:
        return [_scientific(mark) for mark in marks]
    decimals = max(0, -math.floor(math.log10(marks[1] - marks[0]) + 1e-9))
    return [f"{mark:.{decimals}f}".rstrip("0").rstrip(".") if decimals else f"{mark:.0f}" for mark in marks]


def percent(value: float) -> str:
    """Format a share as a percentage.

    >>> [percent(x) for x in (0.0, 0.005, 0.415, 1.0)]
    ['0%', '0.5%', '41.5%', '100%']
    """
    return f"{100 * value:.1f}".removesuffix(".0") + "%"


def share(value: float) -> str:
    """Format a share as a percentage with one decimal, for aligned columns.

    >>> [share(x) for x in (0.0, 0.415, 1.0)]
    ['0.0%', '41.5%', '100.0%']
    """
    return f"{100 * value:.1f}%"


def duration(seconds: float) -> str:
    r"""Format a duration with non-breaking spaces.

    >>> [duration(x).replace("\u00a0", " ") for x in (0.42, 59.0, 107.0, 5400.0)]
    ['0.42 s', '59 s', '1 min 47 s', '1 h 30 min']
    """
    return _duration(seconds).replace(" ", "\u00a0")


def _scientific(value: float) -> str:
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}" if value else "0"


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left} min" if hours else f"{minutes} min {rest} s"
