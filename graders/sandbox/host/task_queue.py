"""What is to be graded and what has become of it: every item is decided exactly once, whatever happens to workers."""

import random
import re
import signal
from collections import Counter, deque

import msgspec

from graders.sandbox.host.worker_group import Assignment, Chunk, Crew, Job, draw_chunk
from graders.sandbox.protocol import MAX_VERDICT_CHARS, Example, Failure, FrameError, Outcomes, Read, Ready
from graders.verdict import Status, Verdict

MAX_ATTEMPTS = 3
"""How often work may be lost with its worker, nobody knowing why, before it is called an error."""
MAX_DURATION_S = 1e6
MAX_LATE_IMPORTS = 64
"""How many modules workers may be taught: each costs all of them their lives, and a bad one might make names up."""

_LATE_IMPORT = re.compile(r"import of ([A-Za-z_][\w.]{0,199}) inside the sandbox")


class Ledger:
    """The books of one grader; only the dispatcher's thread may use it.

    Args:
        crews: the stages that an item passes, one (`grade`) or two (`read`, `judge`).
        ready: what the zygote said of the grader.
        time_limit_s: for the verdict on an item that passed it.
        counts: where verdicts and mishaps are counted.
    """

    def __init__(self, crews: list[Crew], ready: Ready, time_limit_s: float, counts: Counter[str]) -> None:
        self._crews = crews
        self._ready = ready
        self._time_limit_s = time_limit_s
        self._counts = counts
        self._jobs: deque[Job] = deque()
        self._outcomes = msgspec.msgpack.Decoder(Outcomes)
        self._verdict = msgspec.msgpack.Decoder(Verdict)
        self._read = msgspec.msgpack.Decoder(Read | Failure)
        self._taught: set[str] = set()
        self.to_teach: list[str] = []
        """Modules that a worker was missing, for the zygote to import."""
        self._random = random.SystemRandom()

    def add(self, job: Job) -> None:
        """Take in a job, and deliver what is decided already."""
        self._deliver(job, list(job.decided.items()))
        self._jobs.append(job)

    def unfinished(self) -> set[Job]:
        """Every job that is still owed verdicts, if its work is in no worker's hands."""
        undrawn = {job for job in self._jobs if not job.decided.keys() >= {*range(job.taken, len(job.items))}}
        return undrawn | {chunk.job for crew in self._crews for chunk in crew.waiting}

    def next_chunk(self, crew: Crew) -> Chunk | None:
        """Give work for a crew, or None: interrupted work first, then the jobs in turn, so that none starves."""
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

    def tasks_of(self, crew: Crew, chunk: Chunk) -> list[tuple]:
        """Give what a worker is told: a reader nothing of the reference, a stranger's grader canaries at the end."""
        if crew.role == "read":
            return [(completion, None, question) for completion, _, question in chunk.tasks]
        if crew.role == "judge" or self._ready.trusted:
            return chunk.tasks
        canaries = self._choose_canaries()
        chunk.canaries = [example.status for example in canaries]
        chunk.held = []
        return [*chunk.tasks, *((example.completion, example.reference, None) for example in canaries)]

    def enter(self, work: Assignment, payload: bytes) -> bool:
        """Enter the results in a worker's frame, and say whether its chunk is done.

        Raises:
            FrameError: they are not the next results of its chunk.
            MsgspecError: they are not results.
        """
        message = self._outcomes.decode(payload)
        total = len(work.chunk.tasks) + len(work.chunk.canaries)
        if message.chunk != work.number or message.first != work.done:
            raise FrameError("expected the next results of the current chunk")
        if not 0 < len(message.outcomes) <= total - work.done:
            raise FrameError(f"expected at most {total - work.done} results, got {len(message.outcomes)}")
        if work.crew.role == "read":
            self._pass_on(work, [self._read.decode(outcome) for outcome in message.outcomes], message.outcomes)
        else:
            verdicts = [_bounded(self._verdict.decode(outcome)) for outcome in message.outcomes]
            if work.chunk.canaries:
                work.chunk.held += verdicts
            else:
                self._conclude(work, verdicts)
        work.done += len(message.outcomes)
        return work.done == total

    def believe(self, work: Assignment) -> bool:
        """Deliver what was held if the canaries came out right, else have it done again; say which it was."""
        chunk = work.chunk
        said = [verdict.status for verdict in chunk.held[chunk.num_items :]]
        if said == chunk.canaries:
            work.done = 0
            self._conclude(work, chunk.held[: chunk.num_items])
            return True
        if any(self._learns_from(chunk, verdict) for verdict in chunk.held[chunk.num_items :]):
            self.redo(work)
            return False
        self._counts["canaries"] += 1
        if chunk.num_items > 1:
            work.crew.waiting.extendleft(chunk.part([k], chunk.attempt) for k in range(chunk.num_items))
        else:
            failed = next((v for v in chunk.held[chunk.num_items :] if v.status is Status.ERROR), None)
            detail = f"after this answer, known answers got {', '.join(said)} for {', '.join(chunk.canaries)}"
            detail += f": {failed.detail}"[:300] if failed else ""
            self._decide(chunk, 0, Status.ERROR, "canary", detail)
        return False

    def expire(self, work: Assignment, culprit: int, *, is_starved: bool = False) -> None:
        """A worker was killed at its deadline, being at task `culprit`: that one is over budget, or had no chance."""
        self._counts["kills"] += 1
        if not work.done <= culprit < work.chunk.num_items:
            self.redo(work)
            return
        self.redo(work, culprit)
        if is_starved:
            self._decide(work.chunk, culprit, Status.ERROR, "starved", "the machine was too busy to grade it")
            return
        detail = f"not done within {self._time_limit_s:g} s"
        self._decide(work.chunk, culprit, Status.OVER_BUDGET, "deadline", detail, self._time_limit_s)

    def settle_death(self, work: Assignment, culprit: int, exit_code: int) -> None:
        """A worker died at task `culprit`: once may be bad luck; a task that kills twice is to blame."""
        self._counts["crashes"] += 1
        if not work.done <= culprit < work.chunk.num_items:
            self.redo(work)
            return
        self.redo(work, culprit)
        if work.chunk.attempt == 0:
            work.crew.waiting.appendleft(work.chunk.part([culprit], attempt=1))
        else:
            status, method, detail = _cause(exit_code)
            if work.has_broken_rules:
                status, method, detail = Status.ERROR, "violation", "the worker sent what no worker may send"
            ran_a_program = self._ready.runs_programs and work.crew.role == "read"
            did_it_itself = work.has_broken_rules or exit_code != -signal.SIGKILL  # which others send too
            if status is Status.ERROR and ran_a_program and did_it_itself:
                status = Status.INCORRECT  # an error would be a program's way around a wrong answer
            self._decide(work.chunk, culprit, status, method, detail)

    def redo(self, work: Assignment, culprit: int | None = None) -> None:
        """Put back what a lost worker had not answered, but for the culprit, if it is known."""
        chunk = work.chunk
        first = 0 if chunk.canaries else work.done
        rest = [k for k in range(first, chunk.num_items) if k != culprit]
        attempt = chunk.attempt if culprit is not None else chunk.attempt + 1
        if rest and attempt < MAX_ATTEMPTS:
            work.crew.waiting.appendleft(chunk.part(rest, attempt))
            return
        for k in rest:
            self._decide(chunk, k, Status.ERROR, "crash", f"lost with its worker {MAX_ATTEMPTS} times")

    def _conclude(self, work: Assignment, verdicts: list[Verdict]) -> None:
        """Deliver verdicts on the next items of a chunk, but for those that a late import spoilt: they are retried."""
        chunk = work.chunk
        decided: list[tuple[int, Verdict]] = []
        for position, verdict in enumerate(verdicts, start=work.done):
            if self._learns_from(chunk, verdict):
                work.crew.waiting.append(chunk.part([position], chunk.attempt + 1))
            else:
                decided.append((chunk.indices[position], verdict))
        self._deliver(chunk.job, decided)

    def _learns_from(self, chunk: Chunk, outcome: Verdict | Failure) -> bool:
        """Say whether an outcome names a module that workers can be taught, so that its task is worth another try."""
        if outcome.method != "tainted" or outcome.status != Status.ERROR or chunk.attempt + 1 >= MAX_ATTEMPTS:
            return False
        module = module_in(outcome.detail)
        if module is None or (module not in self._taught and len(self._taught) >= MAX_LATE_IMPORTS):
            return False
        if module not in self._taught:
            self._taught.add(module)
            self.to_teach.append(module)
        return True

    def _choose_canaries(self) -> list[Example]:
        """Choose a known-right and a known-wrong answer, as far as the grader has given any."""
        kinds = [
            [example for example in self._ready.examples if example.status == status]
            for status in (Status.CORRECT, Status.INCORRECT)
        ]
        return [self._random.choice(kind) for kind in kinds if kind]

    def _pass_on(self, work: Assignment, reads: list[Read | Failure], encoded: list[bytes]) -> None:
        """Give what a reader read to the judges. A reader's failure can be any failure, and nothing else."""
        chunk = work.chunk
        passed = Chunk(chunk.job, [], [])
        for position, (read, outcome) in enumerate(zip(reads, encoded, strict=True), start=work.done):
            if isinstance(read, Failure) and self._learns_from(chunk, read):
                work.crew.waiting.append(chunk.part([position], chunk.attempt + 1))
            elif isinstance(read, Failure):
                self._decide(chunk, position, Status(read.status), read.method, read.detail, read.duration_s)
            else:
                _, reference, question = chunk.tasks[position]
                passed.indices.append(chunk.indices[position])
                passed.tasks.append((outcome, reference, question))
                passed.spent_s = max(passed.spent_s, read.duration_s)
        if passed.tasks:
            self._crews[1].waiting.append(passed)

    def _decide(
        self, chunk: Chunk, position: int, status: Status, method: str, detail: str, duration_s: float = 0.0
    ) -> None:
        verdict = Verdict(status, None, self._ready.name, method, detail, duration_s)
        self._deliver(chunk.job, [(chunk.indices[position], verdict)])

    def _deliver(self, job: Job, decided: list[tuple[int, Verdict]]) -> None:
        if decided and not job.cancelled:
            self._counts.update(verdict.status.value for _, verdict in decided)
            job.deliver(decided)


