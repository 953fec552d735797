"""Sections of the report: charts, their order and their captions."""

from dataclasses import dataclass, field
from itertools import cycle

from mathppo.evaluate.accuracy import Group, Mode
from mathppo.report.axes import duration, percent
from mathppo.report.charts import Axis, Series, line_chart, rows_chart, share_bar, stacked_chart
from mathppo.report.figures import (
    DECADES,
    ITERATION,
    Figure,
    MetricChart,
    before_after_rows,
    by_position,
    control_lines,
    drawn,
    held_out_points,
    pretraining,
    smoothed,
    verdict_mix,
    window_of,
)
from mathppo.report.load_run import RunRecord

GREEDY_TONE, SAMPLED_TONE, TRAINING_TONE, CONTROL_TONES = 1, 3, 2, (4, 6, 5)
WIDE, NARROW = 1030, 340
"""Widths of a full-page chart on a desktop and on a phone."""

FROM_ZERO = Axis("", (0, None))
SHARES = Axis("", (0, None), percent=True)

WRITTEN = (
    MetricChart(
        "Completion length",
        "Tokens per completion, stop token included.",
        (
            ("length_mean_tokens", "mean", 1),
            ("length_terminated_mean_tokens", "mean of terminated", 3),
            ("length_p95_tokens", "95th percentile", 2),
        ),
        FROM_ZERO,
    ),
    MetricChart(
        "Truncation and missing answers",
        "Completions that ran out of token budget, and completions without a final answer.",
        (("truncated_share", "truncated", 2), ("no_answer_share", "no answer", 4)),
        SHARES,
    ),
)
CRITIC = (
    MetricChart(
        "Explained variance",
        "1: the critic predicts each outcome. 0: no better than the mean. Below 0: worse than the mean.",
        (("explained_variance_outcome", "of outcomes", 1), ("explained_variance_target", "of its targets", 3)),
        Axis("", (None, 1)),
    ),
    MetricChart(
        "Values and returns",
        "Means over the iteration's tokens; a gap between them means that the critic is biased.",
        (("value_mean", "mean value", 1), ("return_mean", "mean return", 2)),
    ),
    MetricChart("Value loss", "Mean over the iteration's minibatches.", (("value_loss", "value loss", 2),), FROM_ZERO),
)
MOVED = (
    MetricChart(
        "KL divergence",
        "Nats per token. Update: policy before to policy after. Engines: sampler to learner, at the same "
        "weights. Reference: warm start to policy.",
        (("approx_kl", "update", 1), ("behaviour_kl", "engines", 2), ("ref_kl", "reference", 4)),
    ),
    MetricChart(
        "Clipped tokens",
        "Share of tokens whose policy gradient was clipped to zero.",
        (("clip_share_high", "at 1 + clip_high", 1), ("clip_share_low", "at 1 - clip_low", 2)),
        SHARES,
    ),
    MetricChart(
        "Entropy",
        "Entropy of the next-token distribution in nats, mean over sampled positions.",
        (("entropy", "entropy", 3),),
        FROM_ZERO,
    ),
    MetricChart(
        "Gradient norms",
        "Before clipping, mean over the iteration's updates.",
        (("policy_grad_norm", "policy", 1), ("critic_grad_norm", "critic", 2)),
        FROM_ZERO,
    ),
    MetricChart(
        "Importance weights",
        "Probability under the learner divided by that under the sampler; 1 if both agree. The mean is over truncated "
        "weights, the effective sample size (as a share of the tokens) over untruncated weights.",
        (("importance_weight_mean", "mean", 1), ("behaviour_ess_share", "effective sample size", 2)),
    ),
    MetricChart(
        "Learning rates",
        "At the end of each iteration.",
        (("policy_lr", "policy", 1), ("critic_lr", "critic", 2)),
        FROM_ZERO,
    ),
)


@dataclass(frozen=True)
class Section:
    """Figures under one heading; a section without figures has a note instead."""

    key: str
    title: str
    figures: list[Figure] = field(default_factory=list)
    note: str = ""


