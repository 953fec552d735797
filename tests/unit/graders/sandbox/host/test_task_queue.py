"""Every item is decided once: a job with all its verdicts is owed none when the pool ends."""

from collections import Counter

import pytest

from graders import Status, Verdict
from graders.sandbox.host.task_queue import Ledger
from graders.sandbox.host.worker_group import Crew, Job
from graders.sandbox.protocol import Ready

ITEMS = [(str(k), "1", None) for k in range(3)]
LARGE = Verdict(Status.OVER_BUDGET, None, "exact", "size", "more than can be looked at", 0.0)


@pytest.mark.parametrize("decided", [{0, 1, 2}, {2}, {1, 2}, set()])
def test_a_job_is_unfinished_as_long_as_an_item_is_neither_decided_nor_drawn(decided: set[int]) -> None:
    crew = Crew("grade", 1, 0, 1, 8)  # draws one item at a time
    ledger = Ledger([crew], Ready("exact", False, False, False, True, 0, [], [], []), 1.0, Counter())
    delivered: list[tuple[int, Verdict]] = []
    job = Job(ITEMS, delivered.extend, lambda error: None, dict.fromkeys(decided, LARGE))
    ledger.add(job)
    assert {index for index, _ in delivered} == decided
    for drawn in range(3):
        assert ledger.unfinished() == ({job} if {*range(drawn, 3)} - decided else set())
        chunk = ledger.next_chunk(crew)
        assert (chunk.indices if chunk else []) == sorted({drawn} - decided)
    assert ledger.unfinished() == set()
