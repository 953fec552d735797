"""Worker supervisor: spawns workers through the zygote, marks them ready once sandboxed, and kills and reaps them.

Only the supervisor changes the state of a worker:

    spawn()            started()            mark_ready()         assign()
      ──────> SPAWNING ────────> STARTING ──────────────> IDLE <──────────> BUSY
                 │                  │                      │     release()    │
                 │ spawn_failed()   └────── kill() ────────┴───── kill() ─────┤
                 v                                                            v
               EXITED <─────────────────────── on_exit() ────────────────── EXITING

`replace_zygote()` and `close()` move every worker to EXITED.
"""

import contextlib
import enum
import itertools
import selectors
import time
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from graders.errors import SandboxUnavailable
from graders.sandbox import protocol
from graders.sandbox.host.process_handles import WorkerPipes, ZygoteHandle
from graders.sandbox.protocol import Layer, Role, Setup

SPAWN_LIMIT_S = 10.0
"""Time from the spawn message to the fork, and again from the fork to the sandboxed worker."""
MAX_SPAWNING = 16
"""Workers of a group that may be SPAWNING at once: the buffers of the control socket cannot fill up on both ends."""
MAX_FAILED_STARTS = 4
"""Consecutive failed starts, of workers or zygotes, after which the sandbox is unavailable."""
UNKNOWN_REASON = "run graders doctor"
"""The explanation of a failed start that reported no reason."""


class WorkerState(enum.Enum):
    """The life cycle of a worker; see the diagram above."""

    SPAWNING = enum.auto()
    """Requested from the zygote, not forked yet."""
    STARTING = enum.auto()
    """Forked, setting up its sandbox."""
    IDLE = enum.auto()
    BUSY = enum.auto()
    EXITING = enum.auto()
    """Its pipes are closed and the zygote was told to kill it; its exit code is not known yet."""
    EXITED = enum.auto()


@dataclass(eq=False)
class WorkerGroup:
    """The workers of one role. Spares are started in advance, so that a lost worker is replaced immediately."""

    role: Role
    num_busy: int
    """Workers that may be busy at once."""
    num_spares: int
    answers_per_worker: int
    """Answers after which a worker is replaced."""
    workers: dict[WorkerState, dict[int, "Worker"]] = field(default_factory=lambda: {s: {} for s in WorkerState})
    """Workers by state and token, in the order in which they entered the state; EXITED ones are dropped."""

    @property
    def num_missing(self) -> int:
        """The number of workers to spawn."""
        alive = (WorkerState.SPAWNING, WorkerState.STARTING, WorkerState.IDLE, WorkerState.BUSY)
        return self.num_busy + self.num_spares - sum(len(self.workers[state]) for state in alive)

    @property
    def has_ready_worker(self) -> bool:
        return bool(self.workers[WorkerState.IDLE] or self.workers[WorkerState.BUSY])

    @property
    def can_assign(self) -> bool:
        return bool(self.workers[WorkerState.IDLE]) and len(self.workers[WorkerState.BUSY]) < self.num_busy


@dataclass(eq=False)
class Worker:
    """The record of one worker; `start_deadline`, on the monotonic clock, ends the states SPAWNING and STARTING."""

    token: int
    group: WorkerGroup
    start_deadline: float
    state: WorkerState = WorkerState.SPAWNING
    num_answers: int = 0
    pipes: WorkerPipes = field(init=False, repr=False)
    """Set when it is STARTING."""

    @property
    def is_open(self) -> bool:
        """True if its pipes are open."""
        return self.state in (WorkerState.STARTING, WorkerState.IDLE, WorkerState.BUSY)


