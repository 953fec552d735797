"""Command `graders grade`: grades a file of any size in batches, with a progress bar, and resumes after a kill.

Verdicts go to the resumable log `.NAME.partial` in the folder of the output, one per line in input order; the log is
renamed when the last verdict is there. A log of another input, grader or limit is discarded.
"""

import argparse
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import msgspec

from graders.cli.pool_options import FOUND_FAILURE, OK, pool_of
from graders.cli.rows import read_rows
from graders.errors import BadInput
from graders.resumable_log import ResumableLog
from graders.verdict import Status

BATCH_ROWS = 4096
BAR_CHARS = 30
BAR_EVERY_S = 0.5


class Row(msgspec.Struct, frozen=True):
    """One line of input to `graders grade`; other fields are ignored."""

    completion: str
    reference: str
    question: str | None = None


class _StatusOnly(msgspec.Struct, frozen=True):
    status: Status


def grade(options: argparse.Namespace) -> int:
    """Grade a file; return 1 if an answer could not be graded."""
    total = sum(1 for _ in read_rows(options.file, Row))  # reject a bad line before any work is done
    counts = _grade_to_file(options, total) if options.out else _grade_rows(options, total, Counter(), _write_to_stdout)
    summary = ", ".join(f"{status.value} {counts[status]}" for status in Status if counts[status])
    print(summary or f"{options.file}: no rows", file=sys.stderr)
    return FOUND_FAILURE if counts[Status.ERROR] else OK


def partial_path(out: Path) -> Path:
    """Return the log of an unfinished run."""
    return out.with_name(f".{out.name}.partial")


def _grade_to_file(options: argparse.Namespace, total: int) -> Counter[Status]:
    key = [_sha256(options.file), options.grader, options.time_limit, options.memory_limit]
    try:
        with ResumableLog(partial_path(options.out), msgspec.json.encode(key).decode(), restart=True) as log:
            done = _count_verdicts(log)
            if done.total():
                print(f"resuming after {done.total()} of {total} rows", file=sys.stderr)
            counts = _grade_rows(options, total, done, log.append)
            log.publish(options.out)
    except OSError as error:
        raise BadInput(f"{options.out}: expected a writable location, got {error.strerror}") from error
    return counts


def _count_verdicts(log: ResumableLog) -> Counter[Status]:
    """Count the verdicts in a log by status, and cut it before the first damaged line."""
    counts: Counter[Status] = Counter()
    decoder = msgspec.json.Decoder(_StatusOnly)
    for line in log.lines():
        try:
            counts[decoder.decode(line).status] += 1
        except (msgspec.MsgspecError, UnicodeDecodeError):
            break
    log.keep(counts.total())
    return counts


def _grade_rows(
    options: argparse.Namespace, total: int, done: Counter[Status], write: Callable[[Iterable[bytes]], None]
) -> Counter[Status]:
    """Grade the rows that come after those already done, write their verdicts, and return the counts of all."""
    counts, rows = Counter(done), islice(read_rows(options.file, Row), done.total(), None)
    bar = ProgressBar(total, done.total())
    with pool_of(options) as pool:
        while batch := list(islice(rows, BATCH_ROWS)):
            verdicts = pool.grade([(row.completion, row.reference, row.question) for row in batch])
            write([msgspec.json.encode(verdict) for verdict in verdicts])
            counts.update(verdict.status for verdict in verdicts)
            bar.show(counts.total())
    bar.close()
    return counts


def _write_to_stdout(lines: Iterable[bytes]) -> None:
    sys.stdout.buffer.writelines(line + b"\n" for line in lines)
    sys.stdout.buffer.flush()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ProgressBar:
    """One line on stderr that is redrawn as rows are done; silent if stderr is not a terminal.

    Args:
        total: number of rows.
        done: number of rows done before.
    """

    def __init__(self, total: int, done: int) -> None:
        self.total = total
        self._first = done
        self._start = self._drawn = time.monotonic()
        self._visible = sys.stderr.isatty()

    def show(self, done: int) -> None:
        """Draw the bar at `done` rows, at most every `BAR_EVERY_S` seconds."""
        now = time.monotonic()
        if self._visible and (now - self._drawn >= BAR_EVERY_S or done == self.total):
            self._drawn = now
            rate = (done - self._first) / (now - self._start)
            print("\r" + bar_text(done, self.total, rate), end="", file=sys.stderr)

    def close(self) -> None:
        """End the line."""
        if self._visible:
            print(file=sys.stderr)


def bar_text(done: int, total: int, rows_per_s: float) -> str:
    """Return the bar as text: `[#####.....] 50 % 500/1000 rows, 100/s, 5 s left`."""
    share = done / total if total else 1.0
    filled = round(BAR_CHARS * share)
    left = f", {(total - done) / rows_per_s:.0f} s left" if rows_per_s > 0 and done < total else ""
    bar = "#" * filled + "." * (BAR_CHARS - filled)
    return f"[{bar}] {100 * share:.0f} % {done}/{total} rows, {rows_per_s:.0f}/s{left}  "
