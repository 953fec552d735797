"""Probes: a grader whose completions name harmless attempts to do what a worker must not do.

The verdict "correct" means that the attempt succeeded. A working sandbox never returns it.
"""

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable

from graders.verdict import Status, Verdict


class ProbeGrader:
    """Makes the attempt that the completion names."""

    name = "probes"
    answers_per_process = 1
    examples = (("known right", "", "correct"), ("known wrong", "", "incorrect"))

    def grade(self, completion: str, reference: str, *, question: str | None = None) -> Verdict:
        """Make the attempt; an exception means that it was stopped."""
        evidence = PROBES[completion]() if completion in PROBES else completion == "known right"
        status = Status.CORRECT if evidence else Status.INCORRECT
        return Verdict(status, None, self.name, "probe", str(evidence)[:200], 0.0)


def _write_file() -> object:
    path = f"/tmp/graders-doctor-{os.getpid()}"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    with contextlib.suppress(OSError):
        os.unlink(path)
    return path


def _fork() -> object:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return pid


def _signal_parent() -> object:
    os.kill(os.getppid(), 0)
    return "reached"


def _inherited_descriptors() -> object:
    leaked = []
    for fd in range(6, 256):
        with contextlib.suppress(OSError):
            os.fstat(fd)
            leaked.append(fd)
    return leaked


def _environment_variables() -> object:
    allowed = {"LANG", "LC_CTYPE", "PYTHONHASHSEED", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GRADERS_SANDBOX"}
    return sorted(set(os.environ) - allowed)


def _ignore_signals() -> object:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(1000)
    return "outlived its deadline"


PROBES: dict[str, Callable[[], object]] = {
    "open a file": lambda: os.open("/etc/passwd", os.O_RDONLY),
    "stat a file": lambda: os.stat("/etc/passwd").st_size,
    "list a directory": lambda: os.listdir("/") or "listed, empty",
    "write a file": _write_file,
    "open a network socket": lambda: socket.socket().fileno(),
    "open a unix socket": lambda: socket.socket(socket.AF_UNIX).fileno(),
    "fork": _fork,
    "execute a program": lambda: subprocess.run(["/bin/true"], check=False).returncode == 0,
    "signal the parent": _signal_parent,
    "open a process handle": lambda: os.pidfd_open(os.getpid()),
    "read the parent's environment": lambda: os.read(os.open(f"/proc/{os.getppid()}/environ", os.O_RDONLY), 1),
    "make memory executable": lambda: len(mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)),
    "find inherited descriptors": _inherited_descriptors,
    "find environment variables": _environment_variables,
    "enter a namespace": lambda: ctypes.CDLL(None).unshare(0x10000000) == 0,
    "allocate 2 GiB": lambda: len(bytearray(1 << 31)),
    "loop in C forever": lambda: sum(range(10**12)),
    "ignore signals and sleep": _ignore_signals,
}
