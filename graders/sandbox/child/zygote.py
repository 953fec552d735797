"""The warmed process that workers are forked from.

It is a fresh interpreter, never a fork of the caller, which may hold threads, a GPU and secrets. It loads the grader,
runs known answers through it so that every lazy import happens now, and from then on only forks, kills and buries
workers. It sees neither completions nor references.
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
from graders.sandbox.child import warmup, worker
from graders.sandbox.child.grader_spec import Declared, declared
from graders.sandbox.child.late_imports import Watch
from graders.sandbox.diagnostics import describe, shortage
from graders.sandbox.isolation import lockdown
from graders.sandbox.protocol import Born, End, Fork, Gone, Layer, Learn, Ready, Refused, Setup, Stillborn, Unfit

REAP_EVERY_S = 0.002
MAX_REFUSAL_CHARS = 2000
MIN_FREE_BYTES = 8 << 20
"""Of a worker's memory limit, beside what the loaded grader takes up."""
TASKS_FD, RESULTS_FD, PROGRESS_FD = 3, 4, 5


def main(control_fd: int) -> None:
    """Serve one caller until it closes the control socket or dies."""
    control = socket.socket(fileno=control_fd)
    setup = msgspec.msgpack.decode(control.recv(1 << 20), type=Setup)
    watch = Watch()
    try:
        layers = lockdown.enclose_zygote() if setup.lockdown else []
        caller = os.getppid()
        if setup.origin is not None:
            import_origin(setup.origin)
        grader = resolve(setup.spec)
        said = declared(grader, trusted=is_shipped(setup.spec))
        warmup.run(grader, said)
        _leave_room(setup, said.name)
    except GraderError as error:
        _refuse(control, type(error), str(error))
        return
    except OSError as error:
        _refuse(control, SandboxUnavailable, f"grader {setup.spec!r}: expected its sandbox to start: {shortage(error)}")
        return
    root = lockdown.prepare_root(layers)
    gc.collect()
    gc.freeze()
    control.send(msgspec.msgpack.encode(_ready(setup, said, layers)))
    _fall_silent()
    Nursery(control, setup, grader, said, root, watch).serve(caller)


def _leave_room(setup: Setup, name: str) -> None:
    """Refuse a limit that the loaded grader fills: each answer would seem to have exhausted it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    least = pages * os.sysconf("SC_PAGE_SIZE") + MIN_FREE_BYTES
    if setup.memory_limit_bytes < least:
        raise BadInput(
            f"grader {name!r}: expected memory_limit_bytes of at least {least}, for the loaded grader takes up nearly "
            f"as much, got {setup.memory_limit_bytes}"
        )


def _refuse(control: socket.socket, kind: type[GraderError], message: str) -> None:
    encodable = message[:MAX_REFUSAL_CHARS].encode("utf-8", "replace").decode()
    control.send(msgspec.msgpack.encode(Refused(kind.__name__, encodable)))


def _ready(setup: Setup, said: Declared, layers: list[protocol.Layer]) -> Ready:
    return Ready(
        name=said.name,
        split=said.reader is not None,
        shows=said.shows,
        runs_programs=said.runs_programs,
        trusted=is_shipped(setup.spec),
        answers_per_process=said.answers_per_process,
        requires=said.requires,
        examples=said.examples,
        layers=layers,
    )


def _fall_silent() -> None:
    """Leave the file in which the caller looks for last words: nothing that comes later may fill it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


