"""GraderPool: grades completions in killable worker processes, synchronously or asynchronously."""

import atexit
import contextlib
import errno
import os
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Self

from graders.errors import BadInput, GraderError, SandboxUnavailable
from graders.grader import absolute_spec, origin_of, resolve
from graders.sandbox.diagnostics import explain_os_error
from graders.sandbox.host.items import Item, apply_shown, validate_item
from graders.sandbox.host.process_handles import ZygoteHandle
from graders.sandbox.host.scheduler import Scheduler
from graders.sandbox.host.supervisor import WorkerGroup
from graders.sandbox.host.task_queue import MAX_CHUNK_CHARS, Job
from graders.sandbox.protocol import Layer, Setup
from graders.verdict import Status, Verdict

ANSWERS_PER_WORKER = 16384
"""Answers after which a worker that may be kept is replaced."""
START_LIMIT_S = 60.0
"""Time in which the first workers must be ready."""
MAX_WORKERS = 256


class GraderPool:
    """Grades in a pool of killable worker processes. Usable from any thread; started by `with` or at first use.

    Args:
        grader: a specification, see `graders.grader`.
        num_workers: processes that grade at once, per stage; 1 to 256.
        time_limit_s: limit per answer, measured from the start of execution, without queueing; above 0.
        memory_limit_bytes: address space of one worker, interpreter included (about 100 MB).
        lockdown: False leaves only the process boundary and resource limits: for measurements, not for untrusted text.
        require: names of isolation layers without which the pool does not start, in addition to the grader's
            `requires`; None means `seccomp` for third-party graders, and none for those of this package.

    Raises:
        BadInput: an argument is out of range.
        UnknownGrader, BadGrader, SandboxUnavailable: raised when the pool starts.
    """

    def __init__(
        self,
        grader: str = "math",
        num_workers: int = 2,
        time_limit_s: float = 2.0,
        memory_limit_bytes: int = 1 << 30,
        *,
        lockdown: bool = True,
        require: Sequence[str] | None = None,
    ) -> None:
        if not 1 <= num_workers <= MAX_WORKERS or not 0 < time_limit_s < 1e6 or memory_limit_bytes < 1 << 26:
            raise BadInput(
                f"grader pool: expected num_workers from 1 to {MAX_WORKERS}, time_limit_s > 0 and memory_limit_bytes "
                f">= 64 MiB, got {num_workers}, {time_limit_s} and {memory_limit_bytes}"
            )
        self._setup = Setup(absolute_spec(grader), origin_of(grader), memory_limit_bytes, time_limit_s, lockdown)
        self._num_workers = num_workers
        self._require = None if require is None else frozenset(require)
        self._lock = threading.Lock()
        self._scheduler: Scheduler | None = None
        self._shown: Any = None
        self._pid = os.getpid()
        _pools.add(self)

    def __enter__(self) -> Self:
        self._ensure_started()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers and fail unfinished work. A closed pool starts again when it is used."""
        with self._lock:
            scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None and self._pid == os.getpid():
            scheduler.close()

    def grade(self, items: Iterable[Sequence[str | None]]) -> list[Verdict]:
        """Return the verdicts on (completion, reference) or (completion, reference, question) items, in their order.

        Raises:
            BadInput: an item has another shape; the message contains the number of the first.
            GraderError: the pool cannot start, or was closed while grading.
        """
        return self._check_thread(self._submit(items)[0]).result()

    def submit(self, items: Iterable[Sequence[str | None]]) -> "Future[list[Verdict]]":
        """Start grading in the background and return a future of the result of `grade`."""
        return self._submit(items)[0]

    def _submit(self, items: Iterable[Sequence[str | None]]) -> "tuple[Future[list[Verdict]], Job | None]":
        checked = [validate_item(item, number) for number, item in enumerate(items)]
        verdicts: list[Any] = [None] * len(checked)
        future: Future[list[Verdict]] = Future()
        future.set_running_or_notify_cancel()
        missing = len(checked)

        def deliver(decided: list[tuple[int, Verdict]]) -> None:
            nonlocal missing
            for index, verdict in decided:
                verdicts[index] = verdict
            missing -= len(decided)
            if missing == 0:
                future.set_result(verdicts)

        if checked:
            return future, self._start(checked, deliver, future.set_exception)
        future.set_result([])
        return future, None

    def _check_thread(self, future: "Future[list[Verdict]]") -> "Future[list[Verdict]]":
        """Return the future; raise GraderError if this is the thread that must deliver its result."""
        scheduler = self._scheduler
        if scheduler is not None and scheduler.is_this_thread and not future.done():
            raise GraderError(
                "grader pool: expected grade or stream outside a callback of this pool, which would wait for itself; "
                "use submit there"
            )
        return future

    def stream(self, items: Iterable[Sequence[str | None]]) -> Iterator[tuple[int, Verdict]]:
        """Yield (index, verdict) pairs as they are decided; leaving the loop early cancels the rest."""
        checked = [validate_item(item, number) for number, item in enumerate(items)]
        self._check_thread(Future())
        arrived: queue.SimpleQueue[list[tuple[int, Verdict]] | Exception] = queue.SimpleQueue()
        job = self._start(checked, arrived.put, arrived.put)
        missing = len(checked)
        try:
            while missing:
                batch = arrived.get()
                if isinstance(batch, Exception):
                    raise batch
                missing -= len(batch)
                yield from batch
        finally:
            job.cancelled = True

    async def grade_async(self, items: Iterable[Sequence[str | None]]) -> list[Verdict]:
        """Grade without blocking the event loop; cancelling the task cancels the undecided items."""
        import asyncio  # slow to import, and not needed by the command line

        future, job = await asyncio.to_thread(self._submit, items)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if job is not None:
                job.cancelled = True

    async def stream_async(self, items: Iterable[Sequence[str | None]]) -> AsyncIterator[tuple[int, Verdict]]:
        """Yield (index, verdict) pairs as `stream` does, without blocking the event loop."""
        import asyncio

        checked = [validate_item(item, number) for number, item in enumerate(items)]
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[list[tuple[int, Verdict]] | Exception] = asyncio.Queue()

        def put(batch: list[tuple[int, Verdict]] | Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(arrived.put_nowait, batch)

        job = await asyncio.to_thread(self._start, checked, put, put)
        missing = len(checked)
        try:
            while missing:
                batch = await arrived.get()
                if isinstance(batch, Exception):
                    raise batch
                missing -= len(batch)
                for pair in batch:
                    yield pair
        finally:
            job.cancelled = True

    @property
    def name(self) -> str:
        """The name of the grader."""
        return self._ensure_started().ready.name

    @property
    def layers(self) -> list[Layer]:
        """The isolation layers of the zygote and of the most recently started worker, as observed there."""
        return self._ensure_started().layers

    @property
    def counts(self) -> dict[str, int]:
        """The number of verdicts by status, and of events, since the start.

        Events are `forks`, `kills`, `delays`, `crashes`, `violations`, `canaries`, `late_imports`, `zygote_restarts`.
        """
        return dict(self._ensure_started().counts)

    def _start(self, items: list[Item], deliver: Any, fail: Any) -> Job:
        """Submit a job; items that are too large get their verdict here."""
        scheduler = self._ensure_started()
        name, decided = scheduler.ready.name, {}
        if self._shown is not None:
            items, decided = apply_shown(items, self._shown, name)
        for k, item in enumerate(items):
            if sum(len(text) for text in item if text) > MAX_CHUNK_CHARS:
                detail = f"more than {MAX_CHUNK_CHARS} characters"
                decided[k] = Verdict(Status.OVER_BUDGET, None, name, "size", detail, 0.0)
        job = Job(items, deliver, fail, decided)
        scheduler.submit(job)
        return job

    def _ensure_started(self) -> Scheduler:
        with self._lock:
            if self._pid != os.getpid():
                self._abandon_after_fork()
            if self._scheduler is None or self._scheduler.has_failed:
                self._scheduler = self._start_scheduler()
            return self._scheduler

    def _abandon_after_fork(self) -> None:
        """Release the processes, which belong to the parent; this forked copy starts its own."""
        if self._scheduler is not None:
            self._scheduler.abandon()
        self._scheduler, self._pid = None, os.getpid()

    def _start_scheduler(self) -> Scheduler:
        zygote = ZygoteHandle(self._setup)
        ready = zygote.ready
        if ready.has_shown:
            self._shown = getattr(resolve(self._setup.spec), "shown", None)
        workers = self._num_workers
        first_role = "read" if ready.split else "grade"
        if ready.answers_per_process:  # a process grades one chunk; its replacement is ready by then
            groups = [WorkerGroup(first_role, workers, num_spares=workers, answers_per_worker=1)]
        else:
            groups = [WorkerGroup(first_role, workers, num_spares=1, answers_per_worker=ANSWERS_PER_WORKER)]
        if ready.split:
            groups.append(WorkerGroup("judge", workers, num_spares=1, answers_per_worker=ANSWERS_PER_WORKER))
        require = self._require
        if require is None:
            require = frozenset() if ready.trusted or not self._setup.lockdown else frozenset({"seccomp"})
        try:
            scheduler = Scheduler(self._setup, zygote, groups, require)
        except (OSError, RuntimeError) as error:  # too many open files, or too many threads
            zygote.close()
            reason = explain_os_error(error if isinstance(error, OSError) else OSError(errno.EAGAIN, str(error)))
            raise SandboxUnavailable(
                f"grader pool: expected to start a thread and to open its files: {reason}"
            ) from error
        try:
            scheduler.await_workers(START_LIMIT_S)
        except GraderError:
            scheduler.close()
            raise
        return scheduler


_pools: "weakref.WeakSet[GraderPool]" = weakref.WeakSet()
_default_pools: dict[str, GraderPool] = {}
_default_lock = threading.Lock()


def grade(completion: str, reference: str, *, grader: str = "math", question: str | None = None) -> Verdict:
    """Grade one completion in the sandbox. The first call starts a pool, which later calls reuse.

    Raises:
        GraderError: the same errors as `GraderPool`.
    """
    with _default_lock:
        pool = _default_pools.setdefault(grader, GraderPool(grader, num_workers=1))
    return pool.grade([(completion, reference, question)])[0]


def _close_default_pools() -> None:
    for pool in _default_pools.values():
        pool.close()


def _replace_locks() -> None:
    """Replace all locks in a forked child: a thread that does not exist here may have held one."""
    global _default_lock
    _default_lock = threading.Lock()
    for pool in list(_pools):
        pool._lock = threading.Lock()


atexit.register(_close_default_pools)
os.register_at_fork(after_in_child=_replace_locks)
