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


def _open_file() -> object:
    return open("/etc/passwd", "rb").fileno()


def _stat_file() -> object:
    return os.stat("/etc/passwd").st_size


def _list_root() -> object:
    return os.listdir("/") or "listed, empty"


def _write_file() -> object:
    path = f"/tmp/graders-doctor-{os.getpid()}"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    with contextlib.suppress(OSError):
        os.unlink(path)
    return path


def _network() -> object:
    return socket.socket().fileno()


def _unix_socket() -> object:
    return socket.socket(socket.AF_UNIX).fileno()


def _fork() -> object:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return pid


def _execute() -> object:
    return subprocess.run(["/bin/true"], check=False).returncode == 0


def _signal_parent() -> object:
    os.kill(os.getppid(), 0)
    return "reached"


def _open_process() -> object:
    return os.pidfd_open(os.getpid())


def _read_environment() -> object:
    return open(f"/proc/{os.getppid()}/environ", "rb").read(1)


def _executable_memory() -> object:
    return len(mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC))


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


def _namespace() -> object:
    return ctypes.CDLL(None).unshare(0x10000000) == 0


def _much_memory() -> object:
    return len(bytearray(1 << 31))


def _endless_loop() -> object:
    return sum(range(10**12))


def _ignore_signals() -> object:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(1000)
    return "outlived its deadline"


PROBES = {
    "open a file": _open_file,
    "stat a file": _stat_file,
    "list a directory": _list_root,
    "write a file": _write_file,
    "open a network socket": _network,
    "open a unix socket": _unix_socket,
    "fork": _fork,
    "execute a program": _execute,
    "signal the parent": _signal_parent,
    "open a process handle": _open_process,
    "read the parent's environment": _read_environment,
    "make memory executable": _executable_memory,
    "find inherited descriptors": _inherited_descriptors,
    "find environment variables": _environment_variables,
    "enter a namespace": _namespace,
    "allocate 2 GiB": _much_memory,
    "loop in C forever": _endless_loop,
    "ignore signals and sleep": _ignore_signals,
}
