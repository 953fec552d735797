"""Scheduler: the thread that assigns chunks to workers and enforces deadlines.

A deadline is measured from the start of execution. A worker sends results at most half a millisecond after it finishes
a task, so its current task began when its last message (or the assignment of its chunk) was sent. When the deadline
passes, the worker is killed, the task it was doing is over budget, and the rest of its chunk is retried (note G3).
"""

import contextlib
import math
import os
import selectors
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass

import msgspec

from graders.errors import GraderError, SandboxUnavailable
from graders.sandbox.diagnostics import explain_os_error
from graders.sandbox.host.process_handles import ZygoteHandle
from graders.sandbox.host.supervisor import Supervisor, Worker, WorkerGroup, WorkerState
from graders.sandbox.host.task_queue import Chunk, Job, TaskQueue
from graders.sandbox.protocol import FrameError, Layer, Ready, Setup, SpawnFailed, Started

SLACK_S = 0.003
"""Added to every deadline: the time for which a worker may hold back results, plus some scheduling delay."""
STARVED_SHARE = 0.6
"""Share of the time limit: a worker that waited longer than this for a processor gets that time back."""
MAX_WAIT_LIMITS = 8
"""Number of time limits for which a worker may wait for a processor before it is killed."""


@dataclass(eq=False)
class Assignment:
    """A chunk of a worker that is BUSY or was lost, and the deadline of its current task."""

    worker: Worker
    chunk: Chunk
    due: float
    """When the current task must be done if the worker never waits for a processor, on the monotonic clock."""
    deadline: float
    """The same, plus the time that the worker waited for a processor; infinite once the worker is lost."""
    waited_s: float
    """The total waiting time of the worker when the current task began."""
    is_violation: bool = False
    """True if the worker violated the protocol."""

    def begin_task(self, due: float) -> None:
        """Reset the deadline for the next task."""
        self.due = self.deadline = due
        self.waited_s = self.worker.pipes.waited_s()

    def extend(self, now: float, limit_s: float) -> bool:
        """Extend the deadline by the time that the worker has waited for a processor, if it is substantial.

        Returns:
            True if the worker has waited for the maximal time and hardly run (note G8).
        """
        waited_s = self.worker.pipes.waited_s() - self.waited_s
        if waited_s >= STARVED_SHARE * limit_s:
            self.deadline = self.due + min(waited_s, MAX_WAIT_LIMITS * limit_s)
        ran_s = now - (self.due - limit_s) - waited_s
        return waited_s > MAX_WAIT_LIMITS * limit_s and ran_s < (1 - STARVED_SHARE) * limit_s


