"""`graders grade`: grades a file of any length in batches, with a progress bar, and resumes an interrupted run.

Verdicts go to `.NAME.partial` next to the output, one per line in input order, and become the output when the last is
written. Its first line is a claim, which names the input and the grader; a run with the same claim resumes after the
last whole line.
"""

import argparse
import hashlib
import os
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import IO

import msgspec

from graders.cli.options import FOUND_FAILURE, OK, pool_of
from graders.cli.rows import read_rows
from graders.errors import BadInput
from graders.sandbox.host.pool import GraderPool
from graders.verdict import Status

BATCH_ROWS = 4096
BAR_CHARS = 30
BAR_EVERY_S = 0.5


class Row(msgspec.Struct, frozen=True):
    """One row of input; other fields are ignored."""

    completion: str
    reference: str
    question: str | None = None


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Input and settings of the verdicts in a partial file; it is resumed only if all of them match."""

    input_sha256: str
    grader: str
    time_limit_s: float
    memory_limit_bytes: int


class _VerdictStatus(msgspec.Struct, frozen=True):
    status: Status


def grade(options: argparse.Namespace) -> int:
    """Grade a file and return 1 if the grader failed on any row."""
    total = sum(1 for _ in read_rows(options.file, Row))  # rejects an invalid line before any work is done
    if options.out is None:
        with pool_of(options) as pool:
            counts = _graded(pool, options.file, total, Counter(), sys.stdout.buffer)
    else:
        counts = _resumable(options, total)
    summary = ", ".join(f"{status.value} {counts[status]}" for status in Status if counts[status])
    print(summary or f"{options.file}: no rows", file=sys.stderr)
    return FOUND_FAILURE if counts[Status.ERROR] else OK


def partial_path(out: Path) -> Path:
    """Return the file that holds the verdicts of an unfinished run."""
    return out.with_name(f".{out.name}.partial")


def _resumable(options: argparse.Namespace, total: int) -> Counter[Status]:
    partial = partial_path(options.out)
    try:
        claim = Claim(_sha256(options.file), options.grader, options.time_limit, options.memory_limit)
        done = _resume(partial, claim)
        if sum(done.values()):
            print(f"resuming after {sum(done.values())} of {total} rows", file=sys.stderr)
        with pool_of(options) as pool, partial.open("ab") as file:
            counts = _graded(pool, options.file, total, done, file)
        _publish(partial, options.out)
    except OSError as error:
        raise BadInput(f"{options.out}: expected a writable location, got {error.strerror}") from error
    return counts


def _graded(pool: GraderPool, path: Path, total: int, done: Counter[Status], file: IO[bytes]) -> Counter[Status]:
    """Grade the rows that are not done, append their verdicts to `file`, and return the counts of all rows."""
    counts = Counter(done)
    rows = islice(read_rows(path, Row), sum(done.values()), None)
    bar = ProgressBar(total, sum(done.values()))
    while batch := list(islice(rows, BATCH_ROWS)):
        verdicts = pool.grade([(row.completion, row.reference, row.question) for row in batch])
        file.write(b"".join(msgspec.json.encode(verdict) + b"\n" for verdict in verdicts))
        file.flush()
        counts.update(verdict.status for verdict in verdicts)
        bar.show(sum(counts.values()))
    bar.close()
    return counts


def _resume(partial: Path, claim: Claim) -> Counter[Status]:
    """Cut a partial file after its last whole line and return its counts; empty it if its claim differs."""
    counts: Counter[Status] = Counter()
    end = 0
    if partial.exists():
        decoder = msgspec.json.Decoder(_VerdictStatus)
        with partial.open("rb") as file:
            if _claimed(file.readline()) == claim:
                end = file.tell()
                for line in file:
                    try:
                        counts[decoder.decode(line).status] += 1 if line.endswith(b"\n") else 0
                    except (msgspec.MsgspecError, UnicodeDecodeError):
                        break
                    end += len(line) if line.endswith(b"\n") else 0
    with partial.open("r+b" if end else "wb") as file:
        file.truncate(end)
        if not end:
            file.write(msgspec.json.encode(claim) + b"\n")
    return counts


def _claimed(line: bytes) -> Claim | None:
    try:
        return msgspec.json.decode(line, type=Claim)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _publish(partial: Path, out: Path) -> None:
    """Write the verdicts without the claim to `out` in one atomic step."""
    aside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with partial.open("rb") as source, aside.open("wb") as target:
            source.readline()
            while block := source.read(1 << 20):
                target.write(block)
            target.flush()
            os.fsync(target.fileno())
        aside.replace(out)
        partial.unlink()
    finally:
        aside.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ProgressBar:
    """Progress bar on stderr; prints nothing if stderr is not a terminal.

    Args:
        total: number of rows.
        done: rows graded by an earlier run.
    """

    def __init__(self, total: int, done: int) -> None:
        self.total = total
        self._first = done
        self._start = self._drawn = time.monotonic()
        self._visible = sys.stderr.isatty()

    def show(self, done: int) -> None:
        """Redraw the bar for this number of rows, at most twice per second."""
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
