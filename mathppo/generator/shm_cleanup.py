"""Shared memory that outlives a killed process, taken back when its run ends or when the next one starts.

vLLM's processes talk through `psm_*` segments of some 200 MB each. The process that made one removes it; one that is
killed does not, and neither does a trainer that is killed with its files of weights. A claim is a locked folder beside
the segments, which names them; the system lets go of the lock whatever ends the process, and whoever can take it knows.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

MEMORY_DISK = Path("/dev/shm")
PREFIX = "mathppo-"
SEGMENTS = "psm_*"
LOCK, NAMES = "lock", "segments"


class Claim:
    """A folder of this process in memory, where the system has a disk there, and the segments that go with it.

    Opening one first takes back what processes left that are gone.

    Args:
        root: where it is made.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or (MEMORY_DISK if MEMORY_DISK.is_dir() else Path(tempfile.gettempdir()))
        take_back(self._root)
        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=self._root))
        self._lock = os.open(made / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # The name by which others find it comes last: they would take it back before it is locked.
        self.folder = made.rename(made.with_name(made.name[1:]))
        self._closed = False

    def note(self, *pids: int) -> None:
        """Take note of the segments that processes and those below them hold."""
        names = {name for pid in pids for member in _family(pid) for name in _mapped(member, self._root)}
        (self.folder / NAMES).write_text("\n".join(sorted(names)), "utf-8")

    def free(self) -> None:
        """Remove the noted segments that are still there; their processes are gone."""
        _remove_segments(self.folder)

    def close(self) -> None:
        """Remove everything; a second call does nothing."""
        if not self._closed:
            self.free()
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._closed = True


def take_back(root: Path) -> None:
    """Remove the claims of processes that are gone, and their segments."""
    for folder in root.glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder / LOCK, os.O_RDWR)
        except OSError:
            continue  # another user's
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            _remove_segments(folder)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _remove_segments(folder: Path) -> None:
    names = folder / NAMES
    if not names.is_file():
        return
    for name in names.read_text("utf-8").split():
        path = folder.parent / name
        if path.match(SEGMENTS) and path.parent == folder.parent:
            path.unlink(missing_ok=True)
    names.unlink()


def _family(pid: int) -> list[int]:
    """Give a process and all below it."""
    found = [pid]
    for member in found:
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:
                continue  # ended meanwhile
    return found


def _mapped(pid: int, root: Path) -> set[str]:
    """Give the names of the segments that a process holds."""
    try:
        paths = {Path(line.split(maxsplit=5)[5]) for line in _lines(pid) if f"{root}/" in line}
    except OSError:
        return set()
    return {path.name for path in paths if path.parent == root and path.match(SEGMENTS)}


def _lines(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines()
