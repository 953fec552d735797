"""Starvation: an answer is over budget for the processor time that it used, not for the time spent waiting for one."""

import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graders import GraderPool, Status, Verdict
from graders.sandbox.host.scheduler import Assignment
from graders.sandbox.host.task_queue import Job, TaskQueue
from graders.sandbox.protocol import Ready

LIMIT_S = 0.4
BUSY = """
import time
from graders.verdict import Status, Verdict

class Busy:
    name = "busy"
    answers_per_process = 0

    def grade(self, completion, reference, *, question=None):
        end = time.process_time() + float(completion)
        while time.process_time() < end:
            pass
        return Verdict(Status.CORRECT, None, self.name, "busy", "", 0.0)
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs /proc/self/schedstat")


def spin(processor: int) -> None:
    os.setsid()  # a separate autogroup of the scheduler, like any other job on a machine
    os.sched_setaffinity(0, {processor})
    while True:
        pass


@pytest.fixture
def crowded(tmp_path: Path):
    """A pool whose worker shares one processor with eight busy processes; this thread may use all processors."""
    (tmp_path / "busy.py").write_text(BUSY)
    pool = GraderPool(f"{tmp_path}/busy.py:Busy", num_workers=1, time_limit_s=LIMIT_S)
    processor = min(os.sched_getaffinity(0))

    def open_on_one_processor() -> None:
        os.sched_setaffinity(0, {processor})  # of this thread and its child processes
        pool.grade([("0", "")])

    opener = threading.Thread(target=open_on_one_processor)
    opener.start()
    opener.join()
    crowd = [multiprocessing.get_context("spawn").Process(target=spin, args=(processor,)) for _ in range(8)]
    for process in crowd:
        process.start()
    time.sleep(2.0)
    yield pool
    for process in crowd:
        process.kill()
        process.join()
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_starved_worker_gets_its_waiting_time_back(crowded: GraderPool) -> None:
    # 0.15 s is less than the share of the limit that a worker has run if it waited too little for an extension.
    for _ in range(5):
        begin = time.monotonic()
        verdict = crowded.grade([("0.15", "")])[0]
        assert verdict.correct, verdict
        if time.monotonic() - begin > LIMIT_S:
            break
    else:
        pytest.fail("expected the crowd to make a worker wait beyond its limit")
    assert crowded.counts["delays"] >= 1


def test_hang_on_a_crowded_machine_ends(crowded: GraderPool) -> None:
    begin = time.monotonic()
    verdict = crowded.grade([("1000", "")])[0]
    assert time.monotonic() - begin < 20 * LIMIT_S
    # with an eighth of a processor, it has run for about its limit when it is killed
    assert (verdict.status, verdict.method) in ((Status.OVER_BUDGET, "deadline"), (Status.ERROR, "starved"))


@pytest.mark.parametrize(
    ("waited_s", "elapsed_s", "is_starved", "extension_s"),
    [
        (0.5, 1.0, False, 0.0),  # ran for half its limit
        (0.7, 1.0, False, 0.7),
        (9.0, 9.3, True, 8.0),  # ran for less than two fifths of its limit in nine limits
        (9.0, 9.5, False, 8.0),
        (7.0, 7.1, False, 7.0),
    ],
)
def test_worker_is_starved_if_it_waited_long_and_hardly_ran(
    waited_s: float, elapsed_s: float, is_starved: bool, extension_s: float
) -> None:
    worker: Any = SimpleNamespace(pipes=SimpleNamespace(waited_s=lambda: 100.0 + waited_s))
    chunk: Any = None
    assignment = Assignment(worker, chunk, 11.0, 11.0, 100.0)  # begun at 10.0
    assert assignment.extend(10.0 + elapsed_s, 1.0) is is_starved
    assert assignment.deadline == pytest.approx(11.0 + extension_s)


def test_answer_of_a_starved_worker_is_an_error() -> None:
    decided: list[tuple[int, Verdict]] = []
    queue = TaskQueue(Ready("busy", False, False, False, False, 8, [], [], []), 1, LIMIT_S, Counter())
    queue.add(Job([("1", "1", None)], decided.extend, lambda error: None))
    chunk = queue.next_chunk("grade")
    assert chunk is not None
    queue.expire(chunk, 1, is_starved=True)
    assert [(index, v.status, v.method) for index, v in decided] == [(0, Status.ERROR, "starved")]
    assert decided[0][1].detail == "the machine was too busy to grade it"
