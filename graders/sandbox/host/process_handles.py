"""The caller's end of a zygote and of its workers."""

import contextlib
import os
import select
import socket
import subprocess
import sys
from typing import IO, Any

import msgspec

import graders.errors
from graders.errors import GraderError, SandboxUnavailable
from graders.sandbox import protocol
from graders.sandbox.diagnostics import shortage
from graders.sandbox.protocol import Born, End, Fork, Gone, Learn, Ready, Refused, Setup, Stillborn

START_LIMIT_S = 60.0
FDS_OF_WORKER = 3
MAX_LAST_WORDS = 400
_BOOT = "import sys; sys.path[:] = sys.argv[2:]; from graders.sandbox.child.zygote import main; main(int(sys.argv[1]))"
_KEPT_VARIABLES = ("LD_LIBRARY_PATH",)
_MARK = "GRADERS_SANDBOX"
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    _MARK: "zygote",
}


class Zygote:
    """A warmed process to fork workers from; starting one takes as long as importing its grader.

    Raises:
        SandboxUnavailable: the system cannot start one, or it died or stalled before it was ready.
        GraderError: the grader cannot be had; the class is the one that `resolve` raised there.
    """

    def __init__(self, setup: Setup) -> None:
        if not sys.platform.startswith("linux") or not sys.executable:
            raise SandboxUnavailable(
                f"grader sandbox: expected Linux and a Python executable, got {sys.platform} and {sys.executable!r}; "
                "grade on a Linux machine or in a container"
            )
        if _MARK in os.environ:
            raise SandboxUnavailable(
                "grader sandbox: expected a caller to start it, not the import of a grader; put what the script "
                'does under `if __name__ == "__main__":`'
            )
        with contextlib.ExitStack() as on_failure:
            try:
                self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                on_failure.callback(self._control.close)
                with theirs, _memory_file() as last_words:
                    self._process = _start(theirs.fileno(), last_words)
                    on_failure.callback(self.close)
                    theirs.close()
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # dead: the answer will say so
                        self._control.send(msgspec.msgpack.encode(setup))
                    self.ready = self._await_ready(setup.spec, last_words)
            except OSError as error:
                raise SandboxUnavailable(f"grader sandbox: expected a process to start: {shortage(error)}") from error
            on_failure.pop_all()

    def fileno(self) -> int:
        return self._control.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    def order(self, message: Fork | End | Learn) -> None:
        """Send an order; a zygote that is dead says so at the next `receive`."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.send(msgspec.msgpack.encode(message))

    def receive(self) -> tuple[Born | Stillborn | Gone, list[int]] | None:
        """Give one message and the descriptors that came with it, or None if the zygote is dead.

        Raises:
            SandboxUnavailable: this process may open no more files.
        """
        try:
            received, fds, _, _ = socket.recv_fds(self._control, 1 << 16, FDS_OF_WORKER)
        except ConnectionResetError:
            return None
        if not received:
            return None
        message = msgspec.msgpack.decode(received, type=Born | Stillborn | Gone)
        if isinstance(message, Born) and len(fds) != FDS_OF_WORKER:
            for fd in fds:
                os.close(fd)
            raise SandboxUnavailable(
                f"grader sandbox: expected {FDS_OF_WORKER} descriptors of a worker, got {len(fds)}: too many files are "
                "open; use fewer workers, or raise the limit (ulimit -n)"
            )
        return message, fds

    def close(self) -> None:
        """Kill the zygote, and with it every worker."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    def abandon(self) -> None:
        """Let go of it without a word: for a forked copy of the caller, whose zygote it is not."""
        self._control.close()
        self._process.returncode = 0  # not this process's child: nothing to wait for

    def _await_ready(self, spec: str, last_words: IO[bytes]) -> Ready:
        if not select.select([self._control], [], [], START_LIMIT_S)[0]:
            raise SandboxUnavailable(f"grader {spec!r}: expected it to load within {START_LIMIT_S:.0f} s; it did not")
        received = b""
        with contextlib.suppress(ConnectionResetError):
            received = self._control.recv(1 << 20)
        if not received:
            code = self._process.wait()
            raise SandboxUnavailable(
                f"grader {spec!r}: expected its sandbox to start, but it died with exit code {code}"
                f"{_last_line(last_words)}; run graders doctor"
            )
        try:
            answer: Ready | Refused = msgspec.msgpack.decode(received, type=Ready | Refused)
        except msgspec.MsgspecError as error:
            raise SandboxUnavailable(f"grader {spec!r}: expected its sandbox to be ready, got: {error}") from error
        if isinstance(answer, Refused):
            raise getattr(graders.errors, answer.error, GraderError)(answer.message)
        return answer


