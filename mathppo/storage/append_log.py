"""A file of records that only grows, for what is written sample by sample over hours."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Generic, Self, TypeVar

import msgspec

from mathppo.errors import BadArtefact, MathPPOError
from mathppo.records import Record
from mathppo.storage.store import Kind, naming

T = TypeVar("T", bound=Record)


class AppendLog(Generic[T]):
    """A file of records that only grows: a kill leaves whole records and at most one torn tail, cut off at opening.

    Args:
        path: the file; it and its parent are made if missing.
        kind: what it holds.

    Raises:
        BadArtefact: another process has it open, or a record in it is none of its kind.
    """

    def __init__(self, path: Path, kind: Kind[T]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._kind = path, kind
        self._file: BinaryIO = open(path, "a+b")  # noqa: SIM115 - closed by close()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise BadArtefact(f"{path}: another process is writing it; wait for it or end it") from None
        self._file.seek(0)
        content = self._file.read()
        self.end = max((end for _, end in kind.frames(content)), default=0)
        self._file.truncate(self.end)

    def append(self, records: Iterable[T]) -> None:
        """Add records, and see them on the disk."""
        content = b"".join(map(self._kind.encode, records))
        with naming(self.path):
            self._file.write(content)
            self._file.flush()
            os.fsync(self._file.fileno())
        self.end += len(content)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_log(path: Path, kind: Kind[T]) -> Iterator[T]:
    """Yield the records of a readable log in order, one in memory at a time; a torn tail is left out.

    Raises:
        BadArtefact: a whole line that is none of its kind.
    """
    if not path.exists():
        return
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield kind.decode(line)
            except (msgspec.DecodeError, msgspec.ValidationError, MathPPOError) as error:
                raise BadArtefact(
                    f"{path} line {number}: expected one of {kind.name}, got {line[:60]!r} ({error}); delete the line "
                    "and run its stage again"
                ) from None
