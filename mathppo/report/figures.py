"""Series, points and rows of a run's charts; metrics that a run lacks are not drawn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mathppo.evaluate.accuracy import Evaluation, Group, Mode
from mathppo.metrics import NUM_POSITIONS, CriticPretraining, Iteration
from mathppo.report.charts import Axis, Chart, Mark, Series, line_chart
from mathppo.report.load_run import RunRecord

ITERATION = Axis("iteration", (0, None), whole=True)
NUMBERS = Axis("")
BEFORE_TONE, AFTER_TONE = 5, 1

POSITIONS = tuple((i + 0.5) / NUM_POSITIONS for i in range(NUM_POSITIONS))
"""Midpoints of the tenths of a completion."""

DECADES = tuple(i - 7.5 for i in range(NUM_POSITIONS))
"""Midpoints of decades, as powers of ten; the outer two decades are unbounded."""


@dataclass(frozen=True)
class Figure:
    """A chart with title and caption.

    Args:
        title: heading.
        caption: explanation.
        chart: the chart.
        narrow: version of the chart for narrow screens.
    """

    title: str
    caption: str
    chart: Chart
    narrow: Chart | None = None


@dataclass(frozen=True)
class MetricChart:
    """A chart of metrics over iterations: title, caption, (metric, label, tone) of each line, vertical axis."""

    title: str
    caption: str
    metrics: Sequence[tuple[str, str, int]]
    axis: Axis = NUMBERS


def smoothed(y: Sequence[float], window: int) -> tuple[list[float], list[float], list[float]]:
    """Return the centred moving mean and its 95 % band (1.96 standard errors within the window).

    Args:
        y: one number per iteration.
        window: length of the window; shorter at the ends.

    Returns:
        (mean, low, high), each as long as `y`.
    """
    means, low, high = [], [], []
    for i in range(len(y)):
        near = y[max(0, i - window // 2) : i + window // 2 + 1]
        mean = sum(near) / len(near)
        spread = math.sqrt(sum((v - mean) ** 2 for v in near) / max(1, len(near) - 1))
        half = 1.96 * spread / math.sqrt(len(near))
        means.append(mean)
        low.append(mean - half)
        high.append(mean + half)
    return means, low, high


def window_of(count: int) -> int:
    return max(3, count // 15) | 1


def control_lines(control: RunRecord, tone: int) -> list[Series]:
    found = held_out_points(control.of(Mode.GREEDY), control.name, tone)
    if found:
        return [Series(s.label, s.x, s.y, tone, "dashed", s.low, s.high) for s in found]
    x, y = control.series("accuracy")
    return [Series(f"{control.name}, training", x, smoothed(y, window_of(len(y)))[0], tone, "dashed")] if x else []


def held_out_points(evaluations: Sequence[Evaluation], label: str, tone: int) -> list[Series]:
    rows = [(float(e.policy_step), e.overall) for e in evaluations if e.overall.accuracy is not None]
    if not rows:
        return []
    x, y = [step for step, _ in rows], [row.accuracy or 0.0 for _, row in rows]
    return [Series(label, x, y, tone, "points", [row.low for _, row in rows], [row.high for _, row in rows])]


def before_after_rows(first: Evaluation, last: Evaluation, group: Group) -> list[tuple[str, str, list[Mark]]]:
    after = {row.label: row for row in last.by(group)}
    rows = []
    for before in first.by(group):
        both = [(before, BEFORE_TONE, "before"), (after.get(before.label), AFTER_TONE, "after")]
        if first is last:
            both = both[:1]
        marks = [
            Mark(row.accuracy, row.low, row.high, tone, label)
            for row, tone, label in both
            if row is not None and row.accuracy is not None
        ]
        label = f"level {before.label}" if group is Group.LEVEL else before.label.replace("_", " ")
        rows.append((label, f"{before.num_problems:,} problems", marks))
    return rows


def verdict_mix(iterations: Sequence[Iteration]) -> tuple[list[float], list[tuple[str, int, list[float]]]] | None:
    """Split each iteration's rollouts by verdict; accuracy is a share of graded rollouts, the others of all."""
    kinds = (("no_answer", "no answer", 2), ("unparsable", "unparsable", 4), ("over_budget", "over budget", 1))
    x, layers = [], {label: [] for label in ("correct", "incorrect", *(k[1] for k in kinds), "grader error")}
    for row in iterations:
        shares = {
            n: row.metrics.get(f"{n}_share", 0.0) for n in ("no_answer", "unparsable", "over_budget", "grader_error")
        }
        accuracy = row.metrics.get("accuracy")
        numbers = {n: s for n, s in shares.items() if isinstance(s, float)}
        if not isinstance(accuracy, float) or len(numbers) != len(shares):
            continue
        correct = accuracy * (1 - numbers["grader_error"])
        x.append(float(row.iteration))
        layers["correct"].append(correct)
        layers["grader error"].append(numbers["grader_error"])
        for name, label, _ in kinds:
            layers[label].append(numbers[name])
        layers["incorrect"].append(max(0.0, 1 - correct - sum(numbers.values())))
    if not x:
        return None
    tones = {"correct": 3, "incorrect": 5, "grader error": 6} | {label: tone for _, label, tone in kinds}
    window = max(1, len(x) // 40) | 1
    return x, [(label, tones[label], smoothed(shares, window)[0]) for label, shares in layers.items()]


def drawn(run: RunRecord, charts: Sequence[MetricChart]) -> list[Figure]:
    """Draw metrics over iterations: smoothed lines on top of faint raw values; empty charts are left out."""
    figures = []
    for chart in charts:
        series = []
        for name, label, tone in chart.metrics:
            x, y = run.series(name)
            if not x or (name == "ref_kl" and not any(y)):
                continue
            series.append(Series(label, x, y, tone, "dots"))
            series.append(Series(label, x, smoothed(y, max(1, len(y) // 25) | 1)[0], tone))
        if series:
            lines = line_chart(series, ITERATION, chart.axis, title=chart.title)
            figures.append(Figure(chart.title, chart.caption, lines))
    return figures


def pretraining(epochs: Sequence[CriticPretraining]) -> list[Figure]:
    """Draw the epochs of critic pretraining, if any."""
    series = []
    for name, label, tone in (("explained_variance_outcome", "explained variance", 1), ("value_loss", "value loss", 2)):
        pairs = [(float(row.epoch), y) for row in epochs if isinstance(y := row.metrics.get(name), float)]
        if pairs:
            series.append(Series(label, [x for x, _ in pairs], [y for _, y in pairs], tone))
    if not series:
        return []
    chart = line_chart(series, Axis("epoch", whole=True), Axis(""), title="Critic pretraining")
    return [Figure("Critic pretraining", "Epochs on cached rollouts before the first policy update.", chart)]


def by_position(iterations: Sequence[Iteration], name: str, x: Sequence[float] = POSITIONS) -> list[Series]:
    """Average a metric of `NUM_POSITIONS` numbers, at positions `x`, over the first, middle and last tenth of a run."""
    rows = [(r.iteration, y) for r in iterations if isinstance(y := r.metrics.get(name), list)]
    if not rows:
        return []
    size = max(1, len(rows) // 10)
    middle = (len(rows) - size) // 2
    parts = {0: 5, middle: 2, len(rows) - size: 1} if len(rows) >= 3 else {len(rows) - size: 1}
    series = []
    for start, tone in parts.items():
        run = rows[start : start + size]
        label = f"iterations {run[0][0]} to {run[-1][0]}" if size > 1 else f"iteration {run[0][0]}"
        series.append(Series(label, x, [sum(y[i] for _, y in run) / len(run) for i in range(NUM_POSITIONS)], tone))
    return series
