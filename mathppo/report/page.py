"""Renders a run directory as one self-contained HTML page, without network or server.

Completions are untrusted input. They enter the page through jinja2's autoescape and, for the viewer, as JSON in which
`<`, `>` and `&` are escaped. The page's content security policy allows one script, by its hash, and no requests.
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
"""Default number of rollouts shown in full."""

_FOLDER = Path(__file__).parent / "page"


@dataclass(frozen=True)
class Row:
    """A row of the before/after table."""

    mode: str
    when: str
    result: EvaluationRow


def write_report(run_dir: Path, *, controls: Sequence[Path] = (), num_rollouts: int = NUM_ROLLOUTS) -> Path:
    """Write `report.html` to a run directory; a section without data is replaced by a note.

    Args:
        run_dir: directory written by `mathppo train`.
        controls: other run directories to draw for comparison.
        num_rollouts: maximum number of rollouts shown in full, chosen across verdicts and across the run.

    Returns:
        Path of the page.
    """
    path = run_dir / "report.html"
    write_file(path, render(read_run(run_dir, controls=controls), num_rollouts=num_rollouts))
    return path


def render(run: RunRecord, *, num_rollouts: int = NUM_ROLLOUTS) -> str:
    """Render the page of a run; the same run yields the same text."""
    style, script = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("style.css", "viewer.js"))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"maths": maths, "formula": formula, "p": write_p, "points": lambda x: f"{100 * x:+.1f}"}
    environment.filters["sentence"] = _as_sentence
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


def _as_sentence(sentence: str) -> str:
    """Capitalise a sentence that begins with a step, and keep `p < x` on one line."""
    start = sentence[:1].upper() if sentence.startswith("step ") else sentence[:1]
    return (start + sentence[1:]).replace("p < ", "p\N{NO-BREAK SPACE}<\N{NO-BREAK SPACE}")


def headline(run: RunRecord) -> str:
    """Return one sentence with the change in accuracy and the effort of the run."""
    effort = f"in {len(run.iterations)} iteration{'s' * (len(run.iterations) > 1)}" if run.iterations else ""
    wall = run.summary.total_wall_s
    effort += f" ({duration(wall)} in total)" if wall else ""
    for mode in Mode:
        before, after = run.before(mode), run.after(mode)
        if before is None or after is None or before.accuracy is None or after.accuracy is None:
            continue
        numbers = f"{share(before.accuracy)} to {share(after.accuracy)}"
        # Rounded first, so that a float's last bit cannot make it differ from the table.
        points = 100 * round(after.accuracy - before.accuracy, 12)
        if after.low > before.high:
            change = f"raised {mode} accuracy on held-out problems from {numbers}, by {points:.1f} points"
        elif after.high < before.low:
            change = f"lowered {mode} accuracy on held-out problems from {numbers}, by {-points:.1f} points"
        else:
            change = f"did not measurably change {mode} accuracy on held-out problems ({numbers}, intervals overlap)"
        return f"The run {change} {effort}".strip() + "."
    return f"The run was not evaluated before and after{', ' + effort if effort else ''}."


def table_rows(run: RunRecord) -> list[Row]:
    """Return the available rows of the before/after table, greedy first."""
    rows = []
    for mode in Mode:
        for when, result in (("before", run.before(mode)), ("after", run.after(mode))):
            if result is not None:
                rows.append(Row(mode, when, result))
    return rows


def _subtitle(run: RunRecord) -> list[str]:
    try:
        config: dict[str, Any] = tomllib.loads(run.config)
    except tomllib.TOMLDecodeError:
        return [run.name]
    parts = [run.name]
    for section, key, words in (
        ("learner", "algorithm", "{}"), ("reward", "kind", "{} reward"), ("problems", "held_out", "held out: {}"),
        ("run", "seed", "seed {}"),
    ):  # fmt: skip
        value = config.get(section, {}).get(key) if isinstance(config.get(section, {}), dict) else None
        if value not in (None, ""):
            parts.append(words.format(value))
    return parts


def _opened(views: Sequence[RolloutView]) -> set[int]:
    """Return the rollouts to show unfolded: the first correct and the first incorrect one."""
    correct = [i for i, view in enumerate(views) if view.verdict.correct]
    others = [i for i, view in enumerate(views) if view.verdict.status is Status.INCORRECT]
    return {*correct[:1], *others[:1]}


def _tokens(view: RolloutView) -> dict[str, Any]:
    """Return the per-token numbers for the page's script, with four significant digits."""

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
    """Encode JSON for a script element; `<`, `>` and `&` are escaped, because they could end it."""
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
