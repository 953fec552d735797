"""The thread that hands out work, watches deadlines, and replaces workers.

A deadline runs from the start of execution: a worker sends results within half a millisecond of finishing a task, so
the last message from it (or the hand-over of its chunk) is when its current task began. When it passes, the worker is
killed, the task it was at is over budget, and the rest of its chunk goes back to the front of the queue (note G3).
"""

import contextlib
import itertools
import os
import selectors
import threading
import time
from collections import Counter, deque

import msgspec

from graders.errors import GraderError, SandboxUnavailable
from graders.sandbox.diagnostics import shortage
from graders.sandbox.host.process_handles import Worker, Zygote
from graders.sandbox.host.supervisor import Roster
from graders.sandbox.host.task_queue import Ledger
from graders.sandbox.host.worker_group import Assignment, Chunk, Crew, Job
from graders.sandbox.protocol import Born, FrameError, Layer, Ready, Setup, Stillborn

SLACK_S = 0.003
"""Added to every deadline: what a worker may hold results back, and a little scheduling."""


class Dispatcher:
    """Runs jobs through the workers of one grader.

    Args:
        setup: what the zygote is told.
        zygote: where workers come from.
        crews: the stages that an item passes, one (`grade`) or two (`read`, `judge`).
        require: names of layers without which no work is done.
    """

    def __init__(self, setup: Setup, zygote: Zygote, crews: list[Crew], require: frozenset[str]) -> None:
        self.ready: Ready = zygote.ready
        self.counts: Counter[str] = Counter()
        self._time_limit_s = setup.time_limit_s
        self._crews = crews
        self._roster = Roster(setup, zygote, crews, require, self.counts)
        self._ledger = Ledger(crews, zygote.ready, setup.time_limit_s, self.counts)
        self._submitted: deque[Job] = deque()
        self._dying: dict[int, Assignment] = {}
        self._numbers = itertools.count()
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        self._roster.selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._closing = False
        self._failure: Exception | None = None
        self._started = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="graders-dispatcher", daemon=True)
        self._thread.start()

    # ---- called from any thread ----

    @property
    def layers(self) -> list[Layer]:
        """What the youngest worker shows to be in force, and its zygote."""
        return self._roster.layers

    @property
    def has_failed(self) -> bool:
        """Whether it has stopped for good."""
        return self._failure is not None

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller runs in the dispatcher's own thread, as callbacks do."""
        return threading.current_thread() is self._thread

    def await_workers(self, timeout_s: float) -> None:
        """Return once every crew has a locked worker.

        Raises:
            SandboxUnavailable: a required layer is not in force, or workers do not start.
        """
        if not self._started.wait(timeout_s):
            raise SandboxUnavailable(f"grader {self.ready.name!r}: expected workers within {timeout_s} s, got none")
        if self._failure is not None:
            raise self._failure

    def submit(self, job: Job) -> None:
        """Queue a job; its verdicts come through `job.deliver` on the dispatcher's thread."""
        with self._lock:
            failure = self._failure
            if failure is None:
                self._submitted.append(job)
        self._wake()
        if failure is not None:
            job.fail(failure)

    def close(self) -> None:
        """Stop, kill every worker, and fail what is unfinished."""
        self._closing = True
        self._wake()
        if not self.is_this_thread:  # a callback of a job may close the pool
            self._thread.join()

    def abandon(self) -> None:
        """Close this process's copies of every descriptor: for a forked copy of the caller."""
        self._roster.abandon()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._failure is None:  # else the pipe is closed, and its number may be another's
                os.write(self._wake_write, b"!")

    # ---- the dispatcher's thread ----

    def _run(self) -> None:
        try:
            while not self._closing:
                self._roster.hire()
                self._assign()
                for key, mask in self._roster.selector.select(self._patience()):
                    self._handle(key.data, mask)
                self._check_deadlines()
            self._stop(GraderError("grader pool: expected an open pool, got a closed one; make a new GraderPool"))
        except OSError as error:
            self._stop(SandboxUnavailable(f"grader pool: expected to go on: {shortage(error)}"))
        except Exception as error:  # noqa: BLE001  whatever ends this thread, callers must not wait for it
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        with self._lock:
            self._failure = error
            os.close(self._wake_read)
            os.close(self._wake_write)
            jobs = {*self._submitted} | self._ledger.unfinished()
        jobs |= {work.chunk.job for work in self._in_hand()}
        self._roster.close()
        self._started.set()
        for job in jobs:
            job.fail(error)

    def _in_hand(self) -> list[Assignment]:
        """Give the work that workers have begun, or have just died of."""
        return [*self._dying.values(), *(work for crew in self._crews for work in crew.busy.values())]

    def _handle(self, source: Zygote | Worker | None, mask: int) -> None:
        if source is None:
            os.read(self._wake_read, 1 << 12)
            with self._lock:
                while self._submitted:
                    self._ledger.add(self._submitted.popleft())
        elif isinstance(source, Zygote):
            self._hear_zygote(source)
        elif source in self._roster:  # an earlier event of this round may have buried it
            if mask & selectors.EVENT_WRITE:
                self._write_on(source)
            else:
                self._hear_worker(source)

    def _assign(self) -> None:
        """Give every free worker something to do."""
        for crew in self._crews:
            while crew.can_work and (chunk := self._ledger.next_chunk(crew)) is not None:
                self._give(crew, chunk)

    def _give(self, crew: Crew, chunk: Chunk) -> None:
        worker = crew.idle.popleft()
        due = self._due(chunk)
        work = Assignment(crew, worker, chunk, next(self._numbers), due, due, worker.waited_s())
        crew.busy[worker] = work
        try:
            if not worker.send((work.number, self._ledger.tasks_of(crew, chunk))):
                self._roster.selector.register(worker.tasks_fd, selectors.EVENT_WRITE, worker)
        except BrokenPipeError:
            self._lose(worker)

    def _write_on(self, worker: Worker) -> None:
        try:
            if worker.flush():
                self._roster.selector.unregister(worker.tasks_fd)
        except BrokenPipeError:
            self._lose(worker)

    def _hear_zygote(self, zygote: Zygote) -> None:
        heard = zygote.receive()
        if heard is None:
            self._replace_zygote()
            return
        message, fds = heard
        if isinstance(message, Born):
            self._roster.welcome(message, fds)
        elif isinstance(message, Stillborn):
            self._roster.mourn(message)
        elif (work := self._dying.pop(message.token, None)) is not None:
            self._ledger.settle_death(work, work.worker.tasks_begun - 1, message.exit_code)

    def _replace_zygote(self) -> None:
        for work in self._in_hand():  # first of all, so that no job is forgotten if no zygote can be had
            self._ledger.redo(work)
        self._dying.clear()
        self._roster.replace_zygote()

    def _hear_worker(self, worker: Worker) -> None:
        try:
            arrived = worker.receive()
            if arrived is None:
                self._lose(worker)
                return
            for payload in arrived:
                self._take(worker, payload)
        except (FrameError, msgspec.MsgspecError, RecursionError):  # nesting without end
            self.counts["violations"] += 1
            if worker in self._roster:
                if (work := self._roster.crew_of(worker).busy.get(worker)) is not None:
                    work.has_broken_rules = True
                self._lose(worker)

    def _take(self, worker: Worker, payload: bytes) -> None:
        if worker not in self._roster:
            raise FrameError("expected nothing after the last result of a worker's life")
        crew = self._roster.crew_of(worker)
        if worker in crew.unlocked:
            self._roster.admit(worker, payload)
            if self._roster.is_complete:
                self._started.set()
            return
        work = crew.busy.get(worker)
        if work is None:
            raise FrameError("expected no results from a worker without work")
        begun = work.done
        is_done = self._ledger.enter(work, payload)
        if not is_done:
            work.begin_task(self._due(work.chunk))
        crew.ages[worker] += work.done - begun
        self._roster.note_success()
        if is_done:
            self._finish(work)
        while self._ledger.to_teach:
            self._roster.teach(self._ledger.to_teach.pop())

    def _finish(self, work: Assignment) -> None:
        """A chunk is done: believe it or not, then keep the worker or part with it."""
        crew, worker = work.crew, work.worker
        del crew.busy[worker]
        is_sound = not work.chunk.canaries or self._ledger.believe(work)
        if not is_sound or crew.ages[worker] >= crew.answers_per_life:
            self._roster.part(worker)
        else:
            crew.idle.append(worker)

    def _check_deadlines(self) -> None:
        if self._roster.is_stalled:
            self._replace_zygote()
        now = time.monotonic()
        for crew in self._crews:
            for worker in [worker for worker, limit in crew.unlocked.items() if now > limit]:
                self._lose(worker)
            for work in [work for work in crew.busy.values() if now > work.deadline]:
                self._hear_worker(work.worker)  # results may have come while this thread could not run
                if work.worker in crew.busy and now > work.deadline:
                    self._expire(work, now)

    def _expire(self, work: Assignment, now: float) -> None:
        """Kill a worker at its deadline, unless it only waited for others to leave it a processor (note G8)."""
        is_starved = work.put_off(now, self._time_limit_s)
        if now <= work.deadline:
            self.counts["delays"] += 1
            return
        culprit = work.worker.count_begun() - 1
        self._roster.part(work.worker)
        self._ledger.expire(work, culprit, is_starved=is_starved)

    def _lose(self, worker: Worker) -> None:
        """A worker died or broke the protocol: what becomes of its work is settled when its exit code is known."""
        work = self._roster.crew_of(worker).busy.get(worker)
        if work is not None:
            worker.count_begun()
            self._dying[worker.token] = work
        self._roster.part(worker)

    def _due(self, chunk: Chunk) -> float:
        """When the task that begins now must be done. A reader that lies about its time costs half of it at most."""
        left_s = self._time_limit_s - min(chunk.spent_s, self._time_limit_s / 2)
        return time.monotonic() + left_s + SLACK_S

    def _patience(self) -> float | None:
        """Seconds until the next deadline, or None."""
        moments = [work.deadline for crew in self._crews for work in crew.busy.values()]
        moments += [limit for crew in self._crews for limit in (*crew.unlocked.values(), *crew.unborn.values())]
        return max(0.0, min(moments) - time.monotonic() + 1e-4) if moments else None
