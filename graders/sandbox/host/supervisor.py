"""Who works here: hires workers from the zygote, admits them when they are locked, and buries them."""

import contextlib
import itertools
import selectors
import time
from collections import Counter

import msgspec

from graders.errors import SandboxUnavailable
from graders.sandbox.host.process_handles import Worker, Zygote
from graders.sandbox.host.worker_group import Crew
from graders.sandbox.protocol import Born, End, Fork, Layer, Learn, Locked, Setup, Stillborn, Unfit

BIRTH_LIMIT_S = 10.0
MAX_UNBORN = 16
"""Of a crew at a time: so that neither end of the control socket ever waits for the other with its buffer full."""
MAX_BAD_BIRTHS = 4
"""Deaths in a row, of newborn workers or of zygotes, after which the sandbox is given up."""
UNKNOWN = "run graders doctor"
"""What is said of a death whose reason nobody knows."""


class Roster:
    """Every worker of one grader, by token; only the dispatcher's thread may use it.

    Args:
        setup: what each zygote is told.
        zygote: the first one.
        crews: whom to hire for.
        require: names of the layers without which nobody is admitted.
        counts: where `forks` and `zygote_restarts` are counted.
    """

    def __init__(
        self, setup: Setup, zygote: Zygote, crews: list[Crew], require: frozenset[str], counts: Counter[str]
    ) -> None:
        self._setup = setup
        self._zygote = zygote
        self._crews = crews
        self._require = require | frozenset(zygote.ready.requires)
        self._counts = counts
        self._by_token: dict[int, tuple[Crew, Worker]] = {}
        self._tokens = itertools.count()
        self._bad_births = 0
        self._first_fresh = 0
        """Token of the first worker that knows every module that the zygote was taught."""
        self.selector = selectors.DefaultSelector()
        self.selector.register(zygote, selectors.EVENT_READ, zygote)
        self.layers: list[Layer] = []
        """What the youngest worker shows to be in force, and its zygote."""

    def __contains__(self, worker: Worker) -> bool:
        return worker.token in self._by_token

    def crew_of(self, worker: Worker) -> Crew:
        return self._by_token[worker.token][0]

    @property
    def is_complete(self) -> bool:
        """Whether every crew has a worker that may begin."""
        return all(crew.ages for crew in self._crews)

    def hire(self) -> None:
        """Order as many workers as are missing."""
        for crew in self._crews:
            for _ in range(min(crew.missing, MAX_UNBORN - len(crew.unborn))):
                token = next(self._tokens)
                crew.unborn[token] = time.monotonic() + BIRTH_LIMIT_S
                self._zygote.order(Fork(token, crew.role))
                self._counts["forks"] += 1

    def welcome(self, born: Born, fds: list[int]) -> None:
        """Take in a worker that has just been forked and is locking itself down."""
        worker = Worker(born.token, born.pid, fds)
        crew = next(crew for crew in self._crews if born.token in crew.unborn)
        del crew.unborn[born.token]
        crew.unlocked[worker] = time.monotonic() + BIRTH_LIMIT_S
        self._by_token[born.token] = (crew, worker)
        self.selector.register(worker.results_fd, selectors.EVENT_READ, worker)

    def mourn(self, stillborn: Stillborn) -> None:
        """Strike off a worker that could not be forked.

        Raises:
            SandboxUnavailable: too many in a row could not.
        """
        for crew in self._crews:
            crew.unborn.pop(stillborn.token, None)
        self._count_bad_birth("its workers to start", stillborn.reason)

    def admit(self, worker: Worker, payload: bytes) -> None:
        """Let a worker begin, on the evidence of its first frame.

        Raises:
            SandboxUnavailable: a required layer is not in force, or too many workers in a row cannot begin.
            MsgspecError: the frame is not what it should be.
        """
        locked = msgspec.msgpack.decode(payload, type=Locked | Unfit)
        if isinstance(locked, Unfit):
            self.part(worker, locked.reason)
            return
        layers = [*self._zygote.ready.layers, *locked.layers]
        worker.watch(locked.pid)
        missing = self._require - {layer.name for layer in layers if layer.state == "active"}
        if missing:
            evidence = ", ".join(f"{layer.name}: {layer.evidence}" for layer in layers if layer.name in missing)
            raise SandboxUnavailable(
                f"grader {self._zygote.ready.name!r}: expected the layers {sorted(self._require)} to be in force, "
                f"got none of {sorted(missing)} ({evidence}); run graders doctor"
            )
        crew = self.crew_of(worker)
        del crew.unlocked[worker]
        if worker.token < self._first_fresh:
            self.part(worker)
            return
        crew.idle.append(worker)
        crew.ages[worker] = 0
        self.layers = layers

    def teach(self, module: str) -> None:
        """Have workers from now on know a module that one was missing, and part with those that do not."""
        self._zygote.order(Learn(module))
        self._first_fresh = next(self._tokens)
        for crew in self._crews:
            for worker in crew.busy:
                crew.ages[worker] = crew.answers_per_life
            for worker in list(crew.idle):
                self.part(worker)
        self._counts["late_imports"] += 1

    def note_success(self) -> None:
        """Work was done: deaths are counted from here."""
        self._bad_births = 0

    def part(self, worker: Worker, reason: str = UNKNOWN) -> None:
        """Have a worker killed, and close its pipes; `reason` is why it cannot begin, and what to do about it.

        Raises:
            SandboxUnavailable: too many in a row have died before they could begin.
        """
        if worker in self.crew_of(worker).unlocked:
            self._count_bad_birth("its workers to start", reason)
        self._bury(worker)
        self._zygote.order(End(worker.token))

    @property
    def is_stalled(self) -> bool:
        """Whether the zygote has left an order undone for too long, as one that hangs or is stopped does."""
        now = time.monotonic()
        return any(now > limit for crew in self._crews for limit in crew.unborn.values())

    def replace_zygote(self) -> None:
        """Bury a dead zygote and all its workers, and start another.

        Raises:
            SandboxUnavailable: it does not start, or too many in a row have died.
        """
        self._counts["zygote_restarts"] += 1
        self._count_bad_birth("its sandbox to live")
        self.selector.unregister(self._zygote)
        self._zygote.close()
        for _, worker in list(self._by_token.values()):
            self._bury(worker)
        for crew in self._crews:
            crew.unborn.clear()
        self._zygote = Zygote(self._setup)
        self.selector.register(self._zygote, selectors.EVENT_READ, self._zygote)

    def close(self) -> None:
        """Kill everyone."""
        self._zygote.close()
        self._close_pipes()

    def abandon(self) -> None:
        """Close this process's copies of every descriptor: for a forked copy of the caller."""
        self._zygote.abandon()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for _, worker in self._by_token.values():
            worker.close()
        self._by_token.clear()
        self.selector.close()

    def _bury(self, worker: Worker) -> None:
        crew, _ = self._by_token.pop(worker.token)
        crew.forget(worker)
        for fd in (worker.results_fd, worker.tasks_fd):
            with contextlib.suppress(KeyError):
                self.selector.unregister(fd)
        worker.close()

    def _count_bad_birth(self, hope: str, reason: str = UNKNOWN) -> None:
        self._bad_births += 1
        if self._bad_births >= MAX_BAD_BIRTHS:
            raise SandboxUnavailable(
                f"grader {self._setup.spec!r}: expected {hope}, but {MAX_BAD_BIRTHS} in a row died: {reason}"
            )
