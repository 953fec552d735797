"""A sandbox that is given up says why its last worker could not begin, and no older reason."""

import os
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from graders import SandboxUnavailable
from graders.sandbox.host.process_handles import Worker
from graders.sandbox.host.supervisor import MAX_BAD_BIRTHS, Roster
from graders.sandbox.host.worker_group import Crew
from graders.sandbox.protocol import Born, Ready, Setup, Stillborn, Unfit


@pytest.fixture
def roster() -> Iterator[Roster]:
    """Workers of a zygote that takes orders and does nothing."""
    silent, end = os.pipe()
    ready = Ready("exact", False, False, False, True, 0, [], [], [])
    zygote: Any = SimpleNamespace(fileno=lambda: silent, ready=ready, order=lambda message: None)
    crew = Crew("grade", MAX_BAD_BIRTHS, 0, 8, 8)
    yield (roster := Roster(Setup("exact", None, 1 << 30, 1.0, True), zygote, [crew], frozenset(), Counter()))
    roster.selector.close()
    os.close(silent)
    os.close(end)


def born(roster: Roster, token: int) -> Worker:
    """A worker that is not locked yet; the other ends of its pipes are closed, as if it were dead."""
    pipes = [os.pipe() for _ in range(3)]
    fds = [pipes[0][1], pipes[1][0], pipes[2][0]]
    for end in {end for pipe in pipes for end in pipe} - {*fds}:
        os.close(end)
    roster.welcome(Born(token, 0), fds)
    return roster.selector.get_key(fds[1]).data


def test_the_last_reason_is_given(roster: Roster) -> None:
    roster.hire()
    for token in range(MAX_BAD_BIRTHS - 1):
        roster.mourn(Stillborn(token, "too many files"))
    worker = born(roster, MAX_BAD_BIRTHS - 1)
    with pytest.raises(SandboxUnavailable, match=r"expected its workers to start, but 4 in a row died: no memory"):
        roster.admit(worker, msgspec.msgpack.encode(Unfit("no memory")))
    worker.close()


def test_an_old_reason_is_not_given_for_a_death_that_nobody_explains(roster: Roster) -> None:
    roster.hire()
    for token in range(MAX_BAD_BIRTHS - 1):
        roster.mourn(Stillborn(token, "too many files"))
    worker = born(roster, MAX_BAD_BIRTHS - 1)
    with pytest.raises(SandboxUnavailable, match=r"4 in a row died: run graders doctor$"):
        roster.part(worker)
    worker.close()
