"""The only reader and writer of records: whole or absent, versioned, hashed, resumable.

An artefact is a directory that one stage writes:

    records.jsonl | records.msgpack     the records; token arrays go in msgpack, length-prefixed
    artefact.json                       kind, count, sha256, and the fingerprint of what it was made from

While a stage runs, records are appended to `<artefact>.partial/`; a killed stage finds them there and goes on after the
last whole one. When all are there, the directory is flushed and renamed: it exists complete or not at all. The
fingerprint says which inputs and settings it was made from, so that a finished artefact is never mistaken for another.
"""

import fcntl
import hashlib
import os
import shutil
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Generic, Self, TypeVar

import msgspec

from mathppo.errors import BadArtefact, MathPPOError
from mathppo.records import Problem, Record, Rollout, ScoredRollout

T = TypeVar("T", bound=Record)
_LENGTH = struct.Struct("<I")


class Kind(msgspec.Struct, Generic[T], frozen=True):
    """A kind of artefact: its name, the type of its records, and whether a person reads them."""

    name: str
    record: type[T]
    readable: bool

    @property
    def file(self) -> str:
        return "records.jsonl" if self.readable else "records.msgpack"

    def encode(self, record: T) -> bytes:
        if self.readable:
            return msgspec.json.encode(record) + b"\n"
        payload = msgspec.msgpack.encode(record)
        return _LENGTH.pack(len(payload)) + payload

    def frames(self, content: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield (payload, end offset) of each whole frame; a torn tail is left out."""
        start = 0
        while True:
            if self.readable:
                end = content.find(b"\n", start) + 1
                if end == 0:
                    return
                yield content[start : end - 1], end
            else:
                if len(content) < start + _LENGTH.size:
                    return
                (length,) = _LENGTH.unpack_from(content, start)
                end = start + _LENGTH.size + length
                if len(content) < end:
                    return
                yield content[start + _LENGTH.size : end], end
            start = end

    def decode(self, payload: bytes) -> T:
        decode = msgspec.json.decode if self.readable else msgspec.msgpack.decode
        return decode(payload, type=self.record)


PROBLEMS = Kind("problems", Problem, True)
ROLLOUTS = Kind("rollouts", Rollout, False)
SCORED = Kind("scored_rollouts", ScoredRollout, False)


class Header(Record, frozen=True, tag="artefact/1"):
    """What `artefact.json` says.

    Args:
        kind: name of the artefact's kind.
        count: number of records.
        sha256: of the file of records.
        fingerprint: of the inputs and settings it was made from.
    """

    kind: str
    count: int
    sha256: str
    fingerprint: str


def fingerprint(**parts: Any) -> str:
    """Give a sha256 over named parts: structs, numbers, texts, lists; it does not depend on their order."""
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


class ArtefactWriter(Generic[T]):
    """Appends records to an artefact that a killed stage can go on with.

    Args:
        path: the artefact's directory; its parent is made if missing.
        kind: what it holds.
        made_from: fingerprint of inputs and settings.
        unit: of an unfinished artefact, the longest head of a multiple of this many records is kept.

    Attributes:
        done: the records that an earlier, killed run of the stage already wrote.

    Raises:
        BadArtefact: `path` exists already, a partial one was made from something else, or another process writes it.
    """

    def __init__(self, path: Path, kind: Kind[T], made_from: str, *, unit: int = 1) -> None:
        if path.exists():
            raise BadArtefact(f"{path}: expected no artefact yet, found one; delete it or choose another output folder")
        self._path, self._kind, self._made_from = path, kind, made_from
        self._partial = partial_path(path)
        self._partial.mkdir(parents=True, exist_ok=True)
        self._claim()
        content = (self._partial / kind.file).read_bytes() if (self._partial / kind.file).exists() else b""
        frames = list(kind.frames(content))
        frames = frames[: len(frames) - len(frames) % unit]
        self.done = [_decode(kind, payload, self._partial, i) for i, (payload, _) in enumerate(frames)]
        end = frames[-1][1] if frames else 0
        self._file = open(self._partial / kind.file, "ab")  # noqa: SIM115 - closed by close()
        self._file.truncate(end)
        self._hash = hashlib.sha256(content[:end])
        self._count = len(self.done)

    def _claim(self) -> None:
        """Lock the partial directory and see that it was made from the same inputs."""
        origin = self._partial / "made_from"
        self._lock: BinaryIO = open(origin, "a+b")  # noqa: SIM115 - closed by close()
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise BadArtefact(f"{self._partial}: another process is writing it; wait for it or end it") from None
        self._lock.seek(0)
        found = self._lock.read().decode("ascii", "replace")
        if found in ("", self._made_from):
            self._lock.truncate(0)
            self._lock.write(self._made_from.encode())
            self._lock.flush()
        else:
            self._lock.close()
            raise BadArtefact(
                f"{self._partial}: holds unfinished work made from other inputs or settings; delete it or choose "
                "another output folder"
            )

    def append(self, records: Iterable[T]) -> None:
        with naming(self._partial):
            for record in records:
                frame = self._kind.encode(record)
                self._file.write(frame)
                self._hash.update(frame)
                self._count += 1
            self._file.flush()

    def finish(self) -> None:
        """Flush to disk, write the header, and give the directory its final name."""
        os.fsync(self._file.fileno())
        header = Header(
            kind=self._kind.name, count=self._count, sha256=self._hash.hexdigest(), fingerprint=self._made_from
        )
        write_file(self._partial / "artefact.json", msgspec.json.format(msgspec.json.encode(header), indent=2))
        self.close()
        os.rename(self._partial, self._path)
        # After the rename: unfinished work that does not say what it was made from would be taken for any other's.
        (self._path / "made_from").unlink()

    def discard(self) -> None:
        """Give up what is unfinished: the next writer starts from nothing."""
        self.close()
        remove_folder(self._partial)

    def close(self) -> None:
        try:
            with naming(self._partial):
                self._file.close()
        finally:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def partial_path(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def is_finished(path: Path, kind: Kind[Any], made_from: str) -> bool:
    """Tell whether the artefact is there, complete, and made from the same inputs.

    Raises:
        BadArtefact: something else stands in its place.
    """
    if not path.exists():
        return False
    if read_header(path, kind).fingerprint != made_from:
        raise BadArtefact(
            f"{path}: was made from other inputs or settings; delete it, or choose another output folder to keep both"
        )
    return True


def read_header(path: Path, kind: Kind[Any]) -> Header:
    """Read `artefact.json` and check the kind.

    Raises:
        BadArtefact: missing, unreadable, or of another kind.
    """
    if not path.is_dir():
        unfinished = f"; {partial_path(path)} is unfinished: run its stage again" if partial_path(path).exists() else ""
        raise BadArtefact(f"{path}: expected a folder with {kind.name}, found none{unfinished}")
    try:
        header = msgspec.json.decode((path / "artefact.json").read_bytes(), type=Header)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadArtefact(f"{path / 'artefact.json'}: expected the header of {kind.name}, got: {error}") from None
    if header.kind != kind.name:
        raise BadArtefact(f"{path}: expected {kind.name}, found {header.kind}; give the folder of the right stage")
    return header


def read_artefact(path: Path, kind: Kind[T]) -> list[T]:
    """Read all records of an artefact, after checking its kind, count and hash.

    Raises:
        BadArtefact: missing, of another kind, or damaged.
    """
    header = read_header(path, kind)
    try:
        content = (path / kind.file).read_bytes()
    except OSError as error:
        raise BadArtefact(f"{path / kind.file}: cannot be read ({error}); run its stage again") from None
    if hashlib.sha256(content).hexdigest() != header.sha256:
        raise BadArtefact(f"{path / kind.file}: damaged, its sha256 is not the header's; delete {path}, redo its stage")
    records = [_decode(kind, payload, path, i) for i, (payload, _) in enumerate(kind.frames(content))]
    if len(records) != header.count:
        raise BadArtefact(f"{path}: expected {header.count} records, got {len(records)}; delete it and redo its stage")
    return records


def _decode(kind: Kind[T], payload: bytes, path: Path, index: int) -> T:
    try:
        return kind.decode(payload)
    except (msgspec.DecodeError, msgspec.ValidationError, MathPPOError) as error:
        raise BadArtefact(f"{path}: record {index} is none of {kind.name} ({error}); redo its stage") from None


def write_artefact(path: Path, kind: Kind[T], records: Iterable[T], made_from: str) -> None:
    """Write an artefact in one go; a partial one of the same origin is replaced."""
    with ArtefactWriter(path, kind, made_from) as writer:
        writer.append(list(records)[len(writer.done) :])
        writer.finish()


def check_free(path: Path) -> None:
    """See that nothing stands where a folder is to be written, which would be replaced.

    Raises:
        BadArtefact: a file, or a folder with something in it.
    """
    if any(path.iterdir()) if path.is_dir() else path.exists() or path.is_symlink():
        raise BadArtefact(f"{path}: expected nothing or an empty folder, found something else; choose another output")


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Keep every other process that claims a folder out of it; the claim ends with the process, however it ends.

    Raises:
        BadArtefact: another process has it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadArtefact(f"{folder}: another process is at work in it; wait for it or end it") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an OSError that knows no file, as a full disk raises, the path that was being written."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file whole or not at all: aside, flushed, renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path), open(aside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def replace_folder(new: Path, path: Path) -> None:
    """Give a finished folder its name, in place of one that has it; what a kill interrupts, `finish_replacing` ends."""
    replaced = _replaced_path(path)
    shutil.rmtree(replaced, ignore_errors=True)
    if path.exists():
        os.rename(path, replaced)
    os.rename(new, path)
    shutil.rmtree(replaced, ignore_errors=True)


def finish_replacing(new: Path, path: Path) -> None:
    """Give the new folder its name where a kill came between the two renames of `replace_folder`."""
    replaced = _replaced_path(path)
    if replaced.exists() and new.exists() and not path.exists():
        os.rename(new, path)
    shutil.rmtree(replaced, ignore_errors=True)


def _replaced_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


def remove_folder(path: Path) -> None:
    """Remove a folder so that a kill in between leaves no half of it under its name."""
    doomed = path.with_name(f".{path.name}.removed")
    if path.exists():
        shutil.rmtree(doomed, ignore_errors=True)
        os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
