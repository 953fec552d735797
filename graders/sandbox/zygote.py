"""The warmed process that workers are forked from.

It is a fresh interpreter, never a fork of the caller, which may hold threads, a GPU and secrets. It loads the grader,
runs known answers through it so that every lazy import happens now, and from then on only forks, kills and buries
workers. It sees neither completions nor references.

Touches: its control socket, its children, and whatever the grader's own import touches.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time

import msgspec

import graders.errors
from graders.grader import Grader, SplitGrader, import_origin, is_shipped, resolve
from graders.sandbox import frames, lockdown, warmup, worker
from graders.sandbox.frames import Born, End, Fork, Gone, Layer, Learn, Ready, Refused, Setup
from graders.sandbox.taint import Watch

SEMI_TRUSTED_BATCH = 8
"""Answers that a third-party grader gives before its process is thrown away."""
REAP_EVERY_S = 0.002
TASKS_FD, RESULTS_FD, PROGRESS_FD = 3, 4, 5


def main(control_fd: int) -> None:
    """Serve one caller until it closes the control socket or dies."""
    control = socket.socket(fileno=control_fd)
    setup = msgspec.msgpack.decode(control.recv(1 << 20), type=Setup)
    watch = Watch()
    layers = lockdown.enclose_zygote() if setup.lockdown else []
    caller = os.getppid()
    try:
        if setup.origin is not None:
            import_origin(setup.origin)
        grader = resolve(setup.spec)
        examples = warmup.run(grader)
    except graders.errors.GraderError as error:
        control.send(msgspec.msgpack.encode(Refused(type(error).__name__, str(error)[:2000])))
        return
    root = lockdown.prepare_root(layers)
    gc.collect()
    gc.freeze()
    control.send(msgspec.msgpack.encode(_ready(setup, grader, examples, layers)))
    Nursery(control, setup, grader, root, watch).serve(caller)


def _ready(setup: Setup, grader: Grader, examples: list[frames.Example], layers: list[frames.Layer]) -> Ready:
    trusted = is_shipped(setup.spec)
    return Ready(
        name=grader.name,
        split=isinstance(grader, SplitGrader),
        shows=hasattr(grader, "shown"),
        trusted=trusted,
        answers_per_process=getattr(grader, "answers_per_process", 0 if trusted else SEMI_TRUSTED_BATCH),
        requires=list(getattr(grader, "requires", ())),
        examples=examples,
        layers=layers,
    )


class Nursery:
    """The workers of one zygote, by the caller's token."""

    def __init__(self, control: socket.socket, setup: Setup, grader: Grader, root: Layer, watch: Watch) -> None:
        self._control = control
        self._root = root
        self._watch = watch
        self._setup = setup
        self._grader = grader
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
        tasks_read, tasks_write = os.pipe()
        results_read, results_write = os.pipe()
        progress_read, progress_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_worker(
                self._setup, self._grader, self._watch, self._root, order, (tasks_read, results_write, progress_write)
            )
        self._living[order.token] = pid
        self._tell(Born(order.token, pid), [tasks_write, results_read, progress_read])
        for fd in (tasks_read, tasks_write, results_read, results_write, progress_read, progress_write):
            os.close(fd)

    def _tell(self, message: Born | Gone, fds: list[int]) -> None:
        # a caller that is gone shows at the next receive
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [msgspec.msgpack.encode(message)], fds)


def _be_worker(
    setup: Setup, grader: Grader, watch: Watch, root: Layer, order: Fork, pipes: tuple[int, int, int]
) -> None:
    """Turn the forked child into a worker; never returns to the zygote's code."""
    try:
        gc.disable()
        pid = _pid_outside()
        _keep_only(pipes)
        step, task_type = worker.step_for(order.role, grader, watch)
        watch.arm()
        if setup.lockdown:
            layers = lockdown.lock_worker(setup, order.token, root, (1, 2, RESULTS_FD, PROGRESS_FD))
        else:
            layers = lockdown.limit_worker(setup)
        worker.send(RESULTS_FD, frames.Locked(layers, pid))
        worker.serve(step, task_type, TASKS_FD, RESULTS_FD, PROGRESS_FD)
    except BaseException:  # noqa: BLE001  the worker's outer edge: it dies, and the caller sees the pipe close
        os._exit(1)
    os._exit(0)


def _pid_outside() -> int:
    """Give this process's number where the caller lives, whose view of processes is still mounted here; else 0."""
    try:
        return int(os.readlink("/proc/self"))
    except OSError:
        return 0


def _keep_only(pipes: tuple[int, int, int]) -> None:
    """Leave the three pipes open as descriptors 3, 4 and 5, null devices as 0, 1 and 2, and nothing else."""
    null = os.open(os.devnull, os.O_RDWR)
    parked = [fd + 100 for fd in range(3)]
    for fd, target in zip(pipes, parked, strict=True):
        os.dup2(fd, target)
    for target in range(3):
        os.dup2(null, target)
    for fd, target in zip(parked, (TASKS_FD, RESULTS_FD, PROGRESS_FD), strict=True):
        os.dup2(fd, target)
    os.closerange(PROGRESS_FD + 1, os.sysconf("SC_OPEN_MAX"))
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, mode) for fd, mode in ((0, "r"), (1, "w"), (2, "w")))
    time.tzset()
