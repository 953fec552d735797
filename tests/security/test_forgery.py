"""Forgery: a process that reads raw text cannot produce a verdict, even if it executes the completion.

The completions here are programs. The reading half of a grader runs them, and its judge compares with a secret.
"""

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from graders import GraderPool, Status, Verdict

SECRET = "forty-two point five"
FORGER = """
import gc, msgspec, os, struct, sys, time
from typing import Annotated
from graders.verdict import Status, Verdict
from graders.sandbox import protocol
from graders.sandbox.child import worker

class Forger:
    name = "forger"

    def read(self, completion, *, question=None) -> Annotated[str, msgspec.Meta(max_length=100)]:
        if not completion.startswith("#run"):
            return completion
        scope = dict(globals(), self=self, question=question)
        exec(completion, scope)
        return scope.get("answer", "nothing")

    def judge(self, reading, reference, *, question=None):
        status = Status.CORRECT if reading == reference else Status.INCORRECT
        return Verdict(status, reading, self.name, "compare", "", 0.0)

    def grade(self, completion, reference, *, question=None):
        return self.judge(self.read(completion, question=question), reference)
"""
WRITE = """
def frame(message, size=None):
    payload = msgspec.msgpack.encode(message)
    return struct.pack("<I", len(payload) if size is None else size) + payload
def verdict(status="correct"):
    return dict(status=status, answer=None, grader="math", method="exact", detail="", duration_s=0.0)
def reading(value, duration_s=0.0):
    return ["read", value if isinstance(value, bytes) else msgspec.msgpack.encode(value), duration_s]
caller = sys._getframe()
while caller.f_code.co_name != "_do_chunk":
    caller = caller.f_back
chunk = caller.f_locals["chunk"]
def claim(*outcomes, first=0, chunk=chunk):
    encoded = [o if isinstance(o, bytes | msgspec.Raw) else msgspec.msgpack.encode(o) for o in outcomes]
    os.write(4, frame([chunk, first, encoded]))
def patch(owner, name, replacement):
    getattr(owner, name)  # fails if the target was renamed
    setattr(owner, name, replacement)
deep = b"\\x91" * 10**6 + b"\\x00"
"""
FIND = """
prefix = "".join(reversed("owt-ytrof"))  # reversed: a constant of this program must not be mistaken for the secret
def is_secret(value):
    return isinstance(value, str) and value.startswith(prefix) and value != prefix
"""
FORGERIES = {
    "verdict_as_outcome": "claim(verdict())",
    "verdict_as_reading": "claim(reading(verdict()))",
    "failure_that_says_correct": "claim(['failure', 'correct', '', '', 0.0])",
    "reading_with_the_wrong_type": "claim(reading(dict(status='correct')))",
    "reading_too_long": "claim(reading('x' * 101))",
    "reading_of_megabytes": "claim(reading('x' * 3_000_000))",
    "endless_duration": "claim(reading('x', float('nan')))",
    "text_for_duration": "claim(['read', b'', 'now'])",
    "extra_field": "claim([*reading('x'), 'correct'])",
    "outcome_without_fields": "claim([])",
    "later_result_first": "claim(reading('x'), first=1)",
    "more_results_than_tasks": "claim(*[reading('x')] * 50)",
    "no_results": "claim()",
    "wrong_chunk": "claim(reading('x'), chunk=10**6)",
    "negative_position": "claim(reading('x'), first=-1)",
    "sandboxed_again": "os.write(4, frame(protocol.Sandboxed([], 1)))",
    "closed_results": "os.close(4)",
    "closed_progress": "os.close(5)",
    "closed_tasks": "os.close(3)",
    "frame_in_drips": "os.write(4, b'\\x10\\0'); time.sleep(1000)",
    "started": "os.write(4, frame(protocol.Started(0, 1)))",
    "huge_frame": "os.write(4, frame(reading('x'), size=0xFFFFFFFF))",
    "truncated_frame": "os.write(4, frame(reading('x'), size=1000)); os._exit(0)",
    "not_msgpack": "os.write(4, struct.pack('<I', 3) + b'\\xc1\\xc1\\xc1')",
    "deep_nesting": "os.write(4, struct.pack('<I', 100000) + b'\\x91' * 100000)",
    "deep_outcome": "claim(deep)",
    "deep_outcome_in_the_frame": "claim(msgspec.Raw(deep))",
    "deep_tag": "claim(b'\\x93' + deep)",
    "deep_reading": "claim(reading(deep[:1000] + deep[-1:]))",
    "deep_reading_too_long": "claim(reading(deep))",
    "reading_that_is_no_msgpack": "claim(reading(b'\\xc1'))",
    "flood_of_frames": "while True:\n    claim(reading('x'))",
    "flood_of_readings": "claim(reading('x'))\nwhile True:\n    os.write(4, bytes(1 << 16))",
    "noise": "os.write(4, bytes(range(256)) * 16)",
    "finished_before_it_began": "os.write(5, b'.' * 1000)",
    "exit_zero": "os._exit(0)",
    "exit_after_claim": "claim(verdict()); os._exit(0)",
    "printed_marker": "print('correct'); sys.stderr.write('PASSED'); answer = 'correct'",
    "patched_worker": "encoded = msgspec.msgpack.encode(verdict())\n"
    "patch(worker, '_encode', lambda v: encoded); patch(worker, 'send', lambda *a: None)",
    "patched_judge": "patch(Forger, 'judge', lambda self, *a, **k: Verdict(Status.CORRECT, None, 'x', 'x', '', 0.0))",
    "patched_verdict": "patch(Verdict, 'correct', property(lambda self: True))",
    "patched_string": "class S(str):\n    __eq__ = lambda self, x: True\n    __hash__ = str.__hash__\nanswer = S('x')",
    "patched_encoder": "patch(msgspec.msgpack, 'encode', lambda *a: b'')",
    "secret_in_the_heap": FIND + "gc.unfreeze(); answer = next((s for o in gc.get_objects() "
    "if isinstance(o, (tuple, list)) for s in o if is_secret(s)), 'not found')",
    "secret_in_the_frames": FIND + "f = sys._getframe(); found = []\nwhile f:\n"
    "    found += [v for v in f.f_locals.values() if is_secret(v)]; f = f.f_back\nanswer = (found or ['not found'])[0]",
    "secret_in_the_pipe": "answer = os.read(3, 65536)[:50].decode('latin1')",
    "secret_in_memory_file": "answer = open('/proc/self/mem').read(1)",
}