class Scheduler:
    """Runs jobs on the workers of one grader.

    Args:
        setup: the configuration of the zygote.
        zygote: the process that forks workers.
        groups: the stages that an item passes: one (`grade`) or two (`read`, `judge`).
        require: names of isolation layers without which no work is done.
    """

    def __init__(self, setup: Setup, zygote: ZygoteHandle, groups: list[WorkerGroup], require: frozenset[str]) -> None:
        self.ready: Ready = zygote.ready
        self.counts: Counter[str] = Counter()
        self._time_limit_s = setup.time_limit_s
        self._groups = groups
        self._supervisor = Supervisor(setup, zygote, groups, require, self.counts)
        self._queue = TaskQueue(zygote.ready, groups[0].num_busy, setup.time_limit_s, self.counts)
        self._assignments: dict[Worker, Assignment] = {}
        """By worker; kept after a worker is lost until its exit code is known."""
        self._submitted: deque[Job] = deque()
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        self._supervisor.selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._closing = False
        self._failure: Exception | None = None
        self._started = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="graders-scheduler", daemon=True)
        self._thread.start()

    # ---- called from any thread ----

    @property
    def layers(self) -> list[Layer]:
        """The isolation layers of the zygote and of the most recently started worker."""
        return self._supervisor.layers

    @property
    def has_failed(self) -> bool:
        """True if the thread has stopped for good."""
        return self._failure is not None

    @property
    def is_this_thread(self) -> bool:
        """True if the caller runs in the scheduler's thread, as callbacks do."""
        return threading.current_thread() is self._thread

    def await_workers(self, timeout_s: float) -> None:
        """Return once every group has a worker that is ready.

        Raises:
            SandboxUnavailable: a required layer is not active, or workers do not start.
        """
        if not self._started.wait(timeout_s):
            raise SandboxUnavailable(f"grader {self.ready.name!r}: expected workers within {timeout_s} s, got none")
        if self._failure is not None:
            raise self._failure

    def submit(self, job: Job) -> None:
        """Queue a job; its verdicts are passed to `job.deliver` in the scheduler's thread."""
        with self._lock:
            failure = self._failure
            if failure is None:
                self._submitted.append(job)
        self._wake()
        if failure is not None:
            job.fail(failure)

    def close(self) -> None:
        """Stop, kill all workers, and fail the unfinished jobs."""
        self._closing = True
        self._wake()
        if not self.is_this_thread:  # a callback of a job may close the pool
            self._thread.join()

    def abandon(self) -> None:
        """Close this process's copies of all descriptors: for a forked copy of the caller."""
        self._supervisor.abandon()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._failure is None:  # otherwise the pipe is closed, and its descriptor may have been reused
                os.write(self._wake_write, b"!")

    # ---- in the scheduler's thread ----

    def _run(self) -> None:
        try:
            while not self._closing:
                self._supervisor.spawn_missing()
                self._assign_chunks()
                for key, mask in self._supervisor.selector.select(self._seconds_to_deadline()):
                    self._handle(key.data, mask)
                self._check_deadlines()
            self._stop(GraderError("grader pool: expected an open pool, got a closed one; make a new GraderPool"))
        except OSError as error:
            self._stop(SandboxUnavailable(f"grader pool: expected to keep running: {explain_os_error(error)}"))
        except Exception as error:  # noqa: BLE001  callers must not wait for a thread that has ended, for any reason
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        self._supervisor.close()  # first: a caller that sees the failure finds no process and no descriptor left
        with self._lock:
            self._failure = error
            os.close(self._wake_read)
            os.close(self._wake_write)
            jobs = {*self._submitted} | self._queue.unfinished()
        jobs |= {assignment.chunk.job for assignment in self._assignments.values()}
        self._started.set()
        for job in jobs:
            job.fail(error)

    def _handle(self, source: ZygoteHandle | Worker | None, mask: int) -> None:
        if source is None:
            os.read(self._wake_read, 1 << 12)
            with self._lock:
                while self._submitted:
                    self._queue.add(self._submitted.popleft())
        elif isinstance(source, ZygoteHandle):
            self._receive_from_zygote(source)
        elif source.is_open:  # an earlier event of this round may have closed it
            if mask & selectors.EVENT_WRITE:
                self._flush(source)
            else:
                self._receive_from_worker(source)

    def _assign_chunks(self) -> None:
        for group in self._groups:
            while group.can_assign and (chunk := self._queue.next_chunk(group.role)) is not None:
                self._assign(group, chunk)

    def _assign(self, group: WorkerGroup, chunk: Chunk) -> None:
        worker = self._supervisor.assign(group)
        due = self._due(chunk)
        self._assignments[worker] = Assignment(worker, chunk, due, due, worker.pipes.waited_s())
        try:
            if not worker.pipes.send((chunk.number, self._queue.tasks_to_send(chunk))):
                self._supervisor.selector.register(worker.pipes.tasks_fd, selectors.EVENT_WRITE, worker)
        except BrokenPipeError:
            self._lose(worker)

    def _flush(self, worker: Worker) -> None:
        try:
            if worker.pipes.flush():
                self._supervisor.selector.unregister(worker.pipes.tasks_fd)
        except BrokenPipeError:
            self._lose(worker)

    def _receive_from_zygote(self, zygote: ZygoteHandle) -> None:
        received = zygote.receive()
        if received is None:
            self._replace_zygote()
            return
        message, fds = received
        if isinstance(message, Started):
            self._supervisor.started(message, fds)
        elif isinstance(message, SpawnFailed):
            self._supervisor.spawn_failed(message)
        else:
            worker = self._supervisor.on_exit(message)
            assignment = self._assignments.pop(worker, None)
            if assignment is not None:
                chunk, num_begun = assignment.chunk, worker.pipes.tasks_begun
                self._queue.settle_exit(chunk, num_begun, message.exit_code, is_violation=assignment.is_violation)

    def _replace_zygote(self) -> None:
        for assignment in self._assignments.values():  # first, so that no job is lost if no zygote can be started
            self._queue.requeue(assignment.chunk)
        self._assignments.clear()
        self._supervisor.replace_zygote()

    def _receive_from_worker(self, worker: Worker) -> None:
        try:
            payloads = worker.pipes.receive()
            if payloads is None:
                self._lose(worker)
                return
            for payload in payloads:
                self._process(worker, payload)
        except (FrameError, msgspec.MsgspecError, RecursionError):  # RecursionError: unbounded nesting
            self.counts["violations"] += 1
            if worker.is_open:
                if worker in self._assignments:
                    self._assignments[worker].is_violation = True
                self._lose(worker)

    def _process(self, worker: Worker, payload: bytes) -> None:
        """Process one frame of a worker."""
        if not worker.is_open:
            raise FrameError("expected nothing after the last result of a worker")
        if worker.state is WorkerState.STARTING:
            self._supervisor.mark_ready(worker, payload)
            if self._supervisor.is_complete:
                self._started.set()
            return
        if worker.state is not WorkerState.BUSY:
            raise FrameError("expected no results from an idle worker")
        assignment = self._assignments[worker]
        chunk, num_done = assignment.chunk, assignment.chunk.num_done
        self._queue.add_outcomes(chunk, payload)
        self._supervisor.record_answers(worker, chunk.num_done - num_done)
        if chunk.num_done == chunk.num_tasks:
            self._finish(assignment)
        else:
            assignment.begin_task(self._due(chunk))
        while self._queue.to_preload:
            self._supervisor.preload(self._queue.to_preload.pop())

    def _finish(self, assignment: Assignment) -> None:
        """Take back a finished chunk; keep the worker only if its canaries are right."""
        worker = assignment.worker
        del self._assignments[worker]
        if self._queue.check_canaries(assignment.chunk):
            self._supervisor.release(worker)
        else:
            self._supervisor.kill(worker)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        late = [worker for worker in self._supervisor.starting if now > worker.start_deadline]
        if any(worker.state is WorkerState.SPAWNING for worker in late):  # the zygote hangs or is stopped
            self._replace_zygote()
            return
        for worker in late:
            self._lose(worker)
        for assignment in [a for a in self._assignments.values() if now > a.deadline]:
            self._receive_from_worker(assignment.worker)  # results may have arrived while this thread did not run
            if assignment.worker in self._assignments and now > assignment.deadline:
                self._expire(assignment, now)

    def _expire(self, assignment: Assignment, now: float) -> None:
        """Kill a worker at its deadline, unless the deadline can be extended (note G8)."""
        is_starved = assignment.extend(now, self._time_limit_s)
        if now <= assignment.deadline:
            self.counts["delays"] += 1
            return
        num_begun = assignment.worker.pipes.count_begun()
        del self._assignments[assignment.worker]
        self._supervisor.kill(assignment.worker)
        self._queue.expire(assignment.chunk, num_begun, is_starved=is_starved)

    def _lose(self, worker: Worker) -> None:
        """Kill a worker that died or violated the protocol; its chunk is settled when its exit code is known."""
        assignment = self._assignments.get(worker)
        if assignment is not None:
            worker.pipes.count_begun()
            assignment.deadline = math.inf
        self._supervisor.kill(worker)

    def _due(self, chunk: Chunk) -> float:
        """Return when the task that begins now must be done.

        A reader that reports a wrong duration can reduce the judge's time by half at most.
        """
        left_s = self._time_limit_s - min(chunk.spent_s, self._time_limit_s / 2)
        return time.monotonic() + left_s + SLACK_S

    def _seconds_to_deadline(self) -> float | None:
        """Return the seconds until the next deadline, or None if there is none."""
        deadlines = [assignment.deadline for assignment in self._assignments.values()]
        deadlines += [worker.start_deadline for worker in self._supervisor.starting]
        next_deadline = min(deadlines, default=math.inf)
        return None if next_deadline == math.inf else max(0.0, next_deadline - time.monotonic() + 1e-4)
