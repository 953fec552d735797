"""Zygote: a warmed-up process from which workers are forked.

It is a fresh interpreter, never a fork of the caller, which may have threads, a GPU and secrets. It loads the grader
and grades its examples, so that lazy imports happen now. From then on it only forks, kills and reaps workers. It
receives neither completions nor references.
"""

import contextlib
import fcntl
import gc
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from graders.errors import BadInput, GraderError, SandboxUnavailable
from graders.grader import Grader, import_origin, is_shipped, resolve
from graders.sandbox import protocol
from graders.sandbox.child import worker
from graders.sandbox.child.grader_spec import GraderSpec, read_grader_spec
from graders.sandbox.child.late_imports import LateImportWatch, warm_up
from graders.sandbox.diagnostics import describe, explain_os_error
from graders.sandbox.isolation import lockdown
from graders.sandbox.isolation.namespaces import EmptyRoot
from graders.sandbox.protocol import Exited, Kill, Layer, Preload, Ready, Setup, Spawn, SpawnFailed, Started

REAP_INTERVAL_S = 0.002
PARENT_CHECK_S = 1.0
MAX_MESSAGE_CHARS = 2000
MIN_FREE_BYTES = 8 << 20
"""The least part of a worker's memory limit that the loaded grader must leave free."""
TASKS_FD, RESULTS_FD, PROGRESS_FD = 3, 4, 5


def main(control_fd: int) -> None:
    """Serve one caller until it closes the control socket or dies."""
    control = socket.socket(fileno=control_fd)
    setup = msgspec.msgpack.decode(control.recv(1 << 20), type=Setup)
    watch = LateImportWatch()
    try:
        layers = lockdown.isolate_zygote() if setup.lockdown else []
        caller = os.getppid()
        if setup.origin is not None:
            import_origin(setup.origin)
        grader = resolve(setup.spec)
        spec = read_grader_spec(grader, trusted=is_shipped(setup.spec))
        warm_up(grader, spec)
        _check_memory_limit(setup, spec.name)
    except GraderError as error:
        _send_load_failed(control, type(error), str(error))
        return
    except OSError as error:
        reason = f"grader {setup.spec!r}: expected its sandbox to start: {explain_os_error(error)}"
        _send_load_failed(control, SandboxUnavailable, reason)
        return
    root = lockdown.make_empty_root(layers)
    gc.collect()
    gc.freeze()
    control.send(msgspec.msgpack.encode(_ready(setup, spec, layers)))
    _detach_stderr()
    Spawner(control, setup, grader, spec, root, watch).serve(caller)


def _check_memory_limit(setup: Setup, name: str) -> None:
    """Raise BadInput if the loaded grader fills the memory limit: each answer would seem to have exhausted it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    least = pages * os.sysconf("SC_PAGE_SIZE") + MIN_FREE_BYTES
    if setup.memory_limit_bytes < least:
        raise BadInput(
            f"grader {name!r}: expected memory_limit_bytes of at least {least}, because the loaded grader needs almost "
            f"as much, got {setup.memory_limit_bytes}"
        )


def _send_load_failed(control: socket.socket, error_type: type[GraderError], message: str) -> None:
    encodable = message[:MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()
    control.send(msgspec.msgpack.encode(protocol.LoadFailed(error_type.__name__, encodable)))


def _ready(setup: Setup, spec: GraderSpec, layers: list[Layer]) -> Ready:
    return Ready(
        name=spec.name,
        split=spec.reading_decoder is not None,
        has_shown=spec.has_shown,
        runs_programs=spec.runs_programs,
        trusted=is_shipped(setup.spec),
        answers_per_process=spec.answers_per_process,
        requires=spec.requires,
        examples=spec.examples,
        layers=layers,
    )


def _detach_stderr() -> None:
    """Replace stderr, the file in which the caller looks for an error message, by the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