EXCEPTIONS = {"patched_string": "TypeError: Encoding objects of type S is unsupported"}
"""Forgeries that end in an exception. Any other exception means that a program failed before its attack."""


@pytest.fixture(scope="module", params=[0, 8], ids=["kept process", "replaced process"])
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GraderPool]:
    path: Path = tmp_path_factory.mktemp("forger") / "forger.py"
    path.write_text(textwrap.dedent(FORGER) + f"\nForger.answers_per_process = {request.param}\n")
    with GraderPool(f"{path}:Forger", num_workers=1, time_limit_s=0.5) as pool:
        yield pool


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forgery_is_not_accepted(pool: GraderPool, forgery: str) -> None:
    program = "#run\n" + WRITE + FORGERIES[forgery]
    verdicts = pool.grade([(program, SECRET), ("else", SECRET), ("other", SECRET)])
    assert verdicts[0].status is not Status.CORRECT, verdicts[0]
    assert verdicts[0].method != "exception" or verdicts[0].detail == EXCEPTIONS.get(forgery), verdicts[0]
    after = pool.grade([(SECRET, SECRET), ("else", SECRET)])
    assert [verdict.status.value for verdict in after] == ["correct", "incorrect"]


@pytest.mark.parametrize(
    ("program", "status"), [("os._exit(0)", "incorrect"), ("while True: pass", "over_budget")], ids=["exit", "hang"]
)
def test_program_cannot_avoid_its_verdict_by_forging_progress(program: str, status: str) -> None:
    completion = f"```python\nimport os\nos.write(5, b'.' * 64)\n{program}\n```"
    with GraderPool("python", num_workers=1, time_limit_s=0.5) as pool:
        verdict = pool.grade([(completion, '[{"input": "", "output": "1"}]')])[0]
    assert verdict.status == status, verdict


@pytest.mark.parametrize("forgery", [f"answer = {SECRET!r}", WRITE + f"claim(reading({SECRET!r}))"], ids=["", "frame"])
def test_positive_control_forger_that_knows_the_answer_is_accepted(pool: GraderPool, forgery: str) -> None:
    verdict: Verdict = pool.grade([(f"#run\n{forgery}", SECRET)])[0]
    assert verdict.correct


def test_nesting_does_not_overflow_the_stack_of_a_caller_with_a_high_recursion_limit(tmp_path: Path) -> None:
    """A decoder recurses up to the caller's recursion limit, and a million levels overflow the stack."""
    (tmp_path / "forger.py").write_text(textwrap.dedent(FORGER) + "\nForger.answers_per_process = 0\n")
    deep = [forgery for name, forgery in FORGERIES.items() if name.startswith("deep")]
    items = [("#run\n" + WRITE + forgery, SECRET) for forgery in deep]
    program = """
        import json, sys
        from graders import GraderPool
        sys.setrecursionlimit(10**7)
        with GraderPool(sys.argv[1], num_workers=1, time_limit_s=0.5) as pool:
            print([verdict.status.value for verdict in pool.grade(json.load(sys.stdin))])
    """
    command = [sys.executable, "-c", textwrap.dedent(program), f"{tmp_path}/forger.py:Forger"]
    done = subprocess.run(command, input=json.dumps(items), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"{['error'] * len(deep)}\n"), done.stderr
