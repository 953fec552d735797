"""Progress of long tasks: a bar on a terminal, plain lines in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

LINE_EVERY_S = 10.0
"""Seconds between two log lines of one task."""

COUNT_WIDTH, RATE_WIDTH, TIME_WIDTH = 15, 10, 7
"""Widths, in characters, of a task's counts, rate and remaining time."""

Advance = Callable[..., None]
"""`advance(count, **numbers)`: units completed since the last call, and numbers to show."""


class Reporter:
    """Shows messages and progress.

    Args:
        console: output; None = standard error. A console that is not a terminal gets plain lines.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    @contextmanager
    def task(self, title: str, total: int, *, done: int = 0) -> Iterator[Advance]:
        """Show a task of `total` units, of which an earlier run completed `done`."""
        show = self._bar if self.console.is_terminal else self._lines
        with show(title, total, done) as advance:
            yield advance

    @contextmanager
    def _bar(self, title: str, total: int, done: int) -> Iterator[Advance]:
        columns = _columns(self.console.width)
        with Progress(*columns, console=self.console) as progress:
            task: TaskID = progress.add_task(title, total=total, completed=done, rate="", numbers="")
            started = time.monotonic()
            finished = done

            def advance(count: int, **numbers: float) -> None:
                nonlocal finished
                finished += count
                rate = (finished - done) / max(time.monotonic() - started, 1e-9)
                progress.update(task, advance=count, rate=_rate(rate), numbers=_numbers(numbers))

            yield advance

    @contextmanager
    def _lines(self, title: str, total: int, done: int) -> Iterator[Advance]:
        started = shown = time.monotonic()
        finished, latest = done, {}

        def line() -> str:
            elapsed = max(time.monotonic() - started, 1e-9)
            rate = (finished - done) / elapsed
            left = f", {(total - finished) / rate:.0f} s left" if rate > 0 and finished < total else ""
            pace = f", {_rate(rate)}{left}" if rate > 0 else ""
            return f"{title}: {finished}/{total}, {elapsed:.1f} s{pace} {_numbers(latest)}".rstrip()

        def advance(count: int, **numbers: float) -> None:
            nonlocal finished, latest, shown
            finished, latest = finished + count, numbers
            if time.monotonic() - shown >= LINE_EVERY_S and finished < total:
                shown = time.monotonic()
                self.say(line())

        yield advance
        self.say(line())


def _columns(width: int) -> list[ProgressColumn]:
    """Return a task's columns that fit one line of a terminal; long titles and numbers are cut."""
    bar = 24 if width >= 100 else 8 if width >= 72 else 0
    left = max(2, width - bar - COUNT_WIDTH - RATE_WIDTH - TIME_WIDTH - 5)
    title = min(left, max(14, left // 2))

    def text(field: str, most: int) -> TextColumn:
        # Names of problem sets may contain what rich would read as markup.
        return TextColumn(field, markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", max_width=most))

    return [
        text(f"{{task.description:<{min(18, title)}}}", title),
        *([BarColumn(bar_width=bar)] if bar else []),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        text("{task.fields[rate]}", RATE_WIDTH),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
        text("{task.fields[numbers]}", max(1, left - title)),
    ]


class Silent(Reporter):
    """Shows nothing: for short tasks, or for tasks whose caller reports progress."""

    def say(self, text: str) -> None:
        pass

    @contextmanager
    def task(self, title: str, total: int, *, done: int = 0) -> Iterator[Advance]:
        yield lambda count, **numbers: None


SILENT = Silent()


def _rate(rate: float) -> str:
    """Format a rate without an exponent.

    >>> _rate(4934.2), _rate(0.2841)
    ('4,934/s', '0.284/s')
    """
    return f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.3g}/s"


def _numbers(numbers: dict[str, float]) -> str:
    return " ".join(f"{name} {value:{',.0f' if abs(value) >= 100 else '.2g'}}" for name, value in numbers.items())
