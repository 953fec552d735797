"""A process that meets raw text cannot bring about a verdict, whatever it writes, finds or breaks.

The completions here are programs, run by the reading half of a grader whose judge compares with a secret.
"""

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
from graders.sandbox import frames, worker

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
read = dict(type="read", reading="x", duration_s=0.0)
deep = "x"
for _ in range(400):
    deep = [deep]
def flood(outcome):
    for chunk in range(200):
        os.write(4, frame([chunk, 0, [outcome]]))
"""
FORGERIES = {
    "verdict_as_outcome": "flood(verdict())",
    "failure_that_says_correct": "flood(dict(read, type='failure', status='correct', method='', detail=''))",
    "reading_with_the_wrong_type": "flood(dict(type='read', reading=dict(status='correct'), duration_s=0.0))",
    "reading_too_long": "flood(dict(type='read', reading='x' * 101, duration_s=0.0))",
    "endless_duration": "flood(dict(type='read', reading='x', duration_s=float('nan')))",
    "later_result_first": "os.write(4, frame([0, 1, [read]]))",
    "more_results_than_tasks": "os.write(4, frame([0, 0, [read] * 50]))",
    "wrong_chunk": "os.write(4, frame([10**6, 0, [read]]))",
    "negative_position": "os.write(4, frame([0, -1, [read]]))",
    "locked_again": "os.write(4, frame(dict(type='locked', layers=[])))",
    "born": "os.write(4, frame(dict(type='born', token=0, pid=1)))",
    "huge_frame": "os.write(4, frame(read, size=0xFFFFFFFF))",
    "truncated_frame": "os.write(4, frame(read, size=1000)); os._exit(0)",
    "not_msgpack": "os.write(4, struct.pack('<I', 3) + b'\\xc1\\xc1\\xc1')",
    "deep_nesting": "os.write(4, struct.pack('<I', 100000) + b'\\x91' * 100000)",
    "deep_outcome": "payload = b'\\x93\\x00\\x00\\x91' + b'\\x91' * 10**6 + b'\\x00'\n"
    "for chunk in range(100):\n    payload = payload[:1] + bytes([chunk]) + payload[2:]\n"
    "    os.write(4, struct.pack('<I', len(payload)) + payload)",
    "deep_reading": "flood(dict(type='read', reading=R, duration_s=0.0))".replace("R", "deep"),
    "flood_of_frames": "while True:\n    flood(read)",
    "noise": "os.write(4, bytes(range(256)) * 16)",
    "finished_before_it_began": "os.write(5, b'.' * 1000)",
    "exit_zero": "os._exit(0)",
    "exit_after_claim": "flood(verdict()); os._exit(0)",
    "printed_marker": "print('correct'); sys.stderr.write('PASSED'); answer = 'correct'",
    "patched_worker": "worker._encoded = lambda v: msgspec.msgpack.encode(verdict()); worker.send = lambda *a: None",
    "patched_judge": "Forger.judge = lambda self, *a, **k: Verdict(Status.CORRECT, None, 'x', 'x', '', 0.0)",
    "patched_verdict": "Verdict.correct = property(lambda self: True)",
    "patched_string": "class S(str):\n    __eq__ = lambda self, x: True\n    __hash__ = str.__hash__\nanswer = S('x')",
    "patched_encoder": "msgspec.msgpack.encode = lambda *a: b''",
    "secret_in_the_heap": "gc.unfreeze(); answer = next((s for o in gc.get_objects() if isinstance(o, (tuple, list)) "
    "for s in o if isinstance(s, str) and s.startswith('forty-two')), 'not found')",
    "secret_in_the_frames": "f = sys._getframe(); found = []\nwhile f:\n    found += [v for v in f.f_locals.values() "
    "if isinstance(v, str) and v.startswith('forty-two')]; f = f.f_back\nanswer = (found or ['not found'])[0]",
    "secret_in_the_pipe": "answer = os.read(3, 65536)[:50].decode('latin1') if 'BLOCK' in globals() else 'x'",
    "secret_in_memory_file": "answer = open('/proc/self/mem').read(1)",
}


@pytest.fixture(scope="module", params=[0, 8], ids=["kept process", "thrown-away process"])
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GraderPool]:
    path: Path = tmp_path_factory.mktemp("forger") / "forger.py"
    path.write_text(textwrap.dedent(FORGER) + f"\nForger.answers_per_process = {request.param}\n")
    with GraderPool(f"{path}:Forger", num_workers=1, time_limit_s=0.5) as pool:
        yield pool


@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_forgery_is_believed(pool: GraderPool, forgery: str) -> None:
    program = "#run\n" + WRITE + FORGERIES[forgery]
    verdicts = pool.grade([(program, SECRET), ("else", SECRET), ("other", SECRET)])
    assert verdicts[0].status is not Status.CORRECT, verdicts[0]
    after = pool.grade([(SECRET, SECRET), ("else", SECRET)])
    assert [verdict.status.value for verdict in after] == ["correct", "incorrect"]


def test_positive_control_a_forger_that_knows_the_answer_is_believed(pool: GraderPool) -> None:
    verdict: Verdict = pool.grade([(f"#run\nanswer = {SECRET!r}", SECRET)])[0]
    assert verdict.correct