class Spawner:
    """Forks, kills and reaps the workers of one zygote; the caller refers to each by its token."""

    def __init__(
        self,
        control: socket.socket,
        setup: Setup,
        grader: Grader,
        spec: GraderSpec,
        root: EmptyRoot,
        watch: LateImportWatch,
    ) -> None:
        self._control = control
        self._setup = setup
        self._grader = grader
        self._spec = spec
        self._root = root
        self._watch = watch
        self._alive: dict[int, int] = {}
        """Process ids, by token, of workers that were not killed; they may have exited."""
        self._killed: dict[int, int] = {}
        """Process ids, by token, of workers that were killed and are not reaped yet."""

    def serve(self, caller: int) -> None:
        """Serve the caller until it is gone, then kill all workers."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while os.getppid() == caller:
            if poll.poll(1000 * (REAP_INTERVAL_S if self._killed else PARENT_CHECK_S)):
                received = self._control.recv(1 << 16)
                if not received:
                    break
                self._handle(msgspec.msgpack.decode(received, type=Spawn | Kill | Preload))
            self._reap()
        for pid in (*self._alive.values(), *self._killed.values()):
            os.kill(pid, signal.SIGKILL)

    def _handle(self, message: Spawn | Kill | Preload) -> None:
        if isinstance(message, Spawn):
            self._spawn(message)
        elif isinstance(message, Preload):
            self._watch.preload(message.module)
            gc.freeze()
        elif (pid := self._alive.pop(message.token, None)) is not None:
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the process id cannot have been reused
            self._killed[message.token] = pid

    def _reap(self) -> None:
        for token, pid in list(self._killed.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._killed[token]
                self._send(Exited(token, os.waitstatus_to_exitcode(status)), [])

    def _spawn(self, message: Spawn) -> None:
        pipes: list[tuple[int, int]] = []  # of tasks, results and progress: (read end, write end)
        try:
            for _ in range(3):
                pipes.append(os.pipe())
            pid = os.fork()
        except OSError as error:
            self._send(SpawnFailed(message.token, explain_os_error(error)[: protocol.MAX_REASON_CHARS]), [])
        else:
            tasks, results, progress = pipes
            if pid == 0:
                self._run_worker(message, (tasks[0], results[1], progress[1]))
            self._alive[message.token] = pid
            self._send(Started(message.token, pid), [tasks[1], results[0], progress[0]])
        for fd in (end for pipe in pipes for end in pipe):
            os.close(fd)

    def _send(self, message: Started | SpawnFailed | Exited, fds: list[int]) -> None:
        # the death of the caller is detected at the next receive
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [msgspec.msgpack.encode(message)], fds)

    def _run_worker(self, message: Spawn, pipes: tuple[int, int, int]) -> None:
        """Turn the forked child into a worker; never returns to the code of the zygote."""
        results_fd = pipes[1]
        try:
            gc.disable()
            pid = _pid_in_caller_namespace()
            self._root.change_directory()
            _close_all_but(pipes)
            results_fd = RESULTS_FD
            step, chunk_type = worker.make_step(message.role, self._grader, self._spec, self._watch)
            self._watch.arm()
            layers = self._lock_down(message.token)
            worker.send(RESULTS_FD, protocol.Sandboxed(layers, pid))
        except BaseException as error:  # noqa: BLE001  the worker's outer edge: it reports the reason and exits
            try:
                reason = explain_os_error(error) if isinstance(error, OSError) else describe(error)
                worker.send(results_fd, protocol.StartFailed(reason[: protocol.MAX_REASON_CHARS]))
            finally:
                os._exit(1)
        try:
            worker.do_chunks(step, chunk_type, TASKS_FD, RESULTS_FD, PROGRESS_FD)
        except BaseException:  # noqa: BLE001  the worker's outer edge: it exits, and the caller sees the pipe close
            os._exit(1)
        os._exit(0)

    def _lock_down(self, token: int) -> list[Layer]:
        if not self._setup.lockdown:
            return lockdown.limit_worker(self._setup)
        return lockdown.lock_worker(self._setup, token, self._root, (1, 2, RESULTS_FD, PROGRESS_FD))


def _pid_in_caller_namespace() -> int:
    """Return this process's id in the namespace of the caller, whose /proc is still mounted here, or 0."""
    try:
        return int(os.readlink("/proc/self"))
    except OSError:
        return 0


def _close_all_but(pipes: tuple[int, int, int]) -> None:
    """Make the pipes descriptors 3, 4 and 5 and the null device 0, 1 and 2, and close all other descriptors."""
    parked = [fcntl.fcntl(fd, fcntl.F_DUPFD, PROGRESS_FD + 1) for fd in pipes]
    null = os.open(os.devnull, os.O_RDWR)
    for target in range(3):
        os.dup2(null, target)
    for fd, target in zip(parked, (TASKS_FD, RESULTS_FD, PROGRESS_FD), strict=True):
        os.dup2(fd, target)
    os.closerange(PROGRESS_FD + 1, os.sysconf("SC_OPEN_MAX"))
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, mode) for fd, mode in ((0, "r"), (1, "w"), (2, "w")))
    time.tzset()
