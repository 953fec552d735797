"""Tables for a terminal: before and after a run, and evaluations beside each other."""

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
"""Columns of a terminal from which before and after fit into one table."""


def terminal_tables(run: RunRecord | Path, width: int) -> list[Table]:
    """Make the table of held-out accuracy before and after, in two parts where there is no room.

    Args:
        run: a run directory, or what `read_run` made of one.
        width: columns of the terminal; from 60 on no number is cut.

    Returns:
        Rich tables; the first one's title is the report's headline, and a run without evaluations gives them no rows.
    """
    record = read_run(run) if isinstance(run, Path) else run
    parts = [("accuracy", "95 % interval", "truncated", "no answer", "samples")]
    if width < WIDE_RUN:
        parts = [("accuracy", "95 % interval"), ("truncated", "no answer", "samples")]
    return [_run_table(record, headings, headline(record) if headings is parts[0] else None) for headings in parts]


def _run_table(record: RunRecord, headings: Sequence[str], title: str | None) -> Table:
    # Text, not str: a run's name or a setting may hold what rich would read as markup.
    table = Table(title=None if title is None else Text(title), title_justify="left", pad_edge=False)
    table.add_column("mode", overflow="fold")
    table.add_column("when")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in table_rows(record):
        s = row.standing
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
"""Columns of a terminal from which all numbers of a comparison fit beside the name of a set."""


def comparison_tables(comparison: Comparison, width: int) -> list[Table]:
    """Make the tables of a comparison, in points: one for each pair of policies, in two parts where there is no room.

    Args:
        comparison: as `compare_results` gives it.
        width: columns of the terminal; from 50 on no number is cut, and names of sets are folded.
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
