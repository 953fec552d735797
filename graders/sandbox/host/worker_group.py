"""The workers of one role and the chunks of work that wait for them: bookkeeping only."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from graders.sandbox.host.process_handles import Worker
from graders.sandbox.protocol import Role
from graders.verdict import Verdict

Item = tuple[str, str, str | None]
"""(completion, reference, question)"""

STARVED_SHARE = 0.6
"""Of its time limit: a worker that waited for a processor for longer is given that time back."""
MAX_WAITS = 8
"""For how many time limits, at most, a worker may wait for a processor before it is given up."""
MAX_CHUNK_ITEMS = 64
MAX_CHUNK_CHARS = 1 << 20


@dataclass(eq=False)
class Job:
    """One call's items. `deliver` gets (index, verdict) pairs as they are decided, `fail` at most one exception."""

    items: Sequence[Item]
    deliver: Callable[[list[tuple[int, Verdict]]], None]
    fail: Callable[[Exception], None]
    decided: dict[int, Verdict] = field(default_factory=dict)
    """Verdicts, by index, that need no work."""
    taken: int = 0
    cancelled: bool = False

    @property
    def remaining(self) -> int:
        return 0 if self.cancelled else len(self.items) - self.taken


@dataclass(eq=False)
class Chunk:
    """Tasks that one worker does one after the other; task k belongs to item `indices[k]` of the job.

    The last `len(canaries)` tasks are known answers, there to catch a worker that no longer tells right from wrong.
    """

    job: Job
    indices: list[int]
    tasks: list[tuple]
    attempt: int = 0
    spent_s: float = 0.0
    """Seconds of their time limit that tasks have used up in an earlier stage, at most."""
    canaries: list[str] = field(default_factory=list)
    held: list[Verdict] = field(default_factory=list)
    """Verdicts not delivered before the canaries have spoken."""

    def part(self, positions: Sequence[int], attempt: int) -> "Chunk":
        """Give the tasks at these positions as a chunk of their own, without canaries."""
        indices, tasks = [self.indices[k] for k in positions], [self.tasks[k] for k in positions]
        return Chunk(self.job, indices, tasks, attempt, self.spent_s)

    @property
    def num_items(self) -> int:
        return len(self.indices)


@dataclass(eq=False)
class Assignment:
    """A worker at work: its chunk, how far it is, and when to lose patience."""

    crew: "Crew"
    worker: Worker
    chunk: Chunk
    number: int
    due: float
    """When the current task must be done, if its worker always had a processor to run on."""
    deadline: float
    """The same, put off by what it had to wait for one."""
    waited_s: float
    """What its worker had waited in all when the current task began."""
    done: int = 0
    has_broken_rules: bool = False
    """Its worker sent what no worker may send."""

    def begin_task(self, due: float) -> None:
        """The next task begins."""
        self.due = self.deadline = due
        self.waited_s = self.worker.waited_s()

    def put_off(self, now: float, limit_s: float) -> bool:
        """Put the deadline off by what the worker has waited for a processor since the task began, if that is much.

        Returns whether it has waited for longer than is granted, and has hardly run (note G8).
        """
        waited_s = self.worker.waited_s() - self.waited_s
        if waited_s >= STARVED_SHARE * limit_s:
            self.deadline = self.due + min(waited_s, MAX_WAITS * limit_s)
        ran_s = now - (self.due - limit_s) - waited_s
        return waited_s > MAX_WAITS * limit_s and ran_s < (1 - STARVED_SHARE) * limit_s


@dataclass(eq=False)
class Crew:
    """The workers of one role. Spares stand by, so that a lost worker is replaced at once."""

    role: Role
    num_busy: int
    num_spares: int
    chunk_items: int
    answers_per_life: int
    waiting: deque[Chunk] = field(default_factory=deque)
    idle: deque[Worker] = field(default_factory=deque)
    busy: dict[Worker, Assignment] = field(default_factory=dict)
    unborn: dict[int, float] = field(default_factory=dict)
    """Ordered from the zygote, by token, and the time by which they must be born."""
    unlocked: dict[Worker, float] = field(default_factory=dict)
    """Born but not yet locked down, and the time by which they must be."""
    ages: dict[Worker, int] = field(default_factory=dict)
    """Answers given in a worker's life."""

    @property
    def missing(self) -> int:
        """How many workers to ask for."""
        alive = len(self.idle) + len(self.busy) + len(self.unborn) + len(self.unlocked)
        return self.num_busy + self.num_spares - alive

    @property
    def can_work(self) -> bool:
        return bool(self.idle) and len(self.busy) < self.num_busy

    def forget(self, worker: Worker) -> Assignment | None:
        """Strike a worker from the lists and give what it was at."""
        self.unlocked.pop(worker, None)
        self.ages.pop(worker, None)
        if worker in self.idle:
            self.idle.remove(worker)
        return self.busy.pop(worker, None)


def draw_chunk(job: Job, crew: Crew) -> Chunk:
    """Take the next items of a job: few enough that every worker of the crew gets a share, and not too many bytes."""
    share = -(-job.remaining // crew.num_busy)
    limit = job.taken + max(1, min(crew.chunk_items, share))
    first, chars = job.taken, 0
    while job.taken < limit:
        chars += sum(len(text) for text in job.items[job.taken] if text)
        if chars > MAX_CHUNK_CHARS and job.taken > first:
            break
        job.taken += 1
    indices = [index for index in range(first, job.taken) if index not in job.decided]
    return Chunk(job, indices, [job.items[index] for index in indices])
