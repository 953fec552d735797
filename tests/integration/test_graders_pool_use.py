"""Use and misuse of pools: many workers, callbacks, cancellation, forks at bad moments, few open files."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from graders import GraderError, GraderPool, Verdict
from graders.sandbox.host import supervisor

PLUG_IN = """
import time
from graders.verdict import Status, Verdict

class Equal:
    name = "equal"
    answers_per_process = 0

    def grade(self, completion, reference, *, question=None):
        if completion == "nap":
            time.sleep(0.05)
        if completion == "long nap":
            time.sleep(1.5)
        status = Status.CORRECT if completion == reference else Status.INCORRECT
        return Verdict(status, completion, self.name, "exact", "", 0.0)

class ThirdParty(Equal):
    answers_per_process = 8
"""


@pytest.fixture
def plug_in(tmp_path: Path) -> Path:
    (tmp_path / "equal.py").write_text(PLUG_IN)
    return tmp_path / "equal.py"


def run_in_callback(pool: GraderPool, callback: Callable[[], object]) -> list[object]:
    """Run a function in a callback of a future, and return its result or error."""
    outcome: list[object] = []
    done = threading.Event()

    def called(_: "Future[list[Verdict]]") -> None:
        try:
            outcome.append(callback())
        except GraderError as error:
            outcome.append(error)
        done.set()

    pool.submit([("nap", "nap")]).add_done_callback(called)
    assert done.wait(10)
    return outcome


def test_more_workers_than_a_socket_buffers_messages(plug_in: Path) -> None:
    with GraderPool(f"{plug_in}:ThirdParty", num_workers=150) as pool:
        assert all(verdict.correct for verdict in pool.grade([("1", "1")] * 400))


@pytest.mark.parametrize("num_workers", [0, 257])
def test_invalid_number_of_workers_is_rejected(plug_in: Path, num_workers: int) -> None:
    with pytest.raises(GraderError, match="expected num_workers from 1 to 256"):
        GraderPool(f"{plug_in}:Equal", num_workers=num_workers)


def test_error_about_too_few_files_leaks_no_descriptor(plug_in: Path) -> None:
    program = """
        import os, sys
        from graders import GraderPool, SandboxUnavailable
        before = len(os.listdir("/proc/self/fd"))
        try:
            GraderPool(sys.argv[1], num_workers=100).grade([("long nap", "1")] * 4000)
        except SandboxUnavailable as error:
            print(error)
        print("left:", len(os.listdir("/proc/self/fd")) - before)
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), f"{plug_in}:ThirdParty"],
        capture_output=True, text=True, timeout=60, check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard)),
    )  # fmt: skip
    assert "too many files are open; use fewer workers, or raise the limit (ulimit -n)" in done.stdout
    assert done.stdout.endswith("left: 0\n")


def test_callback_may_submit_and_close_but_not_wait_for_its_pool(plug_in: Path) -> None:
    with GraderPool(f"{plug_in}:Equal") as pool:
        (chained,) = run_in_callback(pool, lambda: pool.submit([("1", "1")]))
        assert isinstance(chained, Future)
        assert chained.result(10)[0].correct
        for wait in (lambda: pool.grade([("1", "1")]), lambda: list(pool.stream([("1", "1")]))):
            (refused,) = run_in_callback(pool, wait)
            assert "expected grade or stream outside a callback" in str(refused)
        assert run_in_callback(pool, pool.close) == [None]
        assert pool.grade([("1", "1")])[0].correct


def test_cancelled_grading_stops(plug_in: Path) -> None:
    async def give_up(pool: GraderPool) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.grade_async([("nap", "1")] * 2000), 0.2)

    with GraderPool(f"{plug_in}:Equal", num_workers=1) as pool:
        asyncio.run(give_up(pool))
        begin = time.monotonic()
        assert pool.grade([("1", "1")])[0].correct
        assert time.monotonic() - begin < 20  # one chunk of 64 naps, not 2000


def test_threads_and_event_loops_share_a_pool(plug_in: Path) -> None:
    right = [str(k % 5) == "3" for k in range(500)]
    items = [(str(k % 5), "3") for k in range(500)]
    found: list[list[bool]] = []

    async def gathered(pool: GraderPool) -> None:
        for verdicts in await asyncio.gather(*(pool.grade_async(items) for _ in range(4))):
            found.append([verdict.correct for verdict in verdicts])

    with GraderPool(f"{plug_in}:Equal") as pool:
        work = [lambda: asyncio.run(gathered(pool))] * 3
        work += [lambda: found.append([verdict.correct for verdict in pool.grade(items)])] * 6
        threads = [threading.Thread(target=each) for each in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [right] * 18


def test_hanging_zygote_is_replaced(plug_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "SPAWN_LIMIT_S", 0.5)
    with GraderPool(f"{plug_in}:ThirdParty") as pool:
        assert pool.grade([("1", "1")])[0].correct
        outer = pool._ensure_started()._supervisor._zygote.pid
        inner = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        for pid in (*inner, outer):
            os.kill(int(pid), signal.SIGSTOP)
        assert all(verdict.correct for verdict in pool.grade([("1", "1")] * 100))
        assert pool.counts["zygote_restarts"] == 1


def test_closing_fails_every_pending_future(plug_in: Path) -> None:
    pool = GraderPool(f"{plug_in}:Equal")
    futures = [pool.submit([("nap", "1")] * 200) for _ in range(20)]
    pool.close()
    assert all(isinstance(future.exception(10), GraderError) for future in futures)


def test_fork_while_another_thread_holds_the_lock_of_a_pool(plug_in: Path) -> None:
    program = """
        import os, signal, sys
        from graders import GraderPool
        pool = GraderPool(sys.argv[1])
        assert pool.grade([("1", "1")])[0].correct
        with pool._lock:
            child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if pool.grade([("1", "1")])[0].correct else 1)
        print(os.waitpid(child, 0)[1], pool.grade([("1", "1")])[0].correct)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), f"{plug_in}:Equal"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "0 True\n", done.stderr


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(0)", "os._exit(0)"])
def test_interpreter_that_exits_with_unfinished_work_is_silent_and_leaves_no_process(
    plug_in: Path, ending: str
) -> None:
    program = f"""
        import os, sys
        from graders import GraderPool
        pool = GraderPool(sys.argv[1])
        future = pool.submit([("nap", "1")] * 2000)
        print(pool._ensure_started()._supervisor._zygote.pid, flush=True)
        {ending}
    """
    command = [sys.executable, "-W", "always", "-c", textwrap.dedent(program), f"{plug_in}:Equal"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    end = time.monotonic() + 5
    while Path(f"/proc/{done.stdout.strip()}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{done.stdout.strip()}").exists()


def test_ten_thousand_answers_leak_no_descriptor_and_no_zombie(plug_in: Path) -> None:
    with GraderPool(f"{plug_in}:ThirdParty") as pool:
        pool.grade([("1", "1")] * 100)
        before = len(os.listdir("/proc/self/fd"))
        assert all(verdict.correct for verdict in pool.grade([("1", "1")] * 10_000))
        time.sleep(0.3)
        zombies = [p for p in Path("/proc").glob("[0-9]*/stat") if is_zombie_python(p)]
        assert len(os.listdir("/proc/self/fd")) <= before + 16  # four per worker, busy or spare
        assert zombies == []
        assert pool.counts["forks"] >= 1250


def is_zombie_python(stat: Path) -> bool:
    try:
        name, _, rest = stat.read_text().rpartition(")")
        return rest.split()[0] == "Z" and "python" in name and os.stat(stat).st_uid >= 0x7E000000
    except OSError:
        return False
