"""Task queue: hands out chunks of items and delivers exactly one verdict per item, even if workers crash."""

import itertools
import random
import re
import signal
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from graders.sandbox.host.items import Item
from graders.sandbox.protocol import MAX_VERDICT_CHARS, Example, Failure, FrameError, Outcomes, Read, Ready, Role
from graders.verdict import Status, Verdict

MAX_CHUNK_ITEMS = 64
MAX_CHUNK_CHARS = 1 << 20
MAX_ATTEMPTS = 3
"""Attempts after which a task is an error if each was lost with its worker for an unknown reason."""
MAX_DURATION_S = 1e6
MAX_LATE_IMPORTS = 64
"""Limit on preloaded modules: each one replaces all workers, and a hostile worker can make up names."""

_LATE_IMPORT = re.compile(r"import of ([A-Za-z_][\w.]{0,199}) inside the sandbox")


@dataclass(eq=False)
class Job:
    """The items of one call. `deliver` receives (index, verdict) pairs, `fail` at most one exception."""

    items: Sequence[Item]
    deliver: Callable[[list[tuple[int, Verdict]]], None]
    fail: Callable[[Exception], None]
    decided: dict[int, Verdict] = field(default_factory=dict)
    """Verdicts, by index, of items that need no worker."""
    num_taken: int = 0
    cancelled: bool = False

    @property
    def num_remaining(self) -> int:
        return 0 if self.cancelled else len(self.items) - self.num_taken


@dataclass(eq=False)
class Chunk:
    """Tasks that one worker does one after another; task k belongs to item `indices[k]` of the job.

    The last `len(canaries)` tasks have known answers: they detect a worker whose verdicts have become wrong.
    """

    job: Job
    role: Role
    indices: list[int]
    tasks: list[tuple]
    attempt: int = 0
    spent_s: float = 0.0
    """The largest share of the time limit that one of the tasks used in an earlier stage."""
    number: int = -1
    """Sent to the worker with the tasks, and returned by it with every result."""
    num_done: int = 0
    canaries: list[str] = field(default_factory=list)
    held: list[Verdict] = field(default_factory=list)
    """Verdicts that are withheld until the canaries have been checked."""

    @property
    def num_items(self) -> int:
        return len(self.indices)

    @property
    def num_tasks(self) -> int:
        return len(self.indices) + len(self.canaries)

    def split_off(self, positions: Sequence[int], attempt: int) -> "Chunk":
        """Return the tasks at these positions as a new chunk without canaries."""
        indices, tasks = [self.indices[k] for k in positions], [self.tasks[k] for k in positions]
        return Chunk(self.job, self.role, indices, tasks, attempt, self.spent_s)


