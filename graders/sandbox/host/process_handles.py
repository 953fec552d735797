"""The caller's ends of a zygote process and of a worker's pipes."""

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
from graders.sandbox.diagnostics import explain_os_error
from graders.sandbox.protocol import Exited, Kill, LoadFailed, Preload, Ready, Setup, Spawn, SpawnFailed, Started

LOAD_LIMIT_S = 60.0
"""Time in which a zygote must load its grader."""
NUM_WORKER_FDS = 3
MAX_STDERR_BYTES = 400
"""The part of a dead zygote's standard error that is searched for the reason of its exit."""
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


class ZygoteHandle:
    """A running zygote, from which workers are forked. Starting it takes as long as importing the grader.

    Raises:
        SandboxUnavailable: the system cannot start a process, or the zygote died or timed out before it was ready.
        GraderError: the grader cannot be loaded; the class is the one that `resolve` raised in the zygote.
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
                self._control, zygote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                on_failure.callback(self._control.close)
                with zygote_end, _memory_file() as stderr:
                    self._process = _start(zygote_end.fileno(), stderr)
                    on_failure.callback(self.close)
                    zygote_end.close()
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # dead: detected in _await_ready
                        self._control.send(msgspec.msgpack.encode(setup))
                    self.ready = self._await_ready(setup.spec, stderr)
            except OSError as error:
                raise SandboxUnavailable(
                    f"grader sandbox: expected a process to start: {explain_os_error(error)}"
                ) from error
            on_failure.pop_all()

    def fileno(self) -> int:
        return self._control.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Spawn | Kill | Preload) -> None:
        """Send a message. The death of the zygote is not an error here: the next `receive` reports it."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.send(msgspec.msgpack.encode(message))

    def receive(self) -> tuple[Started | SpawnFailed | Exited, list[int]] | None:
        """Return one message and the descriptors attached to it, or None if the zygote is dead.

        Raises:
            SandboxUnavailable: this process cannot open more files.
        """
        try:
            received, fds, _, _ = socket.recv_fds(self._control, 1 << 16, NUM_WORKER_FDS)
        except ConnectionResetError:
            return None
        if not received:
            return None
        message = msgspec.msgpack.decode(received, type=Started | SpawnFailed | Exited)
        if isinstance(message, Started) and len(fds) != NUM_WORKER_FDS:
            for fd in fds:
                os.close(fd)
            raise SandboxUnavailable(
                f"grader sandbox: expected {NUM_WORKER_FDS} descriptors of a worker, got {len(fds)}: too many files "
                "are open; use fewer workers, or raise the limit (ulimit -n)"
            )
        return message, fds

    def close(self) -> None:
        """Kill the zygote and, with it, all its workers."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    def abandon(self) -> None:
        """Release the handle without killing the zygote: for a forked copy of the caller, which does not own it."""
        self._control.close()
        self._process.returncode = 0  # not a child of this process: there is nothing to wait for

    def _await_ready(self, spec: str, stderr: IO[bytes]) -> Ready:
        if not select.select([self._control], [], [], LOAD_LIMIT_S)[0]:
            raise SandboxUnavailable(f"grader {spec!r}: expected it to load within {LOAD_LIMIT_S:.0f} s; it did not")
        received = b""
        with contextlib.suppress(ConnectionResetError):
            received = self._control.recv(1 << 20)
        if not received:
            code = self._process.wait()
            raise SandboxUnavailable(
                f"grader {spec!r}: expected its sandbox to start, but it died with exit code {code}"
                f"{_last_line(stderr)}; run graders doctor"
            )
        try:
            answer: Ready | LoadFailed = msgspec.msgpack.decode(received, type=Ready | LoadFailed)
        except msgspec.MsgspecError as error:
            raise SandboxUnavailable(f"grader {spec!r}: expected its sandbox to be ready, got: {error}") from error
        if isinstance(answer, LoadFailed):
            raise getattr(graders.errors, answer.error, GraderError)(answer.message)
        return answer


class WorkerPipes:
    """The caller's ends of a worker's three pipes (tasks, results, progress), with buffers for both directions."""

    def __init__(self, fds: list[int]) -> None:
        self.tasks_fd, self.results_fd, self._progress_fd = fds
        for fd in fds:
            os.set_blocking(fd, False)
            os.set_inheritable(fd, False)
        self._unsent = memoryview(b"")
        self._received = protocol.FrameBuffer(protocol.MAX_RESULT_BYTES)
        self.tasks_begun = 0
        self._schedstat_fd: int | None = None

    def open_schedstat(self, pid: int) -> None:
        """Start to read the worker's scheduling statistics; `pid` was sent by the worker and may be wrong."""
        with contextlib.suppress(OSError):
            self._schedstat_fd = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY)

    def waited_s(self) -> float:
        """Return for how many seconds of its life the worker was runnable but not running; 0 if unknown."""
        if self._schedstat_fd is None:
            return 0.0
        try:
            return int(os.pread(self._schedstat_fd, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def send(self, message: Any) -> bool:
        """Queue a chunk and write as much of it as the pipe accepts; return True if all was written.

        Raises:
            BrokenPipeError: the worker is dead.
        """
        self.count_begun()
        self.tasks_begun = 0
        self._unsent = memoryview(protocol.encode_frame(msgspec.msgpack.encode(message)))
        return self.flush()

    def flush(self) -> bool:
        """Write as much of the queued chunk as the pipe accepts; return True if all was written."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[os.write(self.tasks_fd, self._unsent) :]
        return not self._unsent

    def receive(self) -> list[bytes] | None:
        """Return the payloads that have arrived, or None if the worker closed its pipe.

        Raises:
            FrameError: the worker violated the protocol.
        """
        try:
            received = os.read(self.results_fd, 1 << 18)
        except BlockingIOError:
            return []
        return list(self._received.feed(received)) if received else None

    def count_begun(self) -> int:
        """Return how many tasks of the current chunk the worker has begun, according to its progress pipe."""
        with contextlib.suppress(BlockingIOError):
            while begun := len(os.read(self._progress_fd, 1 << 12)):
                self.tasks_begun += begun
        return self.tasks_begun

    def close(self) -> None:
        for fd in (self.tasks_fd, self.results_fd, self._progress_fd):
            os.close(fd)
        if self._schedstat_fd is not None:
            os.close(self._schedstat_fd)


def _start(control_fd: int, stderr: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start a zygote that inherits nothing of this process but its end of the control socket and a file for stderr."""
    return subprocess.Popen(
        [sys.executable, "-s", "-P", "-B", "-c", _BOOT, str(control_fd), *_import_path()],
        pass_fds=[control_fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        cwd="/",
        env=_ENVIRONMENT | {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
        start_new_session=True,
    )


def _memory_file() -> IO[bytes]:
    """Return a file in memory, or the null device if the kernel has no memfd."""
    try:
        return open(os.memfd_create("graders"), "r+b", buffering=0)
    except OSError:
        return open(os.devnull, "r+b", buffering=0)


def _last_line(stderr: IO[bytes]) -> str:
    """Return the last line of a process's standard error in parentheses, or an empty string."""
    stderr.seek(-min(MAX_STDERR_BYTES, stderr.seek(0, os.SEEK_END)), os.SEEK_END)
    lines = stderr.read().decode("utf-8", "replace").strip().splitlines()
    line = "".join(char for char in lines[-1] if char.isprintable()) if lines else ""
    return f" ({line})" if line else ""


def _import_path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
