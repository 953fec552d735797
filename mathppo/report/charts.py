"""Charts as inline SVG: lines with bands, points with intervals, stacked shares, before-and-after rows.

Colours are CSS classes (`tone-1` to `tone-6`), which the page defines for light and dark mode. All text is escaped
here. A chart has its numbers in `data-hover` for the page's script, and is readable without it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from mathppo.report.axes import Scale, bounds, percent, tick_labels, ticks

LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 34
MAX_POINTS = 300
"""Maximum number of points per series; longer series are averaged."""


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Args:
        label: name in the legend.
        x: positions, ascending.
        y: heights, same length.
        tone: 1 to 6.
        style: `"line"`, `"dashed"`, `"dots"` (faint marks), or `"points"` (marks with intervals, joined).
        low: lower ends of a band or of intervals, same length; empty = none.
        high: upper ends.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    tone: int
    style: str = "line"
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Axis:
    """An axis: label, fixed range if any, and whether it shows percentages or only integers."""

    label: str
    within: tuple[float | None, float | None] = (None, None)
    percent: bool = False
    whole: bool = False

    def labels(self, marks: Sequence[float]) -> list[str]:
        return [percent(mark) for mark in marks] if self.percent else tick_labels(marks)


@dataclass(frozen=True)
class Chart:
    """A drawn chart: SVG markup and legend."""

    svg: Markup
    legend: list[tuple[str, int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Mark:
    """A value with its interval on a row."""

    value: float
    low: float
    high: float
    tone: int
    label: str


def line_chart(
    series: Sequence[Series], x_axis: Axis, y_axis: Axis, *, title: str, width: int = 320, height: int = 205
) -> Chart:
    """Draw series over one pair of axes.

    Args:
        series: drawn in order, the last on top.
        x_axis: horizontal axis.
        y_axis: vertical axis.
        title: accessible description.
        width: width of the drawing, about pixels.
        height: height of the drawing.

    Returns:
        The chart, with a legend entry for each series except dots.
    """
    series = [thinned(s) for s in series if len(s.x)]
    across = Scale(*_x_bounds([x for s in series for x in s.x], x_axis), LEFT, width - RIGHT)
    heights = [y for s in series for values in (s.y, s.low, s.high) for y in values]
    up = Scale(*bounds(heights, y_axis.within), height - BOTTOM, TOP)
    body = [_frame(across, up, x_axis, y_axis, width, height)]
    body += [_drawn(s, across, up) for s in series]
    hover = {
        "x": x_axis.label,
        "percent": y_axis.percent,
        "frame": [across.start, across.end, up.end, up.start],
        "series": [
            {"label": s.label, "tone": s.tone, "x": list(s.x), "px": [round(across(x), 1) for x in s.x],
             "y": [float(f"{y:.4g}") for y in s.y], "py": [round(up(y), 1) for y in s.y]}
            for s in series
            if s.style != "dots"
        ],
    }  # fmt: skip
    legend = [(s.label, s.tone, s.style) for s in series if s.style != "dots"]
    return Chart(_svg(body, width, height, title, hover), legend)


def stacked_chart(
    x: Sequence[float], layers: Sequence[tuple[str, int, Sequence[float]]], x_axis: Axis, *, title: str,
    width: int = 320, height: int = 205,
) -> Chart:  # fmt: skip
    """Draw shares that sum to 1 as stacked areas over x.

    Args:
        x: positions, ascending.
        layers: (label, tone, shares) from the bottom; layers that are all 0 are left out.
        x_axis: horizontal axis.
        title: accessible description.
        width: width of the drawing.
        height: height of the drawing.

    Returns:
        The chart, with its legend from the bottom up.
    """
    y_axis = Axis("", (0, 1), percent=True)
    across = Scale(*_x_bounds(x, x_axis), LEFT, width - RIGHT)
    up = Scale(0, 1, height - BOTTOM, TOP)
    shown = [thinned(Series(label, x, shares, tone)) for label, tone, shares in layers if any(shares)]
    body, hover = [], []
    floor = [0.0] * (len(shown[0].x) if shown else 0)
    for s in shown:
        ceiling = [below + share for below, share in zip(floor, s.y, strict=True)]
        # A single position has no width, so it fills the chart.
        along, times = (s.x, 1) if len(s.x) > 1 else ([across.low, across.high], 2)
        roof, base = _path(along, ceiling * times, across, up), _path(along[::-1], floor[::-1] * times, across, up)
        points = f"{roof}L{base[1:]}Z"
        body.append(f'<path class="area tone-{s.tone}" d="{points}"/>')
        hover.append({"label": s.label, "tone": s.tone, "x": list(s.x), "px": [round(across(v), 1) for v in s.x],
                      "y": [float(f"{y:.4g}") for y in s.y], "py": [round(up(y), 1) for y in ceiling]})  # fmt: skip
        floor = ceiling
    body.append(_frame(across, up, x_axis, y_axis, width, height))
    frame = [across.start, across.end, up.end, up.start]
    data = {"x": x_axis.label, "percent": True, "frame": frame, "series": hover}
    return Chart(_svg(body, width, height, title, data), [(s.label, s.tone, "area") for s in shown])


def rows_chart(rows: Sequence[tuple[str, str, Sequence[Mark]]], *, title: str, width: int = 340) -> Chart:
    """Draw rows of shares with intervals on a common axis from 0 to 100 %, an arrow from the first mark to the last.

    Args:
        rows: (label, small print, marks).
        title: accessible description.
        width: width of the drawing.

    Returns:
        The chart, with a legend entry for each label of a mark.
    """
    step, left = 34, 30 + 6.6 * max((len(text) for label, small, _ in rows for text in (label, small)), default=4)
    height = TOP + step * len(rows) + BOTTOM
    across = Scale(0, 1, min(left, width / 2), width - 22)
    body = []
    for tick in ticks(0, 1, 4 if width < 500 else 5):
        x = f"{across(tick):.1f}"
        body.append(f'<path class="grid" d="M{x},{TOP}V{height - BOTTOM}"/>')
        body.append(
            f'<text class="tick" x="{x}" y="{height - BOTTOM + 16}" text-anchor="middle">{percent(tick)}</text>'
        )
    for index, (label, small, marks) in enumerate(rows):
        y = TOP + step * (index + 0.5)
        body.append(f'<text class="row" x="4" y="{y - (1 if small else -4):.1f}">{escape(label)}</text>')
        body.append(f'<text class="small" x="4" y="{y + 11:.1f}">{escape(small)}</text>' if small else "")
        body += _row_marks(marks, across, y)
    legend = {mark.label: (mark.label, mark.tone, "points") for _, _, marks in rows for mark in marks}
    return Chart(_svg(body, width, height, title, None), list(legend.values()))


def share_bar(parts: Sequence[tuple[str, int, float]], *, title: str, width: int = 340) -> Chart:
    """Draw one horizontal bar split in proportion to the parts, each (label, tone, size)."""
    total = sum(size for _, _, size in parts) or 1.0
    body, start = [], 0.0
    for label, tone, size in parts:
        length = size / total * width
        body.append(
            f'<rect class="area tone-{tone}" x="{start:.2f}" y="0" width="{max(0.0, length - 1.5):.2f}" height="26" '
            f'rx="2"><title>{escape(label)}: {percent(size / total)}</title></rect>'
        )
        start += length
    return Chart(_svg(body, width, 26, title, None), [(label, tone, "area") for label, tone, _ in parts])


def thinned(series: Series) -> Series:
    """Average neighbours until a line has at most `MAX_POINTS` points; points with intervals are unchanged."""
    size = -(-len(series.x) // MAX_POINTS)
    if size <= 1 or series.style == "points":
        return series

    def mean(values: Sequence[float]) -> list[float]:
        runs = [values[i : i + size] for i in range(0, len(values), size)]
        return [sum(run) / len(run) for run in runs]

    return Series(
        series.label, mean(series.x), mean(series.y), series.tone, series.style, mean(series.low), mean(series.high)
    )


def _x_bounds(x: Sequence[float], axis: Axis) -> tuple[float, float]:
    low = min(x, default=0.0) if axis.within[0] is None else axis.within[0]
    high = max(x, default=1.0) if axis.within[1] is None else axis.within[1]
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _frame(across: Scale, up: Scale, x_axis: Axis, y_axis: Axis, width: int, height: int) -> str:
    parts = []
    marks = ticks(up.low, up.high, 5)
    for tick, text in zip(marks, y_axis.labels(marks), strict=True):
        y = f"{up(tick):.1f}"
        parts.append(f'<path class="grid" d="M{across.start:g},{y}H{across.end:g}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 7}" y="{up(tick) + 3.5:.1f}" text-anchor="end">{text}</text>')
    marks = ticks(across.low, across.high, max(4, width // 110))
    marks = [mark for mark in marks if mark.is_integer()] if x_axis.whole else marks
    for tick, text in zip(marks, x_axis.labels(marks), strict=True):
        parts.append(
            f'<text class="tick" x="{across(tick):.1f}" y="{height - BOTTOM + 15}" text-anchor="middle">{text}</text>'
        )
    middle = (across.start + across.end) / 2
    parts.append(
        f'<text class="axis" x="{middle:g}" y="{height - 4}" text-anchor="middle">{escape(x_axis.label)}</text>'
    )
    return "".join(parts)


def _drawn(series: Series, across: Scale, up: Scale) -> str:
    parts = []
    points = [(round(across(x), 1), round(up(y), 1)) for x, y in zip(series.x, series.y, strict=True)]
    if series.style == "dots":
        parts += [f'<circle cx="{x}" cy="{y}" r="1.6"/>' for x, y in points]
    else:
        if series.low and series.style != "points":
            back = _path(list(series.x)[::-1], list(series.low)[::-1], across, up)[1:]
            parts.append(f'<path class="band" d="{_path(series.x, series.high, across, up)}L{back}Z"/>')
        parts.append(f'<path class="stroke" d="{_path(series.x, series.y, across, up)}"/>')
    if len(points) == 1 and series.style not in ("dots", "points"):
        (x, y), ends = points[0], [up(end) for end in (*series.low, *series.high)]
        parts.append(f'<path class="whisker" d="M{x},{ends[0]:.1f}V{ends[-1]:.1f}"/>' if ends else "")
        parts.append(f'<circle class="alone" cx="{x}" cy="{y}" r="3.4"/>')
    if series.style == "points":
        for (x, _), low, high in zip(points, series.low, series.high, strict=True):
            parts.append(f'<path class="whisker" d="M{x},{up(low):.1f}V{up(high):.1f}"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3.4"/>' for x, y in points]
    return f'<g class="{series.style} tone-{series.tone}">{"".join(parts)}</g>'


def _row_marks(marks: Sequence[Mark], across: Scale, y: float) -> list[str]:
    parts = []
    if len(marks) > 1:
        parts.append(f'<path class="link" d="M{across(marks[0].value):.1f},{y:.1f}H{across(marks[-1].value):.1f}"/>')
    for index, mark in enumerate(marks):
        # The last mark is drawn on top and is smaller, so that an equal one below remains visible.
        radius = 5 if index == len(marks) - 1 else 6.5
        title = f"{escape(mark.label)}: {percent(mark.value)} ({percent(mark.low)} to {percent(mark.high)})"
        parts.append(
            f'<g class="points tone-{mark.tone}"><title>{title}</title>'
            f'<path class="whisker" d="M{across(mark.low):.1f},{y:.1f}H{across(mark.high):.1f}"/>'
            f'<circle cx="{across(mark.value):.1f}" cy="{y:.1f}" r="{radius}"/></g>'
        )
    return parts


def _path(x: Sequence[float], y: Sequence[float], across: Scale, up: Scale) -> str:
    return "M" + "L".join(f"{across(a):.1f},{up(b):.1f}" for a, b in zip(x, y, strict=True))


def _svg(body: Sequence[str], width: int, height: float, title: str, hover: dict | None) -> Markup:
    data = f' data-hover="{escape(json.dumps(hover, separators=(",", ":")))}"' if hover and hover["series"] else ""
    return Markup(
        f'<svg viewBox="0 0 {width} {height:g}" role="img" aria-label="{escape(title)}"{data}>{"".join(body)}</svg>'
    )