def _bounded(verdict: Verdict) -> Verdict:
    """Give a worker's verdict as it is, if it keeps to the bounds that a worker keeps.

    Raises:
        FrameError: it does not.
    """
    size = len(verdict.answer or "") + len(verdict.grader) + len(verdict.method) + len(verdict.detail)
    if size > MAX_VERDICT_CHARS or verdict.duration_s > MAX_DURATION_S:
        raise FrameError(f"expected a verdict of at most {MAX_VERDICT_CHARS} characters, got one of {size}")
    return verdict


def module_in(detail: str) -> str | None:
    """Give the module that a tainted verdict's detail names, or None."""
    found = _LATE_IMPORT.match(detail)
    return found[1] if found else None


def _cause(exit_code: int) -> tuple[Status, str, str]:
    """Say what a worker's end means for the completion that it was at."""
    if exit_code == -signal.SIGXCPU:
        return Status.OVER_BUDGET, "deadline", "used up its processor time"
    if exit_code == -signal.SIGSYS:
        return Status.ERROR, "violation", "the worker made a forbidden system call and was killed"
    if exit_code < 0:
        return Status.ERROR, "crash", f"the worker died twice, of {signal.Signals(-exit_code).name}"
    return Status.ERROR, "crash", f"the worker left twice, with exit code {exit_code}"
