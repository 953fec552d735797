"""Sandbox benchmark: answers per second, cost of the layers, recovery time after a kill, and lost work.

scripts/bench sandbox [--answers N] [--json]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from graders import GraderPool, Verdict

PLUG_IN = """
import os
from graders.verdict import Status, Verdict

class Equal:
    name = "equal"
    answers_per_process = 0
    examples = (("1", "1", "correct"), ("1", "2", "incorrect"))

    def grade(self, completion, reference, *, question=None):
        if completion == "hang":
            while True:
                pass
        if completion == "crash":
            os._exit(1)
        status = Status.CORRECT if completion == reference else Status.INCORRECT
        return Verdict(status, completion, self.name, "exact", "", 0.0)

class ThirdParty(Equal):
    answers_per_process = 8
"""
REPEATS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=50_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        plug_in = Path(directory) / "bench_plug_in.py"
        plug_in.write_text(PLUG_IN)
        numbers = measure(f"{plug_in}:Equal", f"{plug_in}:ThirdParty", options.answers)
    if options.json:
        print(json.dumps(numbers))
        return
    for name, value in numbers.items():
        print(f"{name:44} {value:>12,.2f}")


def measure(kept: str, third_party: str, num_answers: int) -> dict[str, float]:
    """Return every figure by name: rates are the best of several runs; latencies and the cost are medians."""
    items = [(str(k % 10), "3") for k in range(num_answers)]
    with GraderPool(kept) as locked, GraderPool(kept, lockdown=False) as bare:
        for pool in (locked, bare):
            pool.grade(items)
        # alternately, so other load on the machine affects both equally
        rates = [(answers_per_s(locked, items), answers_per_s(bare, items)) for _ in range(REPEATS)]
        single_s = statistics.median(seconds(lambda: locked.grade([("3", "3")])) for _ in range(500))
    with GraderPool(third_party) as disposable:
        fork_rate = max(answers_per_s(disposable, items[:800]) for _ in range(REPEATS))
    with GraderPool("math") as math:
        math_items = [("so it is \\boxed{1/2}", "0.5"), ("\\boxed{\\sqrt{12}}", "2\\sqrt{3}")] * 1000
        math_rate = max(answers_per_s(math, math_items) for _ in range(2))
    locked_rate, bare_rate = (max(column) for column in zip(*rates, strict=True))
    return {
        "round trips per second, sandboxed": locked_rate,
        "round trips per second, without layers": bare_rate,
        "cost of the layers, percent": 100 * (statistics.median(bare / locked for locked, bare in rates) - 1),
        "single answer, microseconds": 1e6 * single_s,
        "third-party grader, answers per second": fork_rate,
        "math grader, answers per second": math_rate,
        **recovery(kept),
        **lost_work(kept, num_answers),
    }


def answers_per_s(pool: GraderPool, items: list[tuple[str, str]]) -> float:
    return len(items) / seconds(lambda: pool.grade(items))


def seconds(work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def recovery(grader: str) -> dict[str, float]:
    """Return the time from the verdict on a hang to the next verdict, and by how much a hang exceeds its limit."""
    limit_s = 0.2
    after, over = [], []
    with GraderPool(grader, num_workers=1, time_limit_s=limit_s) as pool:
        for _ in range(10):
            over.append(seconds(lambda: pool.grade([("hang", "1")])) - limit_s)
            after.append(seconds(lambda: pool.grade([("1", "1")])))
    return {
        "hang beyond its limit, ms": 1e3 * statistics.median(over),
        "killed to next verdict, ms": 1e3 * statistics.median(after),
        "killed to next verdict, worst, ms": 1e3 * max(after),
    }


def lost_work(grader: str, num_answers: int) -> dict[str, float]:
    """Grade answers with 50 hangs and 50 crashes among them, and count missing and wrong verdicts."""
    step = num_answers // 50
    failures = {0: "hang", step // 2: "crash"}
    items = [(failures.get(k % step, str(k % 10)), "3") for k in range(num_answers)]
    verdicts: list[Verdict | None] = [None] * num_answers
    begin = time.perf_counter()
    with GraderPool(grader, time_limit_s=0.2) as pool:
        for index, verdict in pool.stream(items):
            verdicts[index] = verdict
    expected = {"hang": "over_budget", "crash": "error", "3": "correct"}
    wrong = sum(
        verdict is not None and verdict.status != expected.get(completion, "incorrect")
        for (completion, _), verdict in zip(items, verdicts, strict=True)
    )
    return {
        "with 50 hangs and 50 crashes: seconds": time.perf_counter() - begin,
        "with 50 hangs and 50 crashes: missing": verdicts.count(None),
        "with 50 hangs and 50 crashes: wrong": wrong,
    }


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