class Worker:
    """The pipes of one worker: what is still to be written to it, and what came from it."""

    def __init__(self, token: int, pid: int, fds: list[int]) -> None:
        self.token = token
        self.pid = pid
        self.tasks_fd, self.results_fd, self._progress_fd = fds
        for fd in fds:
            os.set_blocking(fd, False)
            os.set_inheritable(fd, False)
        self._unsent = memoryview(b"")
        self._received = protocol.FrameBuffer(protocol.MAX_RESULT_BYTES)
        self.tasks_begun = 0
        self._schedule_fd: int | None = None

    def watch(self, pid: int) -> None:
        """Keep an eye on how the system schedules it; `pid` is what it said of itself, which may be a lie."""
        with contextlib.suppress(OSError):
            self._schedule_fd = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY)

    def waited_s(self) -> float:
        """Give the seconds of its life in which it could have run, but others had the processors; 0 if unknown."""
        if self._schedule_fd is None:
            return 0.0
        try:
            return int(os.pread(self._schedule_fd, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def send(self, message: Any) -> bool:
        """Queue a chunk and write what fits; returns whether all of it fitted.

        Raises:
            BrokenPipeError: the worker is dead.
        """
        self.count_begun()
        self.tasks_begun = 0
        self._unsent = memoryview(protocol.framed(msgspec.msgpack.encode(message)))
        return self.flush()

    def flush(self) -> bool:
        """Write what fits of the queued chunk; returns whether nothing is left."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[os.write(self.tasks_fd, self._unsent) :]
        return not self._unsent

    def receive(self) -> list[bytes] | None:
        """Give the frames that have arrived, or None if the worker closed its pipe.

        Raises:
            FrameError: it does not keep to the protocol.
        """
        try:
            received = os.read(self.results_fd, 1 << 18)
        except BlockingIOError:
            return []
        return list(self._received.feed(received)) if received else None

    def count_begun(self) -> int:
        """Give the number of tasks of the current chunk that the worker says it has begun."""
        with contextlib.suppress(BlockingIOError):
            while begun := len(os.read(self._progress_fd, 1 << 12)):
                self.tasks_begun += begun
        return self.tasks_begun

    def close(self) -> None:
        for fd in (self.tasks_fd, self.results_fd, self._progress_fd):
            os.close(fd)
        if self._schedule_fd is not None:
            os.close(self._schedule_fd)


def _start(control_fd: int, last_words: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start a zygote with nothing of this process but one end of its control socket, and a file to complain to."""
    return subprocess.Popen(
        [sys.executable, "-s", "-P", "-B", "-c", _BOOT, str(control_fd), *_import_path()],
        pass_fds=[control_fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=last_words,
        cwd="/",
        env=_ENVIRONMENT | {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
        start_new_session=True,
    )


def _memory_file() -> IO[bytes]:
    """Give a file that needs no disk; where the kernel has none, one that keeps nothing."""
    try:
        return open(os.memfd_create("graders"), "r+b", buffering=0)
    except OSError:
        return open(os.devnull, "r+b", buffering=0)


def _last_line(file: IO[bytes]) -> str:
    """Give the last line of what a process complained of, to be added to a sentence."""
    file.seek(-min(MAX_LAST_WORDS, file.seek(0, os.SEEK_END)), os.SEEK_END)
    lines = file.read().decode("utf-8", "replace").strip().splitlines()
    said = "".join(char for char in lines[-1] if char.isprintable()) if lines else ""
    return f" ({said})" if said else ""


def _import_path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
