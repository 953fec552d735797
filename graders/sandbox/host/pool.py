"""`GraderPool`: many completions in, as many verdicts out, from processes that can be killed."""

import atexit
import contextlib
import errno
import os
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from graders.errors import BadInput, GraderError, SandboxUnavailable
from graders.grader import absolute_spec, origin_of, resolve
from graders.sandbox.diagnostics import shortage
from graders.sandbox.host.check_items import checked_item, with_shown
from graders.sandbox.host.process_handles import Zygote
from graders.sandbox.host.scheduler import Dispatcher
from graders.sandbox.host.worker_group import MAX_CHUNK_CHARS, MAX_CHUNK_ITEMS, Crew, Item, Job
from graders.sandbox.protocol import Layer, Setup
from graders.verdict import Status, Verdict

ANSWERS_PER_LIFE = 16384
"""Answers that a worker of a shipped grader gives before it is replaced by a fresh one."""
START_LIMIT_S = 60.0
MAX_WORKERS = 256


class GraderPool:
    """Grades in a pool of killable worker processes; usable from any thread, started at first use or by `with`.

    Args:
        grader: a specification, see `graders.grader`.
        num_workers: processes at work at any moment, per stage; 1 to 256.
        time_limit_s: for one answer, from the start of execution, never from queueing; above 0.
        memory_limit_bytes: address space of one worker, interpreter included (about 100 MB).
        lockdown: False leaves only the process boundary and resource limits: for measuring, not for untrusted text.
        require: names of isolation layers without which the pool refuses to start, beside the grader's own
            `requires`; None means `seccomp` for graders that are not shipped with this package, and none for those.

    Raises:
        BadInput: a bad argument.
        UnknownGrader, BadGrader, SandboxUnavailable: at the start of the pool.
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
        self._dispatcher: Dispatcher | None = None
        self._shown: Any = None
        self._pid = os.getpid()
        _living.add(self)

    def __enter__(self) -> Self:
        self._running()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers; whatever is unfinished fails. A closed pool starts anew when it is used again."""
        with self._lock:
            dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None and self._pid == os.getpid():
            dispatcher.close()

    def grade(self, items: Iterable[Sequence[str | None]]) -> list[Verdict]:
        """Give the verdicts on (completion, reference) or (completion, reference, question) items, in their order.

        Raises:
            BadInput: an item of another shape; names the first.
            GraderError: the pool cannot start, or was closed meanwhile.
        """
        return self._undelivered(self._submit(items)[0]).result()

    def submit(self, items: Iterable[Sequence[str | None]]) -> "Future[list[Verdict]]":
        """Start grading and give a future of what `grade` returns, so that other work can go on meanwhile."""
        return self._submit(items)[0]

    def _submit(self, items: Iterable[Sequence[str | None]]) -> "tuple[Future[list[Verdict]], Job | None]":
        checked = [checked_item(item, number) for number, item in enumerate(items)]
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

    def _undelivered(self, future: "Future[list[Verdict]]") -> "Future[list[Verdict]]":
        """Refuse to wait for verdicts in the thread that would have to deliver them."""
        dispatcher = self._dispatcher
        if dispatcher is not None and dispatcher.is_this_thread and not future.done():
            raise GraderError(
                "grader pool: expected grade or stream outside a callback of this pool, which would wait for itself; "
                "use submit there"
            )
        return future

    def stream(self, items: Iterable[Sequence[str | None]]) -> Iterator[tuple[int, Verdict]]:
        """Give (index, verdict) pairs as they are decided; leaving the loop early drops what is undecided."""
        checked = [checked_item(item, number) for number, item in enumerate(items)]
        self._undelivered(Future())
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
        """`grade` for asyncio: the event loop stays free, and what is undecided when it is cancelled is dropped."""
        import asyncio  # slow to import, and not needed by the command line

        future, job = await asyncio.to_thread(self._submit, items)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if job is not None:
                job.cancelled = True

    async def stream_async(self, items: Iterable[Sequence[str | None]]) -> AsyncIterator[tuple[int, Verdict]]:
        """`stream` for asyncio."""
        import asyncio

        checked = [checked_item(item, number) for number, item in enumerate(items)]
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[list[tuple[int, Verdict]] | Exception] = asyncio.Queue()

        def put(batch: list[tuple[int, Verdict]] | Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
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
        """The grader's own name."""
        return self._running().ready.name

    @property
    def layers(self) -> list[Layer]:
        """The isolation layers of the zygote and of the youngest worker, as observed there."""
        return self._running().layers

    @property
    def counts(self) -> dict[str, int]:
        """Verdicts by status since the start, and `forks`, `kills`, `delays`, `crashes`, `violations`, `canaries`."""
        return dict(self._running().counts)

    def _start(self, items: list[Item], deliver: Any, fail: Any) -> Job:
        """Submit a job; items too large to look at are decided at once."""
        dispatcher = self._running()
        name, decided = dispatcher.ready.name, {}
        if self._shown is not None:
            items, decided = with_shown(items, self._shown, name)
        for k, item in enumerate(items):
            if sum(len(text) for text in item if text) > MAX_CHUNK_CHARS:
                detail = f"more than {MAX_CHUNK_CHARS} characters"
                decided[k] = Verdict(Status.OVER_BUDGET, None, name, "size", detail, 0.0)
        job = Job(items, deliver, fail, decided)
        dispatcher.submit(job)
        return job

    def _running(self) -> Dispatcher:
        with self._lock:
            if self._pid != os.getpid():
                self._leave_to_parent()
            if self._dispatcher is None or self._dispatcher.has_failed:
                self._dispatcher = self._open()
            return self._dispatcher

    def _leave_to_parent(self) -> None:
        """After a fork, the processes belong to the parent; this copy starts its own."""
        if self._dispatcher is not None:
            self._dispatcher.abandon()
        self._dispatcher, self._pid = None, os.getpid()

    def _open(self) -> Dispatcher:
        zygote = Zygote(self._setup)
        ready = zygote.ready
        if ready.shows:
            self._shown = getattr(resolve(self._setup.spec), "shown", None)
        workers, batch = self._num_workers, ready.answers_per_process
        first_role = "read" if ready.split else "grade"
        if batch:
            crews = [Crew(first_role, workers, num_spares=workers, chunk_items=batch, answers_per_life=1)]
        else:
            crews = [Crew(first_role, workers, 1, MAX_CHUNK_ITEMS, ANSWERS_PER_LIFE)]
        if ready.split:
            crews.append(Crew("judge", workers, 1, MAX_CHUNK_ITEMS, ANSWERS_PER_LIFE))
        require = self._require
        if require is None:
            require = frozenset() if ready.trusted or not self._setup.lockdown else frozenset({"seccomp"})
        try:
            dispatcher = Dispatcher(self._setup, zygote, crews, require)
        except (OSError, RuntimeError) as error:  # no more files, or no more threads
            zygote.close()
            why = shortage(error if isinstance(error, OSError) else OSError(errno.EAGAIN, str(error)))
            raise SandboxUnavailable(f"grader pool: expected a thread and its files to be had: {why}") from error
        try:
            dispatcher.await_workers(START_LIMIT_S)
        except GraderError:
            dispatcher.close()
            raise
        return dispatcher


_living: "weakref.WeakSet[GraderPool]" = weakref.WeakSet()
_default_pools: dict[str, GraderPool] = {}
_default_lock = threading.Lock()


def grade(completion: str, reference: str, *, grader: str = "math", question: str | None = None) -> Verdict:
    """Grade one completion in the sandbox; the pool behind it is started at the first call and kept.

    Raises:
        GraderError: as for `GraderPool`.
    """
    with _default_lock:
        pool = _default_pools.setdefault(grader, GraderPool(grader, num_workers=1))
    return pool.grade([(completion, reference, question)])[0]


def _close_default_pools() -> None:
    for pool in _default_pools.values():
        pool.close()


def _renew_locks() -> None:
    """In a forked child: a lock may have been held by a thread that does not exist here."""
    global _default_lock
    _default_lock = threading.Lock()
    for pool in list(_living):
        pool._lock = threading.Lock()


atexit.register(_close_default_pools)
os.register_at_fork(after_in_child=_renew_locks)
