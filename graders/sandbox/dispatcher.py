"""The thread that hands out work, watches deadlines, and replaces workers; nothing is lost and nothing counted twice.

A deadline runs from the start of execution: a worker sends results within half a millisecond of finishing a task, so
the last message from it (or the hand-over of its chunk) is when its current task began. When it passes, the worker is
killed, the task it was at is over budget, and the rest of its chunk goes back to the front of the queue (note G3).

Touches: its zygote and workers, one wake-up pipe, one thread.
"""

import contextlib
import itertools
import os
import random
import selectors
import signal
import threading
import time
from collections import Counter, deque

import msgspec

from graders.errors import GraderError, SandboxUnavailable
from graders.sandbox.crew import Assignment, Chunk, Crew, Job, draw_chunk
from graders.sandbox.frames import (
    Born,
    Failure,
    FrameError,
    Gone,
    Layer,
    Outcomes,
    Read,
    Ready,
    Setup,
)
from graders.sandbox.process import Worker, Zygote
from graders.sandbox.roster import Roster
from graders.verdict import Status, Verdict

SLACK_S = 0.003
"""Added to every deadline: what a worker may hold results back, and a little scheduling."""
MAX_ATTEMPTS = 3


class Dispatcher:
    """Runs jobs through the workers of one grader.

    Args:
        setup: what the zygote is told.
        crews: the stages that an item passes, one (`grade`) or two (`read`, `judge`).
        require: names of layers without which no work is done.
    """

    def __init__(self, setup: Setup, zygote: Zygote, crews: list[Crew], require: frozenset[str]) -> None:
        self._time_limit_s = setup.time_limit_s
        self._crews = crews
        self.ready: Ready = zygote.ready
        self.counts: Counter[str] = Counter()
        self._roster = Roster(setup, zygote, crews, require, self.counts)
        self._jobs: deque[Job] = deque()
        self._submitted: deque[Job] = deque()
        self._lost: dict[int, Assignment] = {}
        self._numbers = itertools.count()
        self._outcomes = msgspec.msgpack.Decoder(Outcomes)
        self._verdict = msgspec.msgpack.Decoder(Verdict)
        self._read = msgspec.msgpack.Decoder(Read | Failure)
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

    def await_workers(self, timeout_s: float) -> None:
        """Return once every crew has a locked worker.

        Raises:
            SandboxUnavailable: a required layer is not in force, or workers do not start.
        """
        if not self._started.wait(timeout_s):
            raise SandboxUnavailable(f"grader {self.ready.name!r}: expected workers within {timeout_s} s, got none")
        if self._failure is not None:
            raise self._failure

    @property
    def has_failed(self) -> bool:
        """Whether it has stopped for good."""
        return self._failure is not None

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
        except (GraderError, OSError, msgspec.MsgspecError) as error:
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        with self._lock:
            self._failure = error
            os.close(self._wake_read)
            os.close(self._wake_write)
            jobs = {*self._jobs, *self._submitted}
        for crew in self._crews:
            jobs |= {chunk.job for chunk in crew.waiting} | {work.chunk.job for work in crew.busy.values()}
        jobs |= {work.chunk.job for work in self._lost.values()}
        self._roster.close()
        self._started.set()
        for job in jobs:
            job.fail(error)

    def _handle(self, source: Zygote | Worker | None, mask: int) -> None:
        if source is None:
            os.read(self._wake_read, 1 << 12)
            with self._lock:
                self._jobs.extend(self._submitted)
                self._submitted.clear()
        elif isinstance(source, Zygote):
            self._hear_zygote(source)
        elif source in self._roster:  # an earlier event of this round may have buried it
            if mask & selectors.EVENT_WRITE:
                self._write_on(source)
            else:
                self._hear_worker(source)

    def _assign(self) -> None:
        """Give every free worker something to do: interrupted work first, then the jobs in turn."""
        for crew in self._crews:
            while crew.can_work:
                chunk = self._next_chunk(crew)
                if chunk is None:
                    break
                self._give(crew, chunk)

    def _next_chunk(self, crew: Crew) -> Chunk | None:
        while crew.waiting:
            chunk = crew.waiting.popleft()
            if not chunk.job.cancelled:
                return chunk
        while crew is self._crews[0] and self._jobs:
            job = self._jobs.popleft()
            if job.remaining:
                chunk = draw_chunk(job, crew)
                if job.remaining:
                    self._jobs.append(job)
                if chunk.tasks:
                    return chunk
        return None

    def _give(self, crew: Crew, chunk: Chunk) -> None:
        worker = crew.idle.popleft()
        work = Assignment(crew, worker, chunk, next(self._numbers), self._deadline())
        crew.busy[worker] = work
        tasks = chunk.tasks
        if crew.role == "read":
            tasks = [(completion, None, question) for completion, _, question in tasks]
        elif crew.role == "grade" and not self.ready.trusted:
            tasks = tasks + self._plant_canaries(chunk)
        try:
            if not worker.send((work.number, tasks)):
                self._roster.selector.register(worker.tasks_fd, selectors.EVENT_WRITE, worker)
        except BrokenPipeError:
            self._lose(worker)

    def _plant_canaries(self, chunk: Chunk) -> list[tuple]:
        """Choose a known-right and a known-wrong answer to follow the chunk."""
        right = [e for e in self.ready.examples if e.status == Status.CORRECT]
        wrong = [e for e in self.ready.examples if e.status == Status.INCORRECT]
        chosen = [random.choice(kind) for kind in (right, wrong) if kind]
        chunk.canaries = [example.status for example in chosen]
        chunk.held = []
        return [(example.completion, example.reference, None) for example in chosen]

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
        elif (work := self._lost.pop(message.token, None)) is not None:
            self._settle_lost(work, message)

    def _hear_worker(self, worker: Worker) -> None:
        crew = self._roster.crew_of(worker)
        try:
            arrived = worker.receive()
            if arrived is None:
                self._lose(worker)
                return
            for payload in arrived:
                if worker in crew.unlocked:
                    self._admit(worker, payload)
                else:
                    self._take_outcomes(crew, worker, payload)
        except (FrameError, msgspec.MsgspecError):
            self.counts["violations"] += 1
            self._lose(worker)

    def _admit(self, worker: Worker, payload: bytes) -> None:
        self._roster.admit(worker, payload)
        if self._roster.is_complete:
            self._started.set()

    def _take_outcomes(self, crew: Crew, worker: Worker, payload: bytes) -> None:
        work = crew.busy.get(worker)
        message = self._outcomes.decode(payload)
        total = 0 if work is None else len(work.chunk.tasks) + len(work.chunk.canaries)
        if work is None or message.chunk != work.number or message.first != work.done:
            raise FrameError("expected the next results of the current chunk")
        if not 0 < len(message.outcomes) <= total - work.done:
            raise FrameError(f"expected at most {total - work.done} results, got {len(message.outcomes)}")
        if crew.role == "read":
            self._pass_on(work, message.outcomes)
        else:
            self._conclude(work, [self._verdict.decode(outcome) for outcome in message.outcomes])
        work.done += len(message.outcomes)
        work.deadline = self._deadline()
        self._roster.note_success()
        crew.ages[worker] += len(message.outcomes)
        if work.done == total:
            self._finish(crew, work)

    def _pass_on(self, work: Assignment, outcomes: list[msgspec.Raw]) -> None:
        """Give what a reader read to the judges. A reader's failure can be any failure, and nothing else."""
        chunk = work.chunk
        decided: list[tuple[int, Verdict]] = []
        passed: list[int] = []
        tasks: list[tuple] = []
        for position, outcome in enumerate(outcomes, start=work.done):
            read = self._read.decode(outcome)
            if isinstance(read, Failure):
                verdict = self._made(Status(read.status), read.method, read.detail, read.duration_s)
                decided.append((chunk.indices[position], verdict))
            else:
                passed.append(chunk.indices[position])
                _, reference, question = chunk.tasks[position]
                tasks.append((outcome, reference, question))
        self._deliver(chunk.job, decided)
        if passed:
            self._crews[1].waiting.append(Chunk(chunk.job, passed, tasks))

    def _conclude(self, work: Assignment, verdicts: list[Verdict]) -> None:
        chunk = work.chunk
        if chunk.canaries:
            chunk.held += verdicts
        else:
            self._deliver(chunk.job, list(zip(chunk.indices[work.done :], verdicts, strict=False)))

    def _finish(self, crew: Crew, work: Assignment) -> None:
        """A chunk is done: believe it or not, then keep the worker or part with it."""
        chunk, worker = work.chunk, work.worker
        del crew.busy[worker]
        is_sound = not chunk.canaries or self._judge_canaries(crew, chunk)
        if not is_sound or crew.ages[worker] >= crew.answers_per_life:
            self._roster.part(worker)
        else:
            crew.idle.append(worker)

    def _judge_canaries(self, crew: Crew, chunk: Chunk) -> bool:
        """Deliver a chunk if its known answers came out right, else do it again one by one; say which it was."""
        said = [verdict.status for verdict in chunk.held[chunk.num_items :]]
        if said == chunk.canaries:
            self._deliver(chunk.job, list(zip(chunk.indices, chunk.held, strict=False)))
            return True
        self.counts["canaries"] += 1
        if chunk.num_items > 1:
            crew.waiting.extendleft(chunk.part([k], chunk.attempt) for k in range(chunk.num_items))
            return False
        detail = f"after this answer, known answers got {', '.join(said)} for {', '.join(chunk.canaries)}"
        self._deliver(chunk.job, [(chunk.indices[0], self._made(Status.ERROR, "canary", detail, 0.0))])
        return False

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for crew in self._crews:
            for worker, limit in list(crew.unlocked.items()):
                if now > limit:
                    self._lose(worker)
            for work in [work for work in crew.busy.values() if now > work.deadline]:
                self._hear_worker(work.worker)  # results may have come while this thread could not run
                if work.worker in crew.busy and now > work.deadline:
                    self._expire(work)

    def _expire(self, work: Assignment) -> None:
        """Kill a worker at its deadline; the task it was at is over budget, the others are done again."""
        chunk, culprit = work.chunk, work.worker.count_begun() - 1
        self._roster.part(work.worker)
        self.counts["kills"] += 1
        if not work.done <= culprit < chunk.num_items:
            self._redo(work, None)
            return
        detail = f"not done within {self._time_limit_s:g} s"
        verdict = self._made(Status.OVER_BUDGET, "deadline", detail, self._time_limit_s)
        self._redo(work, culprit)
        self._deliver(chunk.job, [(chunk.indices[culprit], verdict)])

    def _lose(self, worker: Worker) -> None:
        """A worker died or broke the protocol: what becomes of its work is settled when its exit code is known."""
        work = self._roster.crew_of(worker).busy.get(worker)
        if work is not None:
            worker.count_begun()
            self._lost[worker.token] = work
        self._roster.part(worker)

    def _settle_lost(self, work: Assignment, gone: Gone) -> None:
        chunk, culprit = work.chunk, work.worker.tasks_begun - 1
        self.counts["crashes"] += 1
        if not work.done <= culprit < chunk.num_items:
            self._redo(work, None)
            return
        self._redo(work, culprit)
        if chunk.attempt == 0:
            work.crew.waiting.appendleft(chunk.part([culprit], attempt=1))
            return
        status, method, detail = _cause(gone.exit_code)
        self._deliver(chunk.job, [(chunk.indices[culprit], self._made(status, method, detail, 0.0))])

    def _redo(self, work: Assignment, culprit: int | None) -> None:
        """Put back what a lost worker had not answered; work that keeps getting lost is the grader's failure."""
        crew, chunk = work.crew, work.chunk
        first = 0 if chunk.canaries else work.done
        rest = [k for k in range(first, chunk.num_items) if k != culprit]
        if not rest:
            return
        attempt = chunk.attempt if culprit is not None else chunk.attempt + 1
        if attempt < MAX_ATTEMPTS:
            crew.waiting.appendleft(chunk.part(rest, attempt))
            return
        verdict = self._made(Status.ERROR, "crash", f"lost with its worker {MAX_ATTEMPTS} times", 0.0)
        self._deliver(chunk.job, [(chunk.indices[k], verdict) for k in rest])

    def _replace_zygote(self) -> None:
        """The zygote died and took its workers along: give their work to the next one's."""
        lost = [*self._lost.values(), *(work for crew in self._crews for work in crew.busy.values())]
        self._lost.clear()
        for work in lost:  # first of all, so that no job is forgotten if this fails
            self._redo(work, None)
        self._roster.replace_zygote()

    def _deliver(self, job: Job, decided: list[tuple[int, Verdict]]) -> None:
        if decided and not job.cancelled:
            self.counts.update(verdict.status.value for _, verdict in decided)
            job.deliver(decided)

    def _made(self, status: Status, method: str, detail: str, duration_s: float) -> Verdict:
        return Verdict(status, None, self.ready.name, method, detail, duration_s)

    def _deadline(self) -> float:
        return time.monotonic() + self._time_limit_s + SLACK_S

    def _patience(self) -> float | None:
        """Seconds until the next deadline, or None."""
        moments = [work.deadline for crew in self._crews for work in crew.busy.values()]
        moments += [limit for crew in self._crews for limit in crew.unlocked.values()]
        return max(0.0, min(moments) - time.monotonic() + 1e-4) if moments else None


def _cause(exit_code: int) -> tuple[Status, str, str]:
    """Say what a worker's end means for the completion that it was at."""
    if exit_code == -signal.SIGXCPU:
        return Status.OVER_BUDGET, "deadline", "used up its processor time"
    if exit_code == -signal.SIGSYS:
        return Status.ERROR, "violation", "the worker made a forbidden system call and was killed"
    if exit_code < 0:
        return Status.ERROR, "crash", f"the worker died twice, of {signal.Signals(-exit_code).name}"
    return Status.ERROR, "crash", f"the worker left twice, with exit code {exit_code}"
