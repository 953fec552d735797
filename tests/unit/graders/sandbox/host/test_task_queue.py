"""Task queue: each item gets one verdict, however its worker is lost."""

import signal
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


def read_queue(items: int) -> tuple[TaskQueue, list[tuple[int, Verdict]]]:
    """Return a queue for a grader that runs programs, with a job of this many items, and its verdicts."""
    queue = TaskQueue(Ready("python", True, False, True, True, 0, [], [], []), 1, 1.0, Counter())
    delivered: list[tuple[int, Verdict]] = []
    queue.add(Job(ITEMS[:items], delivered.extend, lambda error: None))
    return queue, delivered


@pytest.mark.parametrize("num_begun", [1, 2, 1000])
@pytest.mark.parametrize(
    ("exit_code", "status"), [(0, "incorrect"), (-signal.SIGSYS, "incorrect"), (-signal.SIGKILL, "error")]
)
def test_program_that_forges_its_progress_gets_the_verdict_of_its_exit(
    num_begun: int, exit_code: int, status: str
) -> None:
    queue, delivered = read_queue(1)
    for _ in range(2):
        assert not delivered
        chunk = queue.next_chunk("read")
        assert chunk is not None
        queue.settle_exit(chunk, num_begun, exit_code, is_violation=False)
    assert [(index, verdict.status.value) for index, verdict in delivered] == [(0, status)]


def test_program_that_forges_its_progress_and_hangs_is_over_budget() -> None:
    queue, delivered = read_queue(1)
    chunk = queue.next_chunk("read")
    assert chunk is not None
    queue.expire(chunk, 1000)
    assert [(index, verdict.status.value) for index, verdict in delivered] == [(0, "over_budget")]


def test_tasks_of_a_worker_with_forged_progress_are_retried_alone() -> None:
    queue, delivered = read_queue(3)
    chunk = queue.next_chunk("read")
    assert chunk is not None
    chunk.num_done = 1
    queue.settle_exit(chunk, 4, 0, is_violation=False)
    retried = [queue.next_chunk("read") for _ in range(2)]
    assert sorted(single.indices for single in retried if single) == [[1], [2]]
    assert (queue.next_chunk("read"), delivered) == (None, [])
