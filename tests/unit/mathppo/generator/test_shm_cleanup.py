"""Shared memory of killed processes is removed; that of running processes is kept."""

import fcntl
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mathppo.generator.shm_cleanup import ShmFolder, remove_stale_folders

CHILD = """
import sys, time
from pathlib import Path
from mathppo.generator.shm_cleanup import ShmFolder
folder_lock = ShmFolder(Path(sys.argv[1]))
(folder_lock.folder / "weights").write_text("old")
(folder_lock.folder / "segments").write_text("psm_left\\n../other\\nkept")
print(folder_lock.folder, flush=True)
time.sleep(600)
"""


def test_a_new_folder_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    for name in ("psm_left", "psm_of_others", "kept"):
        (tmp_path / name).write_text("x")
    (tmp_path.parent / "other").write_text("x")
    with subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        folder = Path(child.stdout.readline().strip())
        remove_stale_folders(tmp_path)
        assert (folder / "weights").is_file()  # its process is running
        child.send_signal(signal.SIGKILL)
    folder_lock = ShmFolder(tmp_path)
    assert not folder.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"psm_of_others", "kept", folder_lock.folder.name}
    assert (tmp_path.parent / "other").is_file()
    folder_lock.close()
    folder_lock.close()
    assert {path.name for path in tmp_path.iterdir()} == {"psm_of_others", "kept"}


def test_a_folder_that_is_being_created_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            remove_stale_folders(tmp_path)  # another process cleans up first
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    folder_lock = ShmFolder(tmp_path)
    assert [path.name for path in folder_lock.folder.iterdir()] == ["lock"]
    folder_lock.close()
    assert not list(tmp_path.iterdir())


def test_segments_mapped_by_a_process_are_recorded_and_removed(tmp_path: Path) -> None:
    folder_lock = ShmFolder(tmp_path)
    for name in ("psm_one", "psm_two", "third"):
        (tmp_path / name).write_bytes(b"x" * mmap.PAGESIZE)
    with (tmp_path / "psm_one").open("rb") as first, (tmp_path / "third").open("rb") as third:
        held = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in (first, third)]
        folder_lock.record(os.getpid())
        for one in held:
            one.close()
    folder_lock.remove_segments()
    assert {path.name for path in tmp_path.iterdir()} == {"psm_two", "third", folder_lock.folder.name}
    folder_lock.remove_segments()
    folder_lock.record(1 << 30)  # no such process
    folder_lock.close()
    assert {path.name for path in tmp_path.iterdir()} == {"psm_two", "third"}
