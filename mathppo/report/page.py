"""A run directory to one self-contained page: no network, no server, light and dark.

Completion text is hostile input. It enters the page through jinja2's autoescape and, for the viewer, as JSON in which
`<`, `>` and `&` are escaped; the page's own content policy runs the one script whose hash it names, and loads nothing.
"""

import base64
import hashlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from graders.verdict import Status
from mathppo.evaluate.accuracy import EvaluationRow, Mode
from mathppo.evaluate.compare import write_p
from mathppo.metrics import TRAINING_METRICS
from mathppo.report import sections
from mathppo.report.axes import duration, number, percent, share
from mathppo.report.before_after import choices, compare_ends
from mathppo.report.load_run import RunRecord, read_run
from mathppo.report.mathml import formula, maths
from mathppo.report.rollout_views import RolloutView, choose_views
from mathppo.storage.files import write_file

NUM_ROLLOUTS = 60
"""Rollouts shown in full, unless asked for others."""

_FOLDER = Path(__file__).parent / "page"


@dataclass(frozen=True)
class Row:
    """A line of the before-and-after table."""

    mode: str
    when: str
    standing: EvaluationRow


def write_report(run_dir: Path, *, controls: Sequence[Path] = (), num_rollouts: int = NUM_ROLLOUTS) -> Path:
    """Write `report.html` into a run directory; pieces that are missing leave their section out with a note.

    Args:
        run_dir: as `mathppo train` writes it.
        controls: other run directories to draw beside it.
        num_rollouts: rollouts shown in full, at most; chosen across verdicts and across the run.

    Returns:
        The page's path.
    """
    path = run_dir / "report.html"
    write_file(path, render(read_run(run_dir, controls=controls), num_rollouts=num_rollouts))
    return path


def render(run: RunRecord, *, num_rollouts: int = NUM_ROLLOUTS) -> str:
    """Render a run's page; the same run gives the same text."""
    style, script = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("style.css", "viewer.js"))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"maths": maths, "formula": formula, "p": write_p, "points": lambda x: f"{100 * x:+.1f}"}
    environment.filters["said"] = _said
    environment.filters |= {"percent": percent, "share": share, "number": number, "duration": duration}
    views = choose_views(run.views, num_rollouts)
    draw = (
        sections.learning,
        sections.breakdown,
        sections.verdicts,
        sections.critic,
        sections.updates,
        sections.time_split,
    )
    return environment.get_template("report.html.j2").render(
        run=run,
        headline=headline(run),
        subtitle=_subtitle(run),
        table=table_rows(run),
        comparison=compare_ends(run.results),
        choices=choices(run.results),
        sections=[section(run) for section in draw],
        views=views,
        opened=_opened(views),
        tokens=_script_json([_tokens(view) for view in views]),
        metrics=_last_metrics(run),
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _said(sentence: str) -> str:
    """Give a sentence as it stands alone: a step begins it with a capital, and no `<` ends a line."""
    start = sentence[:1].upper() if sentence.startswith("step ") else sentence[:1]
    return (start + sentence[1:]).replace("p < ", "p\N{NO-BREAK SPACE}<\N{NO-BREAK SPACE}")


def headline(run: RunRecord) -> str:
    """Say in one sentence, with numbers, what the run did."""
    effort = f"in {len(run.iterations)} iteration{'s' * (len(run.iterations) > 1)}" if run.iterations else ""
    wall = run.summary.total_wall_s
    effort += f" ({duration(wall)} in all)" if wall else ""
    for mode in Mode:
        before, after = run.before(mode), run.after(mode)
        if before is None or after is None or before.accuracy is None or after.accuracy is None:
            continue
        numbers = f"{share(before.accuracy)} to {share(after.accuracy)}"
        # Rounded first: a float's last bit would part it from the table's difference of counts.
        points = 100 * round(after.accuracy - before.accuracy, 12)
        if after.low > before.high:
            said = f"raised {mode} accuracy on held-out problems from {numbers}, by {points:.1f} points"
        elif after.high < before.low:
            said = f"lowered {mode} accuracy on held-out problems from {numbers}, by {-points:.1f} points"
        else:
            said = f"did not measurably change {mode} accuracy on held-out problems ({numbers}, intervals overlap)"
        return f"The run {said} {effort}".strip() + "."
    return f"The run was not evaluated before and after{', ' + effort if effort else ''}."


def table_rows(run: RunRecord) -> list[Row]:
    """Give the before-and-after table's rows that exist, greedy first."""
    rows = []
    for mode in Mode:
        for when, standing in (("before", run.before(mode)), ("after", run.after(mode))):
            if standing is not None:
                rows.append(Row(mode, when, standing))
    return rows


def _subtitle(run: RunRecord) -> list[str]:
    try:
        config: dict[str, Any] = tomllib.loads(run.config)
    except tomllib.TOMLDecodeError:
        return [run.name]
    said = [run.name]
    for section, key, words in (
        ("learner", "algorithm", "{}"), ("reward", "kind", "{} reward"), ("problems", "held_out", "held out: {}"),
        ("run", "seed", "seed {}"),
    ):  # fmt: skip
        value = config.get(section, {}).get(key) if isinstance(config.get(section, {}), dict) else None
        if value not in (None, ""):
            said.append(words.format(value))
    return said


def _opened(views: Sequence[RolloutView]) -> set[int]:
    """Two rollouts to show unfolded: the first that is correct and the first that is not."""
    correct = [i for i, view in enumerate(views) if view.verdict.correct]
    others = [i for i, view in enumerate(views) if view.verdict.status is Status.INCORRECT]
    return {*correct[:1], *others[:1]}


def _tokens(view: RolloutView) -> dict[str, Any]:
    """Per-token numbers for the page's script, four digits each, which is more than an eye needs."""

    def short(numbers: Sequence[float] | None) -> list[float] | None:
        return None if numbers is None else [float(f"{x:.4g}") for x in numbers]

    ratio = None
    if view.old_logprobs is not None:
        ratio = [old - sampled for old, sampled in zip(view.old_logprobs, view.behaviour_logprobs, strict=True)]
    return {
        "tokens": view.completion,
        "logprob": short(view.behaviour_logprobs),
        "value": short(view.values),
        "td": short(view.td_residuals),
        "advantage": short(view.advantages),
        "logratio": short(ratio),
    }


def _script_json(value: Any) -> Markup:
    """Encode for a script element, in which only these three characters could end or begin anything."""
    text = msgspec.json.encode(value).decode()
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _last_metrics(run: RunRecord) -> list[tuple[str, str, str, str]]:
    last = run.iterations[-1].metrics if run.iterations else {}
    return [
        (name, number(value), TRAINING_METRICS[name].unit, TRAINING_METRICS[name].meaning)
        for name in TRAINING_METRICS
        if isinstance(value := last.get(name), float)
    ]


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
