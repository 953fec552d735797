"""Artefacts: the records that one stage writes, complete or absent, hashed and resumable.

An artefact is a directory:

    records.jsonl     one record per line
    artefact.json     kind, count, sha256, the fingerprint of its inputs, and what the records refer to

A stage appends records to the resumable log `<artefact>.partial/records.jsonl`, whose key is the fingerprint; a killed
stage continues it. The finished directory is flushed and renamed. Records of scores refer to their rollouts, which are
in another artefact, by problem and sample index, so that token ids are stored once.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from graders.errors import BadInput as BadLog
from graders.resumable_log import ResumableLog, key_path, read_lines
from mathppo.errors import BadArtefact, MathPPOError
from mathppo.records import Problem, Record, Rollout, Score, ScoredRollout
from mathppo.storage import files

T = TypeVar("T", bound=Record)
RECORDS, HEADER = "records.jsonl", "artefact.json"


class Kind(msgspec.Struct, Generic[T], frozen=True):
    """A kind of artefact or log: its name and the type of its records."""

    name: str
    record: type[T]

    def encode(self, record: T) -> bytes:
        return msgspec.json.encode(record)

    def decode(self, line: bytes) -> T:
        return msgspec.json.decode(line, type=self.record)


PROBLEMS = Kind("problems", Problem)
ROLLOUTS = Kind("rollouts", Rollout)
SCORED = Kind("scored_rollouts", Score)


class Source(Record, frozen=True, tag=False):
    """The artefact that records refer to.

    Args:
        path: its directory, relative to the directory of the records.
        sha256: of its records.
    """

    path: str
    sha256: str


class HeaderV1(Record, frozen=True, tag="artefact/1"):
    """Header of an earlier version, which kept rollouts and their scores in another format.

    Args:
        kind: name of the artefact's kind.
        count: number of records.
        sha256: of `records.jsonl`.
        fingerprint: of the inputs and settings it was made from.
    """

    kind: str
    count: int
    sha256: str
    fingerprint: str


class Header(HeaderV1, frozen=True, tag="artefact/2"):
    """Contents of `artefact.json`; see `HeaderV1`.

    Args:
        source: the artefact that the records refer to; None if they refer to none.
    """

    source: Source | None = None


def fingerprint(**parts: Any) -> str:
    """Return a sha256 of named parts (structs, numbers, texts, lists); their order does not matter."""
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()


class ArtefactWriter(AbstractContextManager["ArtefactWriter[T]"], Generic[T]):
    """Appends records to an artefact; after a kill, the next writer continues it.

    Args:
        path: the artefact's directory; its parent is made if missing.
        kind: kind of the records.
        made_from: fingerprint of inputs and settings.
        unit: of an unfinished artefact, keep the longest head that is a multiple of this many records.
        source: directory of the artefact that the records refer to.

    Attributes:
        done: the records that an earlier, killed run of the stage wrote.

    Raises:
        BadArtefact: `path` exists, an unfinished artefact was made from something else, or another process writes it.
    """

    def __init__(self, path: Path, kind: Kind[T], made_from: str, *, unit: int = 1, source: Path | None = None) -> None:
        if path.exists():
            raise BadArtefact(f"{path}: expected no artefact yet, found one; delete it or choose another output folder")
        self._path, self._kind, self._made_from, self._source = path, kind, made_from, source
        self._partial = partial_path(path)
        self._log = open_log(self._partial / RECORDS, key=made_from)
        try:
            self.done = list(read_log(self._log.path, kind, remedy=f"delete {self._partial} and run its stage again"))
            self.done = self.done[: len(self.done) - len(self.done) % unit]
            self._log.keep(len(self.done))
        except BaseException:
            self.close()
            raise
        self._count = len(self.done)

    def append(self, records: Sequence[T]) -> None:
        """Add records and flush them to disk."""
        self._log.append(map(self._kind.encode, records))
        self._count += len(records)

    def finish(self) -> None:
        """Write the header and give the directory its final name."""
        source = None
        if self._source is not None:
            relative = os.path.relpath(self._source, self._path)
            source = Source(path=relative, sha256=read_header(self._source, ROLLOUTS).sha256)
        header = Header(
            kind=self._kind.name,
            count=self._count,
            sha256=_sha256(self._log.path),
            fingerprint=self._made_from,
            source=source,
        )
        files.write_record(self._partial / HEADER, header)
        os.rename(self._partial, self._path)
        # Only after the rename: unfinished work without its key could not be continued.
        key_path(self._path / RECORDS).unlink()
        self.close()

    def discard(self) -> None:
        """Delete the unfinished artefact: the next writer starts again."""
        self.close()
        files.remove_folder(self._partial)

    def close(self) -> None:
        self._log.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def open_log(path: Path, key: str | None = None) -> ResumableLog:
    """Open a log to append to; see `graders.resumable_log`. Its folder is made if missing.

    Raises:
        BadArtefact: another process writes it, or it was written under another key.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return ResumableLog(path, key)
    except BadLog as error:
        raise BadArtefact(str(error)) from None


