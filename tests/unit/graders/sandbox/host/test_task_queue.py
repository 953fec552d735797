"""Task queue: each item gets one verdict, and a job with all its verdicts is not unfinished when the pool closes."""

from collections import Counter

import pytest

from graders import Status, Verdict
from graders.sandbox.host.task_queue import Job, TaskQueue
from graders.sandbox.protocol import Ready

ITEMS = [(str(k), "1", None) for k in range(3)]
LARGE = Verdict(Status.OVER_BUDGET, None, "exact", "size", "too large", 0.0)
ONE_ITEM_PER_CHUNK = Ready("exact", False, False, False, True, 1, [], [], [])


@pytest.mark.parametrize("decided", [{0, 1, 2}, {2}, {1, 2}, set()])
def test_job_is_unfinished_while_an_item_is_neither_decided_nor_taken(decided: set[int]) -> None:
    queue = TaskQueue(ONE_ITEM_PER_CHUNK, 1, 1.0, Counter())
    delivered: list[tuple[int, Verdict]] = []
    job = Job(ITEMS, delivered.extend, lambda error: None, dict.fromkeys(decided, LARGE))
    queue.add(job)
    assert {index for index, _ in delivered} == decided
    for taken in range(3):
        assert queue.unfinished() == ({job} if {*range(taken, 3)} - decided else set())
        chunk = queue.next_chunk("grade")
        assert (chunk.indices if chunk else []) == sorted({taken} - decided)
    assert queue.unfinished() == set()
