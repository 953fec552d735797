"""The before-and-after table for the end of a run in a terminal.

Touches: the run directory it is given, for reading.
"""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from mathppo.report.axes import share
from mathppo.report.page import headline, table_rows
from mathppo.report.reading import RunRecord, read_run


def terminal_table(run: RunRecord | Path) -> Table:
    """Make the table of held-out accuracy before and after, with 95 % intervals, truncated and no-answer shares.

    Args:
        run: a run directory, or what `read_run` made of one.

    Returns:
        A rich table; its title is the report's headline, and a run without evaluations gives it no rows.
    """
    record = read_run(run) if isinstance(run, Path) else run
    # Text, not str: a run's name or a setting may hold what rich would read as markup.
    table = Table(title=Text(headline(record)), title_justify="left", pad_edge=False)
    table.add_column("mode")
    table.add_column("when")
    for heading in ("accuracy", "95% interval", "truncated", "no answer", "samples"):
        table.add_column(heading, justify="right")
    for row in table_rows(record):
        s = row.standing
        table.add_row(
            row.mode,
            row.when,
            Text("-" if s.accuracy is None else share(s.accuracy), style="bold" if row.when == "after" else ""),
            f"{share(s.low)} to {share(s.high)}",
            share(s.truncated_share),
            share(s.no_answer_share),
            f"{s.num_samples:,}",
            end_section=row.when == "after",
        )
    return table