def read_log(path: Path, kind: Kind[T], *, remedy: str = "delete the line and run its stage again") -> Iterator[T]:
    """Yield the records of a log in order, one in memory at a time; an incomplete last line is left out.

    Args:
        path: the log; a missing one is empty.
        kind: kind of the records.
        remedy: what the message on a bad line advises.

    Raises:
        BadArtefact: a line that is not a record of this kind.
    """
    if not path.exists():
        return
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield kind.decode(line)
        except (msgspec.DecodeError, msgspec.ValidationError, MathPPOError) as error:
            tag = kind.record.__struct_config__.tag
            raise BadArtefact(
                f"{path} line {number}: expected a record of {kind.name} ({tag}), got {line[:60]!r} ({error}); {remedy}"
            ) from None


def partial_path(path: Path) -> Path:
    """Return the directory of the unfinished artefact."""
    return path.with_name(path.name + ".partial")


def is_finished(path: Path, kind: Kind[Any], made_from: str) -> bool:
    """Return True if the artefact is complete and made from the same inputs, False if there is none.

    Raises:
        BadArtefact: something else is at its path.
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
        BadArtefact: missing, unreadable, of another kind, or in the format of an earlier version.
    """
    if not path.is_dir():
        unfinished = f"; {partial_path(path)} is unfinished: run its stage again" if partial_path(path).exists() else ""
        raise BadArtefact(f"{path}: expected a folder with {kind.name}, found none{unfinished}")
    try:
        header = msgspec.json.decode((path / HEADER).read_bytes(), type=Header | HeaderV1)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadArtefact(f"{path / HEADER}: expected the header of {kind.name}, got: {error}") from None
    if header.kind != kind.name:
        raise BadArtefact(f"{path}: expected {kind.name}, found {header.kind}; give the folder of the right stage")
    if isinstance(header, Header):
        return header
    if kind.name != PROBLEMS.name:
        raise BadArtefact(
            f"{path / HEADER}: expected artefact/2, found artefact/1, in which an earlier version kept {kind.name}; "
            f"delete {path} and run its stage again, or read it with that version"
        )
    return Header(**msgspec.structs.asdict(header))


def read_artefact(path: Path, kind: Kind[T]) -> list[T]:
    """Read all records of an artefact, after checking its kind, hash and count.

    Raises:
        BadArtefact: missing, of another kind, or damaged.
    """
    header, file = read_header(path, kind), path / RECORDS
    try:
        found = _sha256(file)
    except OSError as error:
        raise BadArtefact(f"{file}: cannot be read ({error}); delete {path} and run its stage again") from None
    if found != header.sha256:
        raise BadArtefact(f"{file}: damaged, its sha256 is not the header's; delete {path} and run its stage again")
    records = list(read_log(file, kind, remedy=f"delete {path} and run its stage again"))
    if len(records) != header.count:
        raise BadArtefact(
            f"{path}: expected {header.count} records, got {len(records)}; delete it and run its stage again"
        )
    return records


def read_scored(path: Path) -> list[ScoredRollout]:
    """Read an artefact of scores together with the rollouts that it refers to.

    Raises:
        BadArtefact: either is missing or damaged, or the rollouts are not those that were scored.
    """
    source = read_header(path, SCORED).source
    if source is None:
        raise BadArtefact(f"{path / HEADER}: expected the artefact of the rollouts, got none; run grade again")
    rollouts_path = Path(os.path.normpath(path.absolute() / source.path))
    if read_header(rollouts_path, ROLLOUTS).sha256 != source.sha256:
        raise BadArtefact(f"{path}: expected the rollouts it scores in {rollouts_path}, found others; run grade again")
    return pair_scores(path, read_artefact(rollouts_path, ROLLOUTS), read_artefact(path, SCORED))


def pair_scores(path: Path, rollouts: Sequence[Rollout], scores: Iterable[Score]) -> list[ScoredRollout]:
    """Return the scores of the artefact at `path` in their order, each with its rollout.

    Raises:
        BadArtefact: a score without a rollout.
    """
    by_key = {rollout.key: rollout for rollout in rollouts}
    paired = []
    for score in scores:
        if score.key not in by_key:
            raise BadArtefact(
                f"{path}: expected scores of the {len(by_key)} rollouts given, found one of {score.problem_id!r} "
                f"sample {score.sample_index}; delete it and run grade again"
            )
        paired.append(ScoredRollout(rollout=by_key[score.key], verdict=score.verdict, reward=score.reward))
    return paired


def write_artefact(
    path: Path, kind: Kind[T], records: Sequence[T], made_from: str, *, source: Path | None = None
) -> None:
    """Write a whole artefact; an unfinished one made from the same inputs is continued."""
    with ArtefactWriter(path, kind, made_from, source=source) as writer:
        writer.append(records[len(writer.done) :])
        writer.finish()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
