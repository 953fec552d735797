"""An answer is over budget for what it takes, not for what the machine keeps from it."""

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
from graders.sandbox.host.task_queue import Ledger
from graders.sandbox.host.worker_group import Assignment, Crew, Job, draw_chunk
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

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs a kernel that tells of waits")


def spin(processor: int) -> None:
    os.setsid()  # a scheduling group of its own where the system has these, like any other job on a machine
    os.sched_setaffinity(0, {processor})
    while True:
        pass


@pytest.fixture
def crowded(tmp_path: Path):
    """A pool whose worker shares one processor with a crowd, while this thread may use all."""
    (tmp_path / "busy.py").write_text(BUSY)
    pool = GraderPool(f"{tmp_path}/busy.py:Busy", num_workers=1, time_limit_s=LIMIT_S)
    processor = min(os.sched_getaffinity(0))

    def open_on_one_processor() -> None:
        os.sched_setaffinity(0, {processor})  # of this thread, and of what it starts
        pool.grade([("0", "")])

    opener = threading.Thread(target=open_on_one_processor)
    opener.start()
    opener.join()
    crowd = [multiprocessing.get_context("spawn").Process(target=spin, args=(processor,)) for _ in range(8)]
    for member in crowd:
        member.start()
    time.sleep(2.0)
    yield pool
    for member in crowd:
        member.kill()
        member.join()
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_starved_worker_is_given_its_time_back(crowded: GraderPool) -> None:
    begin = time.monotonic()
    verdict = crowded.grade([("0.2", "")])[0]
    assert time.monotonic() - begin > LIMIT_S
    assert verdict.correct, verdict
    assert crowded.counts["delays"] >= 1


def test_a_hang_on_a_crowded_machine_still_ends(crowded: GraderPool) -> None:
    begin = time.monotonic()
    verdict = crowded.grade([("1000", "")])[0]
    assert time.monotonic() - begin < 20 * LIMIT_S
    # with an eighth of a processor it has run for its limit, or nearly, when it is given up
    assert (verdict.status, verdict.method) in ((Status.OVER_BUDGET, "deadline"), (Status.ERROR, "starved"))


@pytest.mark.parametrize(
    ("waited_s", "elapsed_s", "is_starved", "put_off_s"),
    [
        (0.5, 1.0, False, 0.0),  # ran for half its limit
        (0.7, 1.0, False, 0.7),
        (9.0, 9.3, True, 8.0),  # in nine limits, it ran for less than two fifths of one
        (9.0, 9.5, False, 8.0),
        (7.0, 7.1, False, 7.0),
    ],
)
def test_a_worker_is_starved_if_it_has_waited_long_and_hardly_run(
    waited_s: float, elapsed_s: float, is_starved: bool, put_off_s: float
) -> None:
    worker: Any = SimpleNamespace(waited_s=lambda: 100.0 + waited_s)
    work = Assignment(None, worker, None, 0, 11.0, 11.0, 100.0)  # type: ignore[arg-type]  # begun at 10.0
    assert work.put_off(10.0 + elapsed_s, 1.0) is is_starved
    assert work.deadline == pytest.approx(11.0 + put_off_s)


def test_an_answer_that_had_no_chance_is_an_error_and_no_reward() -> None:
    decided: list[tuple[int, Verdict]] = []
    crew = Crew("grade", 1, 0, 8, 8)
    ready = Ready("busy", False, False, False, False, 8, [], [], [])
    ledger = Ledger([crew], ready, LIMIT_S, Counter())
    chunk = draw_chunk(Job([("1", "1", None)], decided.extend, lambda error: None), crew)
    worker: Any = None  # it is dead already
    ledger.expire(Assignment(crew, worker, chunk, 0, 0.0, 0.0, 0.0), 0, is_starved=True)
    assert [(index, v.status, v.method) for index, v in decided] == [(0, Status.ERROR, "starved")]
    assert decided[0][1].detail == "the machine was too busy to grade it"