class TaskQueue:
    """The items and chunks of one grader. Only the scheduler's thread may use it.

    Args:
        ready: the zygote's description of the grader.
        num_workers: workers of a stage that may be busy at once.
        time_limit_s: the limit named in verdicts on expired items.
        counts: the counter of verdicts by status, `kills`, `crashes` and `canaries`.
    """

    def __init__(self, ready: Ready, num_workers: int, time_limit_s: float, counts: Counter[str]) -> None:
        self._ready = ready
        self._num_workers = num_workers
        self._time_limit_s = time_limit_s
        self._counts = counts
        self._chunk_items = ready.answers_per_process or MAX_CHUNK_ITEMS
        self._jobs: deque[Job] = deque()
        self._waiting: dict[Role, deque[Chunk]] = {"grade": deque(), "read": deque(), "judge": deque()}
        """Chunks that were interrupted, or passed on by readers."""
        self._numbers = itertools.count()
        self._outcomes_decoder = msgspec.msgpack.Decoder(Outcomes)
        self._verdict_decoder = msgspec.msgpack.Decoder(Verdict)
        self._read_decoder = msgspec.msgpack.Decoder(Read | Failure)
        self._preloaded: set[str] = set()
        self.to_preload: list[str] = []
        """Modules that the zygote must import because a worker tried to."""
        self._random = random.SystemRandom()

    def add(self, job: Job) -> None:
        """Queue a job, and deliver the verdicts that it already has."""
        self._deliver(job, list(job.decided.items()))
        self._jobs.append(job)

    def unfinished(self) -> set[Job]:
        """Return every job with items that have no verdict and are not assigned to a worker."""
        pending = {job for job in self._jobs if not job.decided.keys() >= {*range(job.num_taken, len(job.items))}}
        return pending | {chunk.job for waiting in self._waiting.values() for chunk in waiting}

    def next_chunk(self, role: Role) -> Chunk | None:
        """Return a chunk for a worker, or None: interrupted chunks first, then one of each job by turns."""
        chunk = self._next_waiting(role) or (None if role == "judge" else self._next_of_jobs(role))
        if chunk is not None:
            chunk.number = next(self._numbers)
        return chunk

    def tasks_to_send(self, chunk: Chunk) -> list[tuple]:
        """Return the tasks as the worker receives them.

        A reader never receives the reference. A third-party grader receives canaries after the last task.
        """
        if chunk.role == "read":
            return [(completion, None, question) for completion, _, question in chunk.tasks]
        if chunk.role == "judge" or self._ready.trusted:
            return chunk.tasks
        canaries = self._choose_canaries()
        chunk.canaries = [example.status for example in canaries]
        return [*chunk.tasks, *((example.completion, example.reference, None) for example in canaries)]

    def add_outcomes(self, chunk: Chunk, payload: bytes) -> None:
        """Process the results in a frame of the worker that has this chunk.

        Raises:
            FrameError: they are not the next results of the chunk.
            MsgspecError: they are not results.
        """
        message = self._outcomes_decoder.decode(payload)
        if message.chunk != chunk.number or message.first != chunk.num_done:
            raise FrameError("expected the next results of the current chunk")
        num_left = chunk.num_tasks - chunk.num_done
        if not 0 < len(message.outcomes) <= num_left:
            raise FrameError(f"expected at most {num_left} results, got {len(message.outcomes)}")
        if chunk.role == "read":
            self._pass_on(chunk, [self._read_decoder.decode(outcome) for outcome in message.outcomes], message.outcomes)
        else:
            verdicts = [_check_bounds(self._verdict_decoder.decode(outcome)) for outcome in message.outcomes]
            if chunk.canaries:
                chunk.held += verdicts
            else:
                self._conclude(chunk, verdicts, chunk.num_done)
        chunk.num_done += len(message.outcomes)

    def check_canaries(self, chunk: Chunk) -> bool:
        """Deliver the withheld verdicts of a finished chunk if its canaries are right; otherwise requeue its tasks.

        Returns:
            True if the worker's verdicts can be trusted.
        """
        if not chunk.canaries:
            return True
        verdicts, canary_verdicts = chunk.held[: chunk.num_items], chunk.held[chunk.num_items :]
        statuses = [verdict.status for verdict in canary_verdicts]
        if statuses == chunk.canaries:
            self._conclude(chunk, verdicts, 0)
            return True
        if any(self._needs_preload(chunk, verdict) for verdict in canary_verdicts):
            self.requeue(chunk)
            return False
        self._counts["canaries"] += 1
        if chunk.num_items > 1:
            single = [chunk.split_off([k], chunk.attempt) for k in range(chunk.num_items)]
            self._waiting[chunk.role].extendleft(single)
        else:
            failed = next((v for v in canary_verdicts if v.status is Status.ERROR), None)
            detail = f"after this answer, known answers got {', '.join(statuses)} for {', '.join(chunk.canaries)}"
            detail += f": {failed.detail}"[:300] if failed else ""
            self._decide(chunk, 0, Status.ERROR, "canary", detail)
        return False

    def expire(self, chunk: Chunk, num_begun: int, *, is_starved: bool = False) -> None:
        """Settle a chunk whose worker was killed at a deadline, after it reported to have begun `num_begun` tasks.

        If it is starved, which means that it hardly ran, the verdict on the offending task is an error.
        """
        self._counts["kills"] += 1
        offending = self._requeue_all_but_offending(chunk, num_begun)
        if offending is None:
            return
        if is_starved:
            self._decide(chunk, offending, Status.ERROR, "starved", "the machine was too busy to grade it")
        else:
            detail = f"not done within {self._time_limit_s:g} s"
            self._decide(chunk, offending, Status.OVER_BUDGET, "deadline", detail, self._time_limit_s)

    def settle_exit(self, chunk: Chunk, num_begun: int, exit_code: int, *, is_violation: bool) -> None:
        """Settle a chunk whose worker died, or was killed for a violation of the protocol.

        The offending task is retried alone, because the worker may have been killed from outside. If its worker dies
        again, the exit code or the violation decides its verdict.
        """
        self._counts["crashes"] += 1
        offending = self._requeue_all_but_offending(chunk, num_begun)
        if offending is None:
            return
        if chunk.attempt == 0:
            self._waiting[chunk.role].appendleft(chunk.split_off([offending], attempt=1))
            return
        status, method, detail = _explain_exit(exit_code)
        if is_violation:
            status, method, detail = Status.ERROR, "violation", "the worker sent an invalid message"
        ran_a_program = self._ready.runs_programs and chunk.role == "read"
        is_self_inflicted = is_violation or exit_code != -signal.SIGKILL  # SIGKILL may come from outside
        if status is Status.ERROR and ran_a_program and is_self_inflicted:
            status = Status.INCORRECT  # with an error, a program could avoid the verdict on a wrong answer
        self._decide(chunk, offending, status, method, detail)

    def requeue(self, chunk: Chunk) -> None:
        """Queue the unanswered tasks again, of a chunk whose worker was lost for an unknown reason."""
        self._requeue(chunk, self._unanswered(chunk), chunk.attempt + 1)

    def _requeue(self, chunk: Chunk, positions: list[int], attempt: int) -> None:
        if positions and attempt < MAX_ATTEMPTS:
            self._waiting[chunk.role].appendleft(chunk.split_off(positions, attempt))
            return
        for position in positions:
            self._decide(chunk, position, Status.ERROR, "crash", f"its worker was lost {MAX_ATTEMPTS} times")

    def _requeue_all_but_offending(self, chunk: Chunk, num_begun: int) -> int | None:
        """Queue the unanswered tasks again, except the one that the worker was doing; return its position if known.

        A worker that reports more tasks than it has forged its progress: each of its tasks is then retried alone.
        """
        unanswered, offending = self._unanswered(chunk), num_begun - 1
        if num_begun > chunk.num_tasks:
            if len(unanswered) == 1:
                return unanswered[0]
            self._waiting[chunk.role].extendleft(chunk.split_off([k], chunk.attempt) for k in unanswered)
            return None
        if not chunk.num_done <= offending < chunk.num_items:
            self.requeue(chunk)
            return None
        self._requeue(chunk, [k for k in unanswered if k != offending], chunk.attempt)
        return offending

    def _unanswered(self, chunk: Chunk) -> list[int]:
        """Return the positions of the items without a verdict; with canaries, no verdict counts before the last."""
        return list(range(0 if chunk.canaries else chunk.num_done, chunk.num_items))

    def _next_waiting(self, role: Role) -> Chunk | None:
        waiting = self._waiting[role]
        while waiting:
            chunk = waiting.popleft()
            if not chunk.job.cancelled:
                return chunk
        return None

    def _next_of_jobs(self, role: Role) -> Chunk | None:
        while self._jobs:
            job = self._jobs.popleft()
            if job.num_remaining:
                chunk = self._take_items(job, role)
                if job.num_remaining:
                    self._jobs.append(job)
                if chunk.tasks:
                    return chunk
        return None

    def _take_items(self, job: Job, role: Role) -> Chunk:
        """Take the next items of a job: an equal share for each worker, within the limits on items and characters."""
        share = -(-job.num_remaining // self._num_workers)
        first, chars = job.num_taken, 0
        limit = first + min(self._chunk_items, share)
        while job.num_taken < limit:
            chars += sum(len(text) for text in job.items[job.num_taken] if text)
            if chars > MAX_CHUNK_CHARS and job.num_taken > first:
                break
            job.num_taken += 1
        indices = [index for index in range(first, job.num_taken) if index not in job.decided]
        return Chunk(job, role, indices, [job.items[index] for index in indices])

    def _conclude(self, chunk: Chunk, verdicts: list[Verdict], first: int) -> None:
        """Deliver verdicts on the tasks from position `first` on; retry those that a late import made unreliable."""
        decided: list[tuple[int, Verdict]] = []
        for position, verdict in enumerate(verdicts, start=first):
            if self._needs_preload(chunk, verdict):
                self._waiting[chunk.role].append(chunk.split_off([position], chunk.attempt + 1))
            else:
                decided.append((chunk.indices[position], verdict))
        self._deliver(chunk.job, decided)

    def _needs_preload(self, chunk: Chunk, outcome: Verdict | Failure) -> bool:
        """Return True if an outcome names a late import that can be preloaded, so that its task should be retried."""
        if outcome.method != "tainted" or outcome.status != Status.ERROR or chunk.attempt + 1 >= MAX_ATTEMPTS:
            return False
        module = late_import_in(outcome.detail)
        if module is None or (module not in self._preloaded and len(self._preloaded) >= MAX_LATE_IMPORTS):
            return False
        if module not in self._preloaded:
            self._preloaded.add(module)
            self.to_preload.append(module)
        return True

    def _choose_canaries(self) -> list[Example]:
        """Return a random correct and a random incorrect example of the grader, as far as it has both."""
        by_status = [
            [example for example in self._ready.examples if example.status == status]
            for status in (Status.CORRECT, Status.INCORRECT)
        ]
        return [self._random.choice(examples) for examples in by_status if examples]

    def _pass_on(self, chunk: Chunk, reads: list[Read | Failure], encoded: list[bytes]) -> None:
        """Queue the readings of a reader for the judges. A failure to read becomes the verdict."""
        passed = Chunk(chunk.job, "judge", [], [])
        for position, (read, outcome) in enumerate(zip(reads, encoded, strict=True), start=chunk.num_done):
            if isinstance(read, Failure) and self._needs_preload(chunk, read):
                self._waiting[chunk.role].append(chunk.split_off([position], chunk.attempt + 1))
            elif isinstance(read, Failure):
                self._decide(chunk, position, Status(read.status), read.method, read.detail, read.duration_s)
            else:
                _, reference, question = chunk.tasks[position]
                passed.indices.append(chunk.indices[position])
                passed.tasks.append((outcome, reference, question))
                passed.spent_s = max(passed.spent_s, read.duration_s)
        if passed.tasks:
            self._waiting["judge"].append(passed)

    def _decide(
        self, chunk: Chunk, position: int, status: Status, method: str, detail: str, duration_s: float = 0.0
    ) -> None:
        verdict = Verdict(status, None, self._ready.name, method, detail, duration_s)
        self._deliver(chunk.job, [(chunk.indices[position], verdict)])

    def _deliver(self, job: Job, decided: list[tuple[int, Verdict]]) -> None:
        if decided and not job.cancelled:
            self._counts.update(verdict.status.value for _, verdict in decided)
            job.deliver(decided)


def _check_bounds(verdict: Verdict) -> Verdict:
    """Return a worker's verdict if its texts and its duration are within the bounds that workers enforce.

    Raises:
        FrameError: they are not.
    """
    size = len(verdict.answer or "") + len(verdict.grader) + len(verdict.method) + len(verdict.detail)
    if size > MAX_VERDICT_CHARS or verdict.duration_s > MAX_DURATION_S:
        raise FrameError(f"expected a verdict of at most {MAX_VERDICT_CHARS} characters, got one of {size}")
    return verdict


def late_import_in(detail: str) -> str | None:
    """Return the module that the detail of a late import names, or None."""
    found = _LATE_IMPORT.match(detail)
    return found[1] if found else None


def _explain_exit(exit_code: int) -> tuple[Status, str, str]:
    """Return status, method and detail of the verdict on a task at which a worker exited."""
    if exit_code == -signal.SIGXCPU:
        return Status.OVER_BUDGET, "deadline", "used up its processor time"
    if exit_code == -signal.SIGSYS:
        return Status.ERROR, "violation", "the worker made a forbidden system call and was killed"
    if exit_code < 0:
        return Status.ERROR, "crash", f"the worker died twice of {signal.Signals(-exit_code).name}"
    return Status.ERROR, "crash", f"the worker exited twice with exit code {exit_code}"
