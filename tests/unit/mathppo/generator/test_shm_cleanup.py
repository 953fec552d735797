"""What a killed process leaves in shared memory is taken back, and what a living one holds is not."""

import fcntl
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mathppo.generator.shm_cleanup import Claim, take_back

CHILD = """
import sys, time
from pathlib import Path
from mathppo.generator.shm_cleanup import Claim
claim = Claim(Path(sys.argv[1]))
(claim.folder / "weights").write_text("old")
(claim.folder / "segments").write_text("psm_left\\n../other\\nkept")
print(claim.folder, flush=True)
time.sleep(600)
"""


def test_what_a_killed_process_left_goes_when_the_next_one_starts(tmp_path: Path) -> None:
    for name in ("psm_left", "psm_of_others", "kept"):
        (tmp_path / name).write_text("x")
    (tmp_path.parent / "other").write_text("x")
    with subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        folder = Path(child.stdout.readline().strip())
        take_back(tmp_path)
        assert (folder / "weights").is_file()  # it lives
        child.send_signal(signal.SIGKILL)
    claim = Claim(tmp_path)
    assert not folder.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"psm_of_others", "kept", claim.folder.name}
    assert (tmp_path.parent / "other").is_file()
    claim.close()
    claim.close()
    assert {path.name for path in tmp_path.iterdir()} == {"psm_of_others", "kept"}


def test_a_claim_that_is_being_made_is_not_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            take_back(tmp_path)  # by another process, which comes first
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    claim = Claim(tmp_path)
    assert [path.name for path in claim.folder.iterdir()] == ["lock"]
    claim.close()
    assert not list(tmp_path.iterdir())


def test_segments_that_a_process_holds_are_noted_and_freed(tmp_path: Path) -> None:
    claim = Claim(tmp_path)
    for name in ("psm_one", "psm_two", "third"):
        (tmp_path / name).write_bytes(b"x" * mmap.PAGESIZE)
    with (tmp_path / "psm_one").open("rb") as first, (tmp_path / "third").open("rb") as third:
        held = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in (first, third)]
        claim.note(os.getpid())
        for one in held:
            one.close()
    claim.free()
    assert {path.name for path in tmp_path.iterdir()} == {"psm_two", "third", claim.folder.name}
    claim.free()
    claim.note(1 << 30)  # nobody
    claim.close()
    assert {path.name for path in tmp_path.iterdir()} == {"psm_two", "third"}
