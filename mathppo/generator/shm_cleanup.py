"""Cleanup of shared memory: removes segments and files left by killed processes.

vLLM's processes communicate through `psm_*` segments of about 200 MB each. A killed process leaves its segments in
/dev/shm, and a killed trainer leaves its weight files. Each trainer therefore keeps a locked folder next to the
segments, with a list of their names. The kernel releases the lock when the process ends, so a folder whose lock is free
is stale.
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


class ShmFolder:
    """Locked folder of this process, in shared memory if available, with the names of its segments.

    Creating one first removes stale folders and their segments.

    Args:
        root: parent folder; None = /dev/shm, or the temporary folder where that is missing.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or (MEMORY_DISK if MEMORY_DISK.is_dir() else Path(tempfile.gettempdir()))
        remove_stale_folders(self._root)
        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=self._root))
        self._lock = os.open(made / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Rename after locking: under its final name an unlocked folder would be removed as stale.
        self.folder = made.rename(made.with_name(made.name[1:]))
        self._closed = False

    def record(self, *pids: int) -> None:
        """Record the segments that processes and their descendants have mapped."""
        names = {name for pid in pids for member in _descendants(pid) for name in _segments(member, self._root)}
        (self.folder / NAMES).write_text("\n".join(sorted(names)), "utf-8")

    def remove_segments(self) -> None:
        """Remove the recorded segments that still exist; call it once their processes have ended."""
        _remove_segments(self.folder)

    def close(self) -> None:
        """Remove the folder and its segments; a second call does nothing."""
        if not self._closed:
            self.remove_segments()
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._closed = True


def remove_stale_folders(root: Path) -> None:
    """Remove the folders of processes that have ended, and their segments."""
    for folder in root.glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder / LOCK, os.O_RDWR)
        except OSError:
            continue  # owned by another user
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


def _descendants(pid: int) -> list[int]:
    """Return a process id and those of its descendants."""
    found = [pid]
    for member in found:
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:
                continue  # the process has ended
    return found


def _segments(pid: int, root: Path) -> set[str]:
    """Return the names of the segments that a process has mapped."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return set()
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if f"{root}/" in line}
    return {path.name for path in paths if path.parent == root and path.match(SEGMENTS)}