def learning(run: RunRecord) -> Section:
    """Draw training reward, held-out accuracy and controls over iterations."""
    series: list[Series] = []
    x, y = run.series("reward_mean")
    if x:
        means, low, high = smoothed(y, window_of(len(y)))
        series.append(Series("each iteration", x, y, TRAINING_TONE, "dots"))
        series.append(Series("training reward, sampled", x, means, TRAINING_TONE, "line", low, high))
    for control, tone in zip(run.controls, cycle(CONTROL_TONES), strict=False):
        series += control_lines(control, tone)
    series += held_out_points(run.of(Mode.SAMPLED), "held-out, sampled", SAMPLED_TONE)
    series += held_out_points(run.of(Mode.GREEDY), "held-out, greedy", GREEDY_TONE)
    if not series:
        return Section("learning", "Learning curves", note="neither training metrics nor evaluations were found")
    heights = [v for s in series for v in s.y]
    ends = (min(0.0, *heights), max(1.0, *heights))
    axis = Axis("", ends, percent=ends == (0.0, 1.0))
    wide, narrow = (
        line_chart(series, ITERATION, axis, title="Learning curves", width=width, height=height)
        for width, height in ((WIDE, 400), (NARROW, 280))
    )
    caption = (
        f"Faint dots: the reward of each iteration's rollouts. Line: their mean over {window_of(len(y))} iterations, "
        "with its 95% band. Marks: accuracy on held-out problems with 95% intervals."
    )
    if run.controls:
        caption += " Dashed: held-out greedy accuracy of the control runs."
    return Section("learning", "Learning curves", [Figure("", caption, wide, narrow)])


def breakdown(run: RunRecord) -> Section:
    """Draw greedy accuracy before and after, by level and by family."""
    found = run.of(Mode.GREEDY) or run.of(Mode.SAMPLED)
    figures = []
    for group, title in ((Group.LEVEL, "By level"), (Group.FAMILY, "By family")) if found else ():
        rows = before_after_rows(found[0], found[-1], group)
        if len(rows) > 1:
            caption = f"{found[0].mode.capitalize()} accuracy on {found[0].name} with 95% intervals."
            wide, narrow = (
                rows_chart(rows, title=f"Accuracy {title.lower()}", width=width) for width in (WIDE, NARROW)
            )
            figures.append(Figure(title, caption, wide, narrow))
    return Section("breakdown", "Accuracy by group", figures, note="the evaluations name no level or family")


def verdicts(run: RunRecord) -> Section:
    """Draw the mix of verdicts, lengths and truncation over iterations."""
    figures = []
    if mix := verdict_mix(run.iterations):
        x, layers = mix
        caption = "Share of each verdict among the iteration's rollouts, averaged over neighbouring iterations."
        figures.append(Figure("Verdicts", caption, stacked_chart(x, layers, ITERATION, title="Verdict mix")))
    figures += drawn(run, WRITTEN)
    return Section("verdicts", "Completions", figures, note="metrics.jsonl has no verdict shares")


def critic(run: RunRecord) -> Section:
    """Draw the critic's explained variance, pretraining, and value and advantage by position."""
    figures = drawn(run, CRITIC) + pretraining(run.pretraining)
    for name, title, caption in (
        ("value_by_position", "Value by position", "Mean value in each tenth of the completion."),
        (
            "advantage_by_position",
            "Advantage by position",
            "Mean advantage before whitening in each tenth of the completion.",
        ),
    ):
        if lines := by_position(run.iterations, name):
            axis = Axis("relative position in the completion", (0, 1), percent=True)
            figures.append(Figure(title, caption, line_chart(lines, axis, Axis(""), title=title)))
    return Section("critic", "Critic", figures, note="this run has no critic metrics")


def updates(run: RunRecord) -> Section:
    """Draw the size of the policy updates."""
    note = "metrics.jsonl has no update statistics"
    figures = drawn(run, MOVED)
    if lines := by_position(run.iterations, "behaviour_logratio_by_size", DECADES):
        title = "Sampler and learner"
        caption = (
            "Share of tokens by the difference of their log-probabilities in sampler and learner. With float32 "
            "engines it is below 10^-3 nats; differences above 10^-1 nats are left to the importance weights."
        )
        axis = Axis("difference in nats, as a power of ten")
        figures.append(Figure(title, caption, line_chart(lines, axis, SHARES, title=title)))
    return Section("updates", "Policy updates", figures, note=note)


def time_split(run: RunRecord) -> Section:
    """Draw the share of each stage in the time of an iteration."""
    parts, seconds = [], {}
    for name, label, tone in (
        ("generate_s", "generate", 1), ("grade_s", "grade", 2), ("learn_s", "learn", 3), ("other_s", "other", 5),
    ):  # fmt: skip
        _, y = run.series(name)
        if y:
            seconds[label] = (tone, sum(y) / len(y))
    total = sum(size for _, size in seconds.values())
    if not total:
        return Section("time", "Time", note="metrics.jsonl has no durations")
    for label, (tone, size) in seconds.items():
        parts.append((f"{label} {duration(size)} ({percent(size / total)})", tone, size))
    caption = f"Mean over {len(run.iterations)} iterations of {duration(total)} each."
    wide, narrow = (share_bar(parts, title="Time split of an iteration", width=width) for width in (WIDE, NARROW))
    return Section("time", "Time", [Figure("", caption, wide, narrow)])
