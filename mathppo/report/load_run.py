"""Reads a run directory for a report; missing or damaged files become notes, not errors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from mathppo.errors import MathPPOError
from mathppo.evaluate.accuracy import Evaluation, EvaluationRow, Mode
from mathppo.evaluate.result import Result
from mathppo.metrics import CriticPretraining, Iteration, read_rows
from mathppo.report.before_after import Regression, read_results, worst_regressions
from mathppo.report.rollout_views import VIEWS_FILE, RolloutView, read_views

T = TypeVar("T")


class Summary(msgspec.Struct, frozen=True):
    """The part of `summary.json` that a report shows; accuracies are read from the evaluations."""

    wall_s: float | dict[str, float] | None = None

    @property
    def total_wall_s(self) -> float | None:
        """Seconds of the whole run: the entry `total`, or the sum of the stages if larger.

        In a resumed run only the stages include the iterations before the interruption.
        """
        if not isinstance(self.wall_s, dict):
            return self.wall_s
        stages = sum(seconds for name, seconds in self.wall_s.items() if name != "total")
        return max(self.wall_s.get("total", 0.0), stages) or None


@dataclass(frozen=True)
class RunRecord:
    """Contents of a run directory; missing parts are empty, and `notes` has the reasons."""

    name: str
    config: str
    manifest: str
    summary: Summary
    pretraining: list[CriticPretraining]
    iterations: list[Iteration]
    evaluations: list[Evaluation]
    results: list[Result]
    regressions: list[Regression]
    views: list[RolloutView]
    controls: list["RunRecord"]
    notes: list[str]

    def series(self, metric: str) -> tuple[list[float], list[float]]:
        """Return the iterations and values of a metric, without iterations that lack it."""
        found = [(r.iteration, r.metrics[metric]) for r in self.iterations if metric in r.metrics]
        pairs = [(float(x), y) for x, y in found if isinstance(y, float)]
        return [x for x, _ in pairs], [y for _, y in pairs]

    def of(self, mode: Mode) -> list[Evaluation]:
        """Return the evaluations in one mode, sorted by policy step."""
        return sorted((e for e in self.evaluations if e.mode is mode), key=lambda e: e.policy_step)

    def before(self, mode: Mode) -> EvaluationRow | None:
        """Return the first evaluation in a mode; None if there is none."""
        found = self.of(mode)
        return found[0].overall if found else None

    def after(self, mode: Mode) -> EvaluationRow | None:
        """Return the last evaluation in a mode; None if there are not two."""
        found = self.of(mode)
        return found[-1].overall if len(found) > 1 else None


def read_run(run_dir: Path, *, controls: Sequence[Path] = ()) -> RunRecord:
    """Read a run directory.

    Args:
        run_dir: directory written by `mathppo train`.
        controls: run directories to draw for comparison, after those in its `controls.json`.

    Returns:
        All readable parts, with notes on the others.
    """
    notes: list[str] = []
    record = _read_pieces(run_dir, notes)
    return replace(record, controls=_read_controls(run_dir, controls, notes))


def _read_pieces(run_dir: Path, notes: list[str]) -> RunRecord:
    def piece(name: str, read: Callable[[Path], T], empty: T, what: str) -> T:
        path = run_dir / name
        if not path.exists():
            notes.append(f"{name} is missing: {what}")
            return empty
        try:
            return read(path)
        except (OSError, UnicodeDecodeError, msgspec.DecodeError, MathPPOError) as error:
            notes.append(f"{name} is unreadable: {what} ({error})")
            return empty

    damaged: list[str] = []
    read_log = partial(read_rows, on_damaged=lambda error: damaged.append(str(error)))
    pretraining, iterations = piece("metrics.jsonl", read_log, ([], []), "no training curve is drawn")
    if damaged:
        notes.append(f"metrics.jsonl is unreadable in {len(damaged)} lines, which are left out; first: {damaged[0]}")
    evaluations = piece("evaluations", lambda path: _read_evaluations(path, notes), [], "no held-out curve is drawn")
    results = read_results(run_dir, notes)
    summary = piece("summary.json", _read_summary, Summary(), "the wall time is not shown")
    return RunRecord(
        name=run_dir.resolve().name,
        config=piece("config.toml", _read_text, "", "the settings are not shown"),
        manifest=piece("manifest.json", _read_text, "", "the versions are not shown"),
        summary=summary,
        pretraining=pretraining,
        iterations=iterations,
        evaluations=evaluations,
        results=results,
        regressions=worst_regressions(run_dir, results),
        views=piece(VIEWS_FILE, read_views, [], "no rollout is shown"),
        controls=[],
        notes=notes,
    )


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _read_summary(path: Path) -> Summary:
    return msgspec.json.decode(path.read_bytes(), type=Summary)


def _read_evaluations(folder: Path, notes: list[str]) -> list[Evaluation]:
    evaluations = []
    for path in sorted(folder.glob("*/*.json")):
        if path.name.endswith(".result.json"):
            continue  # per-problem results of the same evaluation
        try:
            evaluations.append(msgspec.json.decode(path.read_bytes(), type=Evaluation))
        except (OSError, msgspec.DecodeError, MathPPOError) as error:
            notes.append(f"evaluations/{path.parent.name}/{path.name} is unreadable and left out ({error})")
    return evaluations


def _read_controls(run_dir: Path, given: Sequence[Path], notes: list[str]) -> list[RunRecord]:
    """Read the given controls and those in `controls.json`, which maps labels to paths relative to the run."""
    labelled: dict[str, Path] = {}
    listed = run_dir / "controls.json"
    if listed.exists():
        try:
            names: Mapping[str, str] = msgspec.json.decode(listed.read_bytes(), type=dict[str, str])
            labelled |= {label: run_dir / path for label, path in names.items()}
        except (OSError, msgspec.DecodeError) as error:
            notes.append(f"controls.json is unreadable: no control is drawn ({error})")
    labelled |= {path.resolve().name: path for path in given}
    records = []
    for label, path in labelled.items():
        if not path.is_dir():
            notes.append(f"control {label!r} is missing: expected a run directory at {path}")
            continue
        if path.resolve() != run_dir.resolve():
            records.append(replace(_read_pieces(path, []), name=label))
    return records
