"""Resumable log: an append-only file of JSON lines that a killed process continues after its last whole line.

Everything that is written record by record over a long time uses it: artefacts, samples and verdicts, training metrics,
the output of `graders grade`. A log that belongs to certain inputs and settings has a key, kept in `<log>.key`; it is
continued only under the same key.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from graders.errors import BadInput

BLOCK_BYTES = 1 << 16


class ResumableLog(AbstractContextManager["ResumableLog"]):
    """Append-only file of lines with one writer; opening it cuts off a last line that a kill left incomplete.

    Args:
        path: the file; created if missing, in a folder that exists.
        key: identity of the inputs and settings that the lines were made from; None if the log depends on none.
        restart: discard lines that were written under another key, instead of raising.

    Raises:
        BadInput: another process has the log open, or its lines were written under another key.
    """

    def __init__(self, path: Path, key: str | None = None, *, restart: bool = False) -> None:
        self.path = path
        self._file = open(path, "a+b")  # noqa: SIM115 - closed by close()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.truncate(self._end_of_last_line())
            if key is not None:
                self._check_key(key, restart)
        except BlockingIOError:
            self._file.close()
            raise BadInput(f"{path}: another process is writing it; wait for it or end it") from None
        except BaseException:
            self._file.close()
            raise

    def _end_of_last_line(self) -> int:
        end = self._file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - BLOCK_BYTES)
            self._file.seek(start)
            newline = self._file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
        return 0

    def _check_key(self, key: str, restart: bool) -> None:
        file = key_path(self.path)
        found = file.read_text("utf-8", "replace") if file.exists() else None
        if found == key:
            return
        if self._file.seek(0, os.SEEK_END) and not restart:
            raise BadInput(
                f"{self.path}: holds unfinished work made from other inputs or settings; delete it or choose another "
                "output"
            )
        self._file.truncate(0)
        with open(file, "wb") as output:
            output.write(key.encode())
            output.flush()
            os.fsync(output.fileno())

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the log without their newlines."""
        return read_lines(self.path)

    def keep(self, num_lines: int) -> None:
        """Cut the log after its first `num_lines` lines."""
        self._file.seek(0)
        for _ in range(num_lines):
            self._file.readline()
        self._file.truncate(self._file.tell())

    def append(self, lines: Iterable[bytes]) -> None:
        """Add lines, given without their newlines, and flush them to disk."""
        with naming(self.path):
            self._file.writelines(line + b"\n" for line in lines)
            self._file.flush()
            os.fsync(self._file.fileno())

    def publish(self, path: Path) -> None:
        """Rename the log to its final path, remove its key, which only unfinished work needs, and close it."""
        os.replace(self.path, path)
        key_path(self.path).unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close the file and release the lock."""
        with naming(self.path):
            self._file.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def key_path(log: Path) -> Path:
    """Return the file that holds the key of an unfinished log."""
    return log.with_name(f"{log.name}.key")


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file without their newlines; a last line without one is an incomplete write, and left out.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line[:-1]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to an OSError that names no file, as a full disk raises."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