class Nursery:
    """The workers of one zygote, by the caller's token."""

    def __init__(
        self, control: socket.socket, setup: Setup, grader: Grader, said: Declared, root: Layer, watch: Watch
    ) -> None:
        self._control = control
        self._root = root
        self._watch = watch
        self._setup = setup
        self._grader = grader
        self._said = said
        self._living: dict[int, int] = {}
        self._dying: dict[int, int] = {}

    def serve(self, caller: int) -> None:
        """Obey the caller until it is gone, then take every worker along."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while os.getppid() == caller:
            if poll.poll(1000 * (REAP_EVERY_S if self._dying else 1.0)):
                received = self._control.recv(1 << 16)
                if not received:
                    break
                self._obey(msgspec.msgpack.decode(received, type=Fork | End | Learn))
            self._bury()
        for pid in (*self._living.values(), *self._dying.values()):
            os.kill(pid, signal.SIGKILL)

    def _obey(self, order: Fork | End | Learn) -> None:
        if isinstance(order, Fork):
            self._fork(order)
        elif isinstance(order, Learn):
            self._watch.learn(order.module)
            gc.freeze()
        elif (pid := self._living.pop(order.token, None)) is not None:
            os.kill(pid, signal.SIGKILL)  # still ours to wait for, so the number cannot have been reused
            self._dying[order.token] = pid

    def _bury(self) -> None:
        for token, pid in list(self._dying.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._dying[token]
                self._tell(Gone(token, os.waitstatus_to_exitcode(status)), [])

    def _fork(self, order: Fork) -> None:
        pipes: list[tuple[int, int]] = []  # of tasks, results and progress: (end to read, end to write)
        try:
            for _ in range(3):
                pipes.append(os.pipe())
            pid = os.fork()
        except OSError as error:
            self._tell(Stillborn(order.token, shortage(error)[: protocol.MAX_REASON_CHARS]), [])
        else:
            tasks, results, progress = pipes
            if pid == 0:
                self._be_worker(order, (tasks[0], results[1], progress[1]))
            self._living[order.token] = pid
            self._tell(Born(order.token, pid), [tasks[1], results[0], progress[0]])
        for fd in (end for pipe in pipes for end in pipe):
            os.close(fd)

    def _tell(self, message: Born | Stillborn | Gone, fds: list[int]) -> None:
        # a caller that is gone shows at the next receive
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [msgspec.msgpack.encode(message)], fds)

    def _be_worker(self, order: Fork, pipes: tuple[int, int, int]) -> None:
        """Turn the forked child into a worker; never returns to the zygote's code."""
        results_fd = pipes[1]
        try:
            gc.disable()
            pid = _pid_outside()
            _keep_only(pipes)
            results_fd = RESULTS_FD
            step, task_type = worker.step_for(order.role, self._grader, self._said, self._watch)
            self._watch.arm()
            layers = self._locked(order.token)
            worker.send(RESULTS_FD, protocol.Locked(layers, pid))
        except BaseException as error:  # noqa: BLE001  the worker's outer edge: it says why, and dies
            try:
                reason = shortage(error) if isinstance(error, OSError) else describe(error)
                worker.send(results_fd, Unfit(reason[: protocol.MAX_REASON_CHARS]))
            finally:
                os._exit(1)
        try:
            worker.serve(step, task_type, TASKS_FD, RESULTS_FD, PROGRESS_FD)
        except BaseException:  # noqa: BLE001  the worker's outer edge: it dies, and the caller sees the pipe close
            os._exit(1)
        os._exit(0)

    def _locked(self, token: int) -> list[Layer]:
        if not self._setup.lockdown:
            return lockdown.limit_worker(self._setup)
        return lockdown.lock_worker(self._setup, token, self._root, (1, 2, RESULTS_FD, PROGRESS_FD))


def _pid_outside() -> int:
    """Give this process's number where the caller lives, whose view of processes is still mounted here; else 0."""
    try:
        return int(os.readlink("/proc/self"))
    except OSError:
        return 0


def _keep_only(pipes: tuple[int, int, int]) -> None:
    """Leave the three pipes open as descriptors 3, 4 and 5, null devices as 0, 1 and 2, and nothing else."""
    parked = [fcntl.fcntl(fd, fcntl.F_DUPFD, PROGRESS_FD + 1) for fd in pipes]
    null = os.open(os.devnull, os.O_RDWR)
    for target in range(3):
        os.dup2(null, target)
    for fd, target in zip(parked, (TASKS_FD, RESULTS_FD, PROGRESS_FD), strict=True):
        os.dup2(fd, target)
    os.closerange(PROGRESS_FD + 1, os.sysconf("SC_OPEN_MAX"))
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, mode) for fd, mode in ((0, "r"), (1, "w"), (2, "w")))
    time.tzset()
