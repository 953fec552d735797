"""Sandbox processes: callers with torch, threads and forks; signals from outside; no process is left behind."""

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from graders import GraderPool, SandboxUnavailable, Verdict, grade

PLUG_IN = """
import time
from graders.verdict import Status, Verdict

class Equal:
    name = "equal"
    answers_per_process = 0

    def grade(self, completion, reference, *, question=None):
        if completion == "sleep":
            time.sleep(1000)
        status = Status.CORRECT if completion == reference else Status.INCORRECT
        return Verdict(status, completion, self.name, "exact", "", 0.0)
"""


@pytest.fixture
def equal(tmp_path: Path) -> str:
    (tmp_path / "equal.py").write_text(PLUG_IN)
    return f"{tmp_path}/equal.py:Equal"


def run_python(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def family(pid: int) -> set[int]:
    """Return the ids of all living descendants of a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if status[0] != "Z":
                parents[int(entry.name)] = int(status[1])
    found: set[int] = set()
    while True:
        grown = found | {child for child, parent in parents.items() if parent in found or parent == pid}
        if grown == found:
            return found
        found = grown


def wait_until(condition: Callable[[], bool], limit_s: float = 5.0) -> bool:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_import_is_light() -> None:
    program = (
        "import graders, sys; print(json := [m for m in ('torch', 'sympy', 'numpy', 'ctypes') if m in sys.modules])"
    )
    assert run_python(program).strip() == "[]"


def test_pool_serves_a_process_with_torch_and_its_threads(equal: str) -> None:
    import torch

    matrix = torch.ones(300, 300)
    busy = threading.Thread(target=lambda: [matrix @ matrix for _ in range(50)])
    busy.start()
    with GraderPool(equal) as pool:
        assert [v.correct for v in pool.grade([("1", "1"), ("2", "1")])] == [True, False]
    busy.join()


def test_forked_child_starts_separate_workers(equal: str) -> None:
    program = """
        import os, sys
        from graders import GraderPool, grade
        pool = GraderPool(sys.argv[1])
        def both():
            return grade("1", "1", grader=sys.argv[1]).correct and pool.grade([("1", "1")])[0].correct
        assert both()
        child = os.fork()
        if child == 0:
            os._exit(0 if both() and both() else 1)
        print(os.waitpid(child, 0)[1], both())
    """
    assert run_python(program, equal).strip() == "0 True"


def test_script_that_registers_a_grader_is_imported_by_the_sandbox(tmp_path: Path) -> None:
    script = PLUG_IN.replace("class Equal", "from graders import GraderPool, register\n\n@register\nclass Equal")
    work = 'print(GraderPool("equal").grade([("1", "1")])[0].status)'
    guarded, open_ended = tmp_path / "guarded.py", tmp_path / "open_ended.py"
    guarded.write_text(f'{script}\nif __name__ == "__main__":\n    {work}\n')
    open_ended.write_text(f"{script}\n{work}\n")
    done = [
        subprocess.run([sys.executable, str(path)], capture_output=True, text=True) for path in (guarded, open_ended)
    ]
    assert done[0].stdout == "correct\n"
    assert done[1].returncode == 1
    assert 'put what the script does under `if __name__ == "__main__":`' in done[1].stderr


def test_no_process_is_left_when_the_caller_is_killed(equal: str) -> None:
    program = """
        import sys
        from graders import GraderPool
        pool = GraderPool(sys.argv[1], time_limit_s=600)
        future = pool.submit([("sleep", "1")] * 2)
        print(pool.name, flush=True)
        future.result()
    """
    caller = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), equal], stdout=subprocess.PIPE, text=True
    )
    with caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "equal\n"
        relatives = family(caller.pid)
        assert len(relatives) >= 3
        caller.kill()
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in relatives))


def test_closing_leaves_no_process_and_no_descriptor(equal: str) -> None:
    with GraderPool(equal) as pool:  # the first pool may import modules and open files that stay open
        pool.grade([("1", "1")])
    descriptors, children = len(os.listdir("/proc/self/fd")), family(os.getpid())
    for _ in range(2):
        with GraderPool(equal) as pool:
            pool.grade([("1", "1")] * 100)
    assert wait_until(lambda: family(os.getpid()) <= children)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_workers_and_zygotes_killed_from_outside_are_replaced_without_losing_work(equal: str) -> None:
    before = family(os.getpid())
    with GraderPool(equal, time_limit_s=5) as pool:
        assert pool.name == "equal"
        future = pool.submit([(str(k % 10), "3") for k in range(40_000)])
        for pid in sorted(family(os.getpid()) - before, reverse=True)[:3]:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        verdicts = future.result(timeout=30)
    assert [v.correct for v in verdicts] == [k % 10 == 3 for k in range(40_000)]


def test_sandbox_that_dies_repeatedly_is_an_error(equal: str) -> None:
    before = family(os.getpid())
    with GraderPool(equal, time_limit_s=60) as pool:
        future: Future[list[Verdict]] = pool.submit([("sleep", "1")])

        def kill_all() -> bool:
            for pid in family(os.getpid()) - before:
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    continue
            return future.done()

        assert wait_until(kill_all, 20)
        error = future.exception()
        assert isinstance(error, SandboxUnavailable)
        assert "died" in str(error)
        assert pool.grade([("1", "1")])[0].correct  # the pool can start again


def test_hangs_and_crashes_lose_no_work(tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(
        PLUG_IN.replace(
            'if completion == "sleep":',
            'if completion == "crash":\n            import os; os._exit(1)\n        if completion == "sleep":',
        )
    )
    items = [("crash" if k % 1000 == 7 else "sleep" if k % 1000 == 500 else str(k % 10), "3") for k in range(5_000)]
    with GraderPool(f"{tmp_path}/moody.py:Equal", time_limit_s=0.1) as pool:
        verdicts = pool.grade(items)
    for (completion, _), verdict in zip(items, verdicts, strict=True):
        expected = {"crash": "error", "sleep": "over_budget", "3": "correct"}.get(completion, "incorrect")
        assert verdict.status == expected


def test_verdicts_inside_equal_those_outside_on_the_labelled_corpus() -> None:
    from graders.grader import resolve

    corpus = Path(__file__).parents[2] / "data" / "grading" / "cases.jsonl"
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    grader = resolve("math")
    with GraderPool("math", time_limit_s=10) as pool:
        inside = pool.grade([(row["response"], row["gold"]) for row in rows])
    assert len(rows) > 1000
    for row, verdict in zip(rows, inside, strict=True):
        outside = grader.grade(row["response"], row["gold"])
        assert (verdict.status, verdict.answer) == (outside.status, outside.answer), row["id"]


def test_verdicts_inside_equal_those_outside_on_the_examples() -> None:
    from graders.grader import option_of, resolve

    grader = resolve("math")
    examples: tuple[tuple[str, str, str], ...] = option_of(grader, "examples", ())
    assert examples
    for completion, reference, _ in examples:
        inside, outside = grade(completion, reference), grader.grade(completion, reference)
        assert (inside.status, inside.answer) == (outside.status, outside.answer)


def test_exit_codes_of_the_command_line(tmp_path: Path, equal: str) -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-m", "graders.cli", *arguments], capture_output=True, text=True)

    done = command("check", "1", "1", "--grader", equal)
    assert (done.returncode, json.loads(done.stdout)["status"]) == (0, "correct")
    assert command("check", "2", "1", "--grader", equal).returncode == 1
    done = command("check", "1", "1", "--grader", "nothing")
    assert (done.returncode, "expected one of" in done.stderr) == (2, True)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"completion": "1", "reference": "1"}\n\n{"completion": "2", "reference": "1", "id": 3}\n')
    done = command("grade", str(rows), "--grader", equal, "--out", str(tmp_path / "out.jsonl"))
    assert (done.returncode, done.stderr) == (0, "correct 1, incorrect 1\n")
    assert [json.loads(line)["status"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [
        "correct",
        "incorrect",
    ]
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == ["out.jsonl"]
    rows.write_text('{"completion": "1"}\n')
    done = command("grade", str(rows))
    assert (done.returncode, "rows.jsonl line 1: expected completion, reference" in done.stderr) == (2, True)
    done = command("grade", str(tmp_path / "missing.jsonl"))
    assert (done.returncode, "expected a readable file" in done.stderr) == (2, True)
    assert command("no-such-command").returncode == 2


def test_command_line_survives_a_closed_output_pipe(tmp_path: Path, equal: str) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"completion": "1", "reference": "1"}\n' * 5000)
    command = [sys.executable, "-m", "graders.cli", "grade", str(rows), "--grader", equal]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as graders:
        assert graders.stdout is not None
        assert graders.stderr is not None
        graders.stdout.readline()
        graders.stdout.close()
        assert "Traceback" not in graders.stderr.read()
    assert graders.returncode == 0
