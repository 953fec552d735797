"""Python grader: runs a program on inputs only, in a locked process, and judges its output."""

import json
from collections.abc import Iterator

import pytest

from graders import BadReference, GraderPool, SandboxUnavailable, Status
from graders.builtin.python import PythonGrader, Runs
from graders.sandbox.child.run_program import MAX_OUTPUT_BYTES, Run

SUM = json.dumps([{"input": "1 2\n", "output": "3\n"}, {"input": "10 -4", "output": "6"}])
APPS = json.dumps({"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]})


def fenced(program: str) -> str:
    return f"Here is my program.\n```python\n{program}\n```\nIt is right."


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    with GraderPool("python", num_workers=2, time_limit_s=1.0) as pool:
        yield pool


@pytest.mark.parametrize("reference", [SUM, APPS])
@pytest.mark.parametrize(
    "program",
    [
        "print(sum(map(int, input().split())))",
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
        "import sys\nsys.stdout.buffer.write(b'%d\\n' % sum(map(int, sys.stdin.buffer.read().split())))",
        "a, b = open(0).read().split()\nprint(int(a) + int(b), end='  \\n\\n')",
        "import heapq, sys\nh = [-int(x) for x in input().split()]\nheapq.heapify(h)\nprint(-sum(h))\nsys.exit()",
        "def main():\n    a, b = map(int, input().split())\n    print(a + b)\nif __name__ == '__main__':\n    main()",
    ],
)
def test_correct_program_passes(pool: GraderPool, program: str, reference: str) -> None:
    verdict = pool.grade([(fenced(program), reference)])[0]
    assert (verdict.status, verdict.detail) == (Status.CORRECT, "2 tests passed")


@pytest.mark.parametrize(
    ("program", "status", "detail"),
    [
        ("print(3)", "incorrect", "test 2: printed '3\\n'"),
        ("print(1 / 0)", "incorrect", "test 1: ZeroDivisionError: division by zero"),
        ("raise type('Odd', (BaseException,), {})('x')", "incorrect", "test 1: Odd: x"),
        ("class Odd(Exception):\n    def __str__(self): raise self\nraise Odd", "incorrect", "test 1: Odd: "),
        ("class Odd(Exception):\n    def __str__(self): return 5\nraise Odd", "incorrect", "test 1: Odd: "),
        ("import sys\nsys.stdout.write('4')\nsys.stdout.close()", "incorrect", "test 1: printed '4'"),
        ("print(", "incorrect", "test 1: SyntaxError"),
        ("import numpy_of_my_own", "incorrect", "test 1: "),
        ("f = lambda: f()\nf()", "incorrect", "test 1: RecursionError"),
        ("open('/etc/passwd')", "incorrect", "test 1: PermissionError"),
        ("while True: pass", "over_budget", "not done within 1 s"),
        ("while True: print('x' * 1000)", "over_budget", f"test 1: printed more than {MAX_OUTPUT_BYTES} bytes"),
        ("x = [0] * 10**11", "over_budget", "MemoryError"),
        ("import os\nos.fork()", "incorrect", "forbidden system call"),
        ("import os\nos._exit(0)", "incorrect", "exit code 0"),
        ("import os\nos.abort()", "incorrect", "the worker died twice"),
        (
            "import os\nfor fd in range(3, 30):\n    try: os.write(fd, b'x' * 64)\n    except OSError: pass",
            "incorrect",
            "the worker sent an invalid message",
        ),
        ("import threading\nthreading.Thread(target=print).start()", "incorrect", ""),
        ("import builtins\nbuiltins.len = builtins.str = builtins.isinstance = None", "incorrect", "printed ''"),
    ],
)
def test_failing_program_gets_its_status_and_detail(pool: GraderPool, program: str, status: str, detail: str) -> None:
    verdict = pool.grade([(fenced(program), SUM)])[0]
    assert verdict.status == status
    assert detail in verdict.detail


def test_process_of_the_program_has_no_expected_outputs(pool: GraderPool) -> None:
    reference = json.dumps([{"input": "", "output": "a-secret-value"}])
    program = (
        "import gc, sys\ngc.unfreeze()\n"
        "texts = [s for o in gc.get_objects() if isinstance(o, (list, tuple, dict)) for s in map(str, o)]\n"
        "print(next((t for t in texts if '-'.join(['a', 'secret', 'value']) in t and len(t) < 100), 'not found'))"
    )
    assert pool.grade([(fenced(program), reference)])[0].detail == "test 1: printed 'not found\\n'"


def test_completion_without_a_program_is_no_answer(pool: GraderPool) -> None:
    assert pool.grade([("print(3)", SUM)])[0].status is Status.NO_ANSWER


@pytest.mark.parametrize(
    "reference", ["", "[]", "{}", '[{"input": 1, "output": ""}]', '{"inputs": ["1"], "outputs": []}']
)
def test_bad_reference_is_an_error_of_its_item_only(pool: GraderPool, reference: str) -> None:
    bad, good = pool.grade([(fenced("print(3)"), reference), (fenced("print(sum(map(int, input().split())))"), SUM)])
    assert bad.status is Status.ERROR
    assert "BadReference: python grader: expected" in bad.detail
    assert good.correct
    with pytest.raises(BadReference, match="python grader: expected"):
        PythonGrader().judge(Runs("", []), reference)


def test_grader_raises_outside_a_locked_process() -> None:
    with pytest.raises(SandboxUnavailable, match="expected a locked sandbox process, got an open one"):
        PythonGrader().grade(fenced("print(3)"), SUM)
    with pytest.raises(SandboxUnavailable, match="seccomp"):
        GraderPool("python", lockdown=False).grade([(fenced("print(3)"), SUM)])


def test_fewer_runs_than_tests_are_incorrect() -> None:
    runs = Runs("", [Run("finished", "3", "")])
    assert PythonGrader().judge(runs, SUM).detail == "only 1 of 2 tests were run"
