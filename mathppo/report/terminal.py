"""Terminal tables: accuracy before and after a run, and comparisons of evaluations."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.table import Table
from rich.text import Text

from mathppo.evaluate.compare import Comparison, SetComparison, write_p
from mathppo.evaluate.tables import percent
from mathppo.report.axes import share
from mathppo.report.load_run import RunRecord, read_run
from mathppo.report.page import headline, table_rows

WIDE_RUN = 80
"""Minimum terminal width at which the before/after table is not split."""


def terminal_tables(run: RunRecord | Path, width: int) -> list[Table]:
    """Build the table of held-out accuracy before and after, split in two on a narrow terminal.

    Args:
        run: a run directory, or its record from `read_run`.
        width: terminal width in characters; at 60 or more no number is cut.

    Returns:
        Rich tables; the title of the first is the report's headline. They have no rows if the run has no evaluations.
    """
    record = read_run(run) if isinstance(run, Path) else run
    parts = [("accuracy", "95 % interval", "truncated", "no answer", "samples")]
    if width < WIDE_RUN:
        parts = [("accuracy", "95 % interval"), ("truncated", "no answer", "samples")]
    return [_run_table(record, headings, headline(record) if headings is parts[0] else None) for headings in parts]


def _run_table(record: RunRecord, headings: Sequence[str], title: str | None) -> Table:
    # Text, not str: a run's name or a setting may contain what rich would read as markup.
    table = Table(title=None if title is None else Text(title), title_justify="left", pad_edge=False)
    table.add_column("mode", overflow="fold")
    table.add_column("when")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in table_rows(record):
        s = row.result
        accuracy = "-" if s.accuracy is None else share(s.accuracy)
        cells = {
            "accuracy": Text(accuracy, style="bold" if row.when == "after" else ""),
            "95 % interval": f"{share(s.low)} to {share(s.high)}",
            "truncated": share(s.truncated_share),
            "no answer": share(s.no_answer_share),
            "samples": f"{s.num_samples:,}",
        }
        cells_shown = (cells[heading] for heading in headings)
        table.add_row(row.mode, row.when, *cells_shown, end_section=row.when == "after")
    return table


WIDE = 88
"""Minimum terminal width at which the comparison table is not split."""


def comparison_tables(comparison: Comparison, width: int) -> list[Table]:
    """Build the tables of a comparison, in points: one per pair of policies, split in two on a narrow terminal.

    Args:
        comparison: result of `compare_results`.
        width: terminal width in characters; at 50 or more no number is cut, and long set names are wrapped.
    """
    parts = [("A", "B", "B - A", "95 % interval", "p (Holm)", "detectable")]
    if width < WIDE:
        parts = [("A", "B", "B - A", "p (Holm)"), ("95 % interval", "detectable")]
    tables = []
    ordered = sorted(comparison.sets, key=lambda one: (one.model_a, one.model_b))
    for (a, b), group in groupby(ordered, key=lambda one: (one.model_a, one.model_b)):
        sets = list(group)
        tables += [
            _comparison_table(sets, headings, Text(f"A = {a}\nB = {b}") if headings is parts[0] else None)
            for headings in parts
        ]
    return tables


def _comparison_table(sets: Sequence[SetComparison], headings: Sequence[str], title: Text | None) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False)
    table.add_column("set", overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for one in sets:
        cells = {
            "A": percent(one.accuracy_a),
            "B": percent(one.accuracy_b),
            "B - A": f"{100 * one.difference:+.1f}",
            "95 % interval": f"{100 * one.low:+.1f} to {100 * one.high:+.1f}",
            "p (Holm)": write_p(one.p_holm),
            "detectable": percent(one.detectable),
        }
        table.add_row(Text(one.label), *(cells[heading] for heading in headings))
    return table