class Supervisor:
    """The workers and the zygote of one grader. Only the scheduler's thread may use it.

    Args:
        setup: the configuration of each zygote.
        zygote: the first zygote.
        groups: the worker groups to keep complete.
        require: names of the isolation layers that every worker must have.
        counts: the counter of `forks`, `late_imports` and `zygote_restarts`.
    """

    def __init__(
        self,
        setup: Setup,
        zygote: ZygoteHandle,
        groups: list[WorkerGroup],
        require: frozenset[str],
        counts: Counter[str],
    ) -> None:
        self._setup = setup
        self._zygote = zygote
        self._groups = groups
        self._require = require | frozenset(zygote.ready.requires)
        self._counts = counts
        self._workers: dict[int, Worker] = {}
        self._tokens = itertools.count()
        self._num_failed_starts = 0
        self._first_fresh_token = 0
        """Workers with smaller tokens lack a module that was preloaded after their fork."""
        self.selector = selectors.DefaultSelector()
        self.selector.register(zygote, selectors.EVENT_READ, zygote)
        self.layers: list[Layer] = []
        """The isolation layers of the zygote and of the most recently started worker."""

    @property
    def is_complete(self) -> bool:
        """True if every group has a worker that is ready."""
        return all(group.has_ready_worker for group in self._groups)

    @property
    def starting(self) -> list[Worker]:
        """The workers that are SPAWNING or STARTING, which have a deadline for it."""
        return [*self._in_state(WorkerState.SPAWNING), *self._in_state(WorkerState.STARTING)]

    def spawn_missing(self) -> None:
        """Spawn as many workers as each group is missing."""
        for group in self._groups:
            for _ in range(min(group.num_missing, MAX_SPAWNING - len(group.workers[WorkerState.SPAWNING]))):
                worker = Worker(next(self._tokens), group, time.monotonic() + SPAWN_LIMIT_S)
                self._workers[worker.token] = worker
                self._set_state(worker, WorkerState.SPAWNING)
                self._zygote.send(protocol.Spawn(worker.token, group.role))
                self._counts["forks"] += 1

    def started(self, message: protocol.Started, fds: list[int]) -> None:
        """Record a worker that was forked and is setting up its sandbox."""
        worker = self._workers[message.token]
        worker.pipes = WorkerPipes(fds)
        worker.start_deadline = time.monotonic() + SPAWN_LIMIT_S
        self._set_state(worker, WorkerState.STARTING)
        self.selector.register(worker.pipes.results_fd, selectors.EVENT_READ, worker)

    def spawn_failed(self, message: protocol.SpawnFailed) -> None:
        """Drop a worker that could not be forked.

        Raises:
            SandboxUnavailable: too many starts have failed in a row.
        """
        self._set_state(self._workers[message.token], WorkerState.EXITED)
        self._count_failed_start("its workers to start", message.reason)

    def mark_ready(self, worker: Worker, payload: bytes) -> None:
        """Make a worker IDLE if its first frame shows that its sandbox is in place; otherwise kill it.

        Raises:
            SandboxUnavailable: a required layer is not active, or too many starts have failed in a row.
            MsgspecError: the payload is not a valid message.
        """
        message = msgspec.msgpack.decode(payload, type=protocol.Sandboxed | protocol.StartFailed)
        if isinstance(message, protocol.StartFailed):
            self.kill(worker, message.reason)
            return
        layers = [*self._zygote.ready.layers, *message.layers]
        worker.pipes.open_schedstat(message.pid)
        missing = self._require - {layer.name for layer in layers if layer.state == "active"}
        if missing:
            evidence = ", ".join(f"{layer.name}: {layer.evidence}" for layer in layers if layer.name in missing)
            raise SandboxUnavailable(
                f"grader {self._zygote.ready.name!r}: expected the layers {sorted(self._require)} to be active, "
                f"but {sorted(missing)} are not ({evidence}); run graders doctor"
            )
        self.release(worker)
        if worker.is_open:
            self.layers = layers

    def assign(self, group: WorkerGroup) -> Worker:
        """Make the worker BUSY that has been IDLE for the longest time, and return it."""
        worker = next(iter(group.workers[WorkerState.IDLE].values()))
        self._set_state(worker, WorkerState.BUSY)
        return worker

    def release(self, worker: Worker) -> None:
        """Make a worker IDLE, or kill it if it lacks a preloaded module or has given all its answers."""
        self._set_state(worker, WorkerState.IDLE)
        is_stale = worker.token < self._first_fresh_token
        if is_stale or worker.num_answers >= worker.group.answers_per_worker:
            self.kill(worker)

    def record_answers(self, worker: Worker, num_answers: int) -> None:
        """Count answers of a worker, and reset the count of failed starts."""
        worker.num_answers += num_answers
        self._num_failed_starts = 0

    def preload(self, module: str) -> None:
        """Import a module in the zygote, and replace all workers that were forked without it."""
        self._zygote.send(protocol.Preload(module))
        self._first_fresh_token = next(self._tokens)
        for worker in self._in_state(WorkerState.IDLE):
            self.kill(worker)
        self._counts["late_imports"] += 1

    def kill(self, worker: Worker, reason: str = UNKNOWN_REASON) -> None:
        """Close an open worker's pipes and tell the zygote to kill it; if it was STARTING, count a failed start.

        Raises:
            SandboxUnavailable: too many starts have failed in a row.
        """
        if worker.state is WorkerState.STARTING:
            self._count_failed_start("its workers to start", reason)
        self._close_pipes(worker)
        self._set_state(worker, WorkerState.EXITING)
        self._zygote.send(protocol.Kill(worker.token))

    def on_exit(self, message: protocol.Exited) -> Worker:
        """Drop a worker that the zygote has reaped, and return it."""
        worker = self._workers[message.token]
        self._set_state(worker, WorkerState.EXITED)
        return worker

    def replace_zygote(self) -> None:
        """Kill the zygote and all its workers, and start another zygote.

        Raises:
            SandboxUnavailable: it does not start, or too many starts have failed in a row.
        """
        self._counts["zygote_restarts"] += 1
        self._count_failed_start("its sandbox to keep running", UNKNOWN_REASON)
        self.selector.unregister(self._zygote)
        self._zygote.close()
        for worker in list(self._workers.values()):
            if worker.is_open:
                self._close_pipes(worker)
            self._set_state(worker, WorkerState.EXITED)
        self._zygote = ZygoteHandle(self._setup)
        self.selector.register(self._zygote, selectors.EVENT_READ, self._zygote)

    def close(self) -> None:
        """Kill the zygote and all workers."""
        self._zygote.close()
        self._close_descriptors()

    def abandon(self) -> None:
        """Close this process's copies of all descriptors: for a forked copy of the caller."""
        self._zygote.abandon()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        for worker in list(self._workers.values()):
            if worker.is_open:
                worker.pipes.close()  # not unregistered: a forked copy shares the selector with its parent
            self._set_state(worker, WorkerState.EXITED)
        self.selector.close()

    def _in_state(self, state: WorkerState) -> list[Worker]:
        return [worker for group in self._groups for worker in group.workers[state].values()]

    def _set_state(self, worker: Worker, state: WorkerState) -> None:
        workers = worker.group.workers
        workers[worker.state].pop(worker.token, None)
        worker.state = state
        if state is WorkerState.EXITED:
            del self._workers[worker.token]
        else:
            workers[state][worker.token] = worker

    def _close_pipes(self, worker: Worker) -> None:
        for fd in (worker.pipes.results_fd, worker.pipes.tasks_fd):
            with contextlib.suppress(KeyError):
                self.selector.unregister(fd)
        worker.pipes.close()

    def _count_failed_start(self, expected: str, reason: str) -> None:
        self._num_failed_starts += 1
        if self._num_failed_starts >= MAX_FAILED_STARTS:
            raise SandboxUnavailable(
                f"grader {self._setup.spec!r}: expected {expected}, but {MAX_FAILED_STARTS} in a row died: {reason}"
            )
