"""Files and folders on disk: written completely or not at all, replaced and removed without a half-finished state."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from graders.resumable_log import naming
from mathppo.errors import BadArtefact


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file completely or not at all: to a temporary name, flushed, renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path), open(temporary, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_record(path: Path, record: object) -> None:
    """Write one record as indented JSON."""
    write_file(path, msgspec.json.format(msgspec.json.encode(record), indent=2))


def check_free(path: Path) -> None:
    """Check that writing a folder at this path would replace nothing.

    Raises:
        BadArtefact: a file, or a folder that is not empty.
    """
    if any(path.iterdir()) if path.is_dir() else path.exists() or path.is_symlink():
        raise BadArtefact(f"{path}: expected nothing or an empty folder, found something else; choose another output")


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes that claim it; the system releases the lock when the process ends.

    Raises:
        BadArtefact: another process has claimed it.
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


def replace_folder(new: Path, path: Path) -> None:
    """Rename a finished folder to `path`, replacing what is there; `finish_replacing` completes it after a kill."""
    replaced = _replaced_path(path)
    shutil.rmtree(replaced, ignore_errors=True)
    if path.exists():
        os.rename(path, replaced)
    os.rename(new, path)
    shutil.rmtree(replaced, ignore_errors=True)


def finish_replacing(new: Path, path: Path) -> None:
    """Rename the new folder if a kill came between the two renames of `replace_folder`."""
    replaced = _replaced_path(path)
    if replaced.exists() and new.exists() and not path.exists():
        os.rename(new, path)
    shutil.rmtree(replaced, ignore_errors=True)


def _replaced_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


def remove_folder(path: Path) -> None:
    """Remove a folder; a kill leaves either all of it or nothing under its name."""
    removed = path.with_name(f".{path.name}.removed")
    if path.exists():
        shutil.rmtree(removed, ignore_errors=True)
        os.rename(path, removed)
    shutil.rmtree(removed, ignore_errors=True)
