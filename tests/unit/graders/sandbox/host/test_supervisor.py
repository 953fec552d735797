"""Supervisor: the states of a worker, and the reason that is reported when workers do not start."""

import os
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from graders import SandboxUnavailable
from graders.sandbox.host.supervisor import MAX_FAILED_STARTS, Supervisor, Worker, WorkerGroup, WorkerState
from graders.sandbox.protocol import Exited, Kill, Ready, Sandboxed, Setup, Spawn, SpawnFailed, Started, StartFailed

SANDBOXED = msgspec.msgpack.encode(Sandboxed([], 0))


@pytest.fixture
def group() -> WorkerGroup:
    return WorkerGroup("grade", MAX_FAILED_STARTS, 0, answers_per_worker=8)


@pytest.fixture
def sent() -> list[Any]:
    """The messages that the zygote received."""
    return []


@pytest.fixture
def supervisor(group: WorkerGroup, sent: list[Any]) -> Iterator[Supervisor]:
    """A supervisor whose zygote records messages and does nothing else."""
    silent, end = os.pipe()
    ready = Ready("exact", False, False, False, True, 0, [], [], [])
    zygote: Any = SimpleNamespace(fileno=lambda: silent, ready=ready, send=sent.append, close=lambda: None)
    supervisor = Supervisor(Setup("exact", None, 1 << 30, 1.0, True), zygote, [group], frozenset(), Counter())
    supervisor.spawn_missing()
    yield supervisor
    supervisor.close()
    os.close(silent)
    os.close(end)


def start(supervisor: Supervisor, token: int) -> Worker:
    """Return a worker that is STARTING. The other ends of its pipes are closed, as if it were dead."""
    pipes = [os.pipe() for _ in range(3)]
    fds = [pipes[0][1], pipes[1][0], pipes[2][0]]
    for end in {end for pipe in pipes for end in pipe} - {*fds}:
        os.close(end)
    supervisor.started(Started(token, 0), fds)
    return supervisor.selector.get_key(fds[1]).data


def fail_starts(supervisor: Supervisor) -> None:
    """Report one failed start less than are allowed in a row."""
    for token in range(MAX_FAILED_STARTS - 1):
        supervisor.spawn_failed(SpawnFailed(token, "too many files"))


def test_reason_of_the_last_failed_start_is_reported(supervisor: Supervisor) -> None:
    fail_starts(supervisor)
    worker = start(supervisor, MAX_FAILED_STARTS - 1)
    with pytest.raises(SandboxUnavailable, match=r"expected its workers to start, but 4 in a row died: no memory"):
        supervisor.mark_ready(worker, msgspec.msgpack.encode(StartFailed("no memory")))


def test_earlier_reason_is_not_reported_for_an_unexplained_death(supervisor: Supervisor) -> None:
    fail_starts(supervisor)
    worker = start(supervisor, MAX_FAILED_STARTS - 1)
    with pytest.raises(SandboxUnavailable, match=r"4 in a row died: run graders doctor$"):
        supervisor.kill(worker)


def test_worker_passes_through_every_state(supervisor: Supervisor, group: WorkerGroup, sent: list[Any]) -> None:
    assert sent == [Spawn(token, "grade") for token in range(MAX_FAILED_STARTS)]
    assert [len(group.workers[WorkerState.SPAWNING]), group.num_missing, supervisor.is_complete] == [4, 0, False]
    worker = start(supervisor, 0)
    assert worker.state is WorkerState.STARTING
    supervisor.mark_ready(worker, SANDBOXED)
    assert (worker.state, supervisor.is_complete, group.can_assign) == (WorkerState.IDLE, True, True)
    assert supervisor.assign(group) is worker
    assert (worker.state, group.can_assign) == (WorkerState.BUSY, False)
    supervisor.release(worker)
    assert worker.state is WorkerState.IDLE
    supervisor.kill(worker)
    assert (worker.state, worker.is_open, sent[-1], group.num_missing) == (WorkerState.EXITING, False, Kill(0), 1)
    assert supervisor.on_exit(Exited(0, -9)) is worker
    assert worker.state is WorkerState.EXITED


def test_worker_is_replaced_after_its_answers_or_a_preload(supervisor: Supervisor, group: WorkerGroup) -> None:
    spent, stale, starting = (start(supervisor, token) for token in range(3))
    for worker in (spent, stale):
        supervisor.mark_ready(worker, SANDBOXED)
        supervisor.assign(group)
    supervisor.record_answers(spent, group.answers_per_worker)
    supervisor.release(spent)
    assert spent.state is WorkerState.EXITING
    supervisor.preload("xml.dom")
    assert stale.state is WorkerState.BUSY
    supervisor.release(stale)
    supervisor.mark_ready(starting, SANDBOXED)
    assert [stale.state, starting.state] == [WorkerState.EXITING] * 2
