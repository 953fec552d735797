"""Grader specification: attributes are read once, and an invalid one is an error that names it."""

import itertools
import textwrap
from pathlib import Path
from typing import Any

import pytest

from graders import BadGrader, BadInput, GraderPool, SandboxUnavailable, Status
from graders.grader import as_grader
from graders.sandbox.child.grader_spec import MAX_ANSWERS_PER_PROCESS, MAX_EXAMPLES, read_grader_spec

PLUG_IN = """
import os, sys, time
from graders.verdict import Status, Verdict

class Good:
    name = "good"
    examples = (("7", "7", "correct"), ("7", "8", "incorrect"))

    def grade(self, completion, reference, *, question=None):
        status = Status.CORRECT if completion == reference else Status.INCORRECT
        return Verdict(status, completion, "good", "m", str(question), 0.0)

class Exits(Good):
    def __init__(self):
        raise SystemExit(0)

class Shows(Good):
    def read(self, completion, *, question=None) -> str:
        return completion + (question or "")

    def judge(self, reading, reference, *, question=None):
        return self.grade(reading, reference)

    def shown(self, reference, question):
        return {"raise": lambda: 1 / 0, "int": lambda: 3, "surrogate": lambda: "\\ud800"}.get(reference, lambda: "!")()

class Hint(Shows):
    def read(self, completion, *, question=None) -> "Nonsense":
        return completion

class Async(Good):
    async def grade(self, completion, reference, *, question=None):
        return None

class Heavy(Good):
    weight = bytearray(1 << 27)
"""


class Good:
    name: Any = "good"

    def grade(self, completion: str, reference: str, *, question: str | None = None) -> None: ...


def changed(**attributes: Any) -> Any:
    return type("Changed", (Good,), attributes)()


def raised(kind: type[BaseException]) -> property:
    def fail(self: object) -> None:
        raise kind("planted")

    return property(fail)


@pytest.fixture(scope="module")
def plug_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("declaring") / "declaring.py"
    path.write_text(textwrap.dedent(PLUG_IN))
    return path


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"answers_per_process": "8"}, "answers_per_process from 0, for no limit, to 1024, got str '8'"),
        ({"answers_per_process": -1}, "answers_per_process from 0, .*got int -1"),
        ({"answers_per_process": True}, "answers_per_process from 0, .*got bool True"),
        ({"answers_per_process": float("nan")}, "answers_per_process from 0, .*got float nan"),
        ({"answers_per_process": MAX_ANSWERS_PER_PROCESS + 1}, "answers_per_process from 0, .*got int 1025"),
        ({"requires": "seccomp"}, "requires to be a sequence of names of layers, got str 'seccomp'"),
        ({"requires": 3}, "requires to be a sequence of names of layers, got int 3"),
        ({"requires": [3]}, "requires to be a sequence of names of layers, got list"),
        ({"requires": type("Names", (list,), {"__iter__": lambda self: 1 / 0})()}, "names of layers, got Names"),
        ({"runs_programs": 1}, "runs_programs to be True or False, got int 1"),
        ({"runs_programs": type("Odd", (), {"__bool__": lambda self: 1 / 0})()}, "True or False, got Odd"),
        ({"examples": None}, "examples as a sequence of .*, got NoneType None"),
        ({"examples": [("7", "7")]}, "not enough values to unpack"),
        ({"examples": [("7", "7", "right")]}, "'right' is not a valid Status"),
        ({"examples": [(7, "7", "correct")]}, "expected texts, got int"),
        ({"examples": [("\ud800", "7", "correct")]}, "surrogates not allowed"),
        ({"examples": [("7" * 100_001, "7", "incorrect")]}, "examples of at most 100000 bytes in total, got 100002"),
        ({"examples": raised(ZeroDivisionError)}, "attribute examples.*got ZeroDivisionError: planted"),
        ({"requires": raised(SystemExit)}, "attribute requires.*got SystemExit: planted"),
        ({"shown": raised(RuntimeError)}, "attribute shown.*got RuntimeError: planted"),
        ({"read": 3, "judge": 4}, "read and judge to be methods, or neither to exist, got int 3"),
        ({"read": Good.grade}, "read and judge to be methods, or neither to exist, got NoneType None"),
        ({"__getattr__": lambda self, name: self}, "answers_per_process from 0, .*got Changed"),
    ],
)
def test_invalid_attribute_is_named(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadGrader, match=message):
        read_grader_spec(changed(**attributes), trusted=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            type("Text", (str,), {})("x"),
            "a name that is a plain str of at most 1000 printable characters, got 'x', a Text",
        ),
        ("n" * 1001, "a plain str of at most 1000"),
        ("\ud800", "printable characters"),
        ("two\nlines", "printable characters"),
        ("", "an object with a name"),
        (raised(ZeroDivisionError), "got ZeroDivisionError: planted"),
    ],
)
def test_name_must_be_a_plain_line(name: object, message: str) -> None:
    with pytest.raises(BadGrader, match=message):
        as_grader(changed(name=name), where="here")


def test_missing_attributes_have_defaults() -> None:
    spec = read_grader_spec(changed(), trusted=False)
    assert spec == ("good", None, False, False, 8, [], [])
    assert read_grader_spec(changed(), trusted=True).answers_per_process == 0
    endless = read_grader_spec(changed(examples=itertools.repeat(("7", "7", Status.CORRECT))), trusted=False)
    assert len(endless.examples) == MAX_EXAMPLES


@pytest.mark.parametrize(
    ("attribute", "kind", "message"),
    [
        ("Exits", BadGrader, "expected it to load, got SystemExit: 0"),
        ("Hint", BadGrader, "method read.*name 'Nonsense' is not defined"),
    ],
)
def test_pool_rejects_an_invalid_grader_when_it_starts(
    plug_in: Path, attribute: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        GraderPool(f"{plug_in}:{attribute}").grade([("1", "1")])


def test_failure_of_shown_is_an_error_of_one_item(plug_in: Path) -> None:
    with GraderPool(f"{plug_in}:Shows") as pool:
        verdicts = pool.grade([("1", "1!"), ("1", "raise"), ("1", "int"), ("1", "surrogate"), ("1", "1!")])
        counts = pool.counts
    assert [v.status.value for v in verdicts] == ["correct", "error", "error", "incorrect", "correct"]
    assert verdicts[1].detail == "ZeroDivisionError: division by zero"
    assert "expected shown() to return a str or None, got int" in verdicts[2].detail
    assert (counts["error"], counts["correct"]) == (2, 2)


def test_detail_of_a_failed_canary_contains_the_error(plug_in: Path) -> None:
    with GraderPool(f"{plug_in}:Async", num_workers=1) as pool:
        verdict = pool.grade([("1", "1")])[0]
    assert (verdict.status, verdict.method) == (Status.ERROR, "canary")
    assert "known answers got error, error for correct, incorrect: BadGrader" in verdict.detail
    assert "expected a graders.Verdict, got coroutine" in verdict.detail


def test_memory_limit_that_the_loaded_grader_fills_is_rejected(plug_in: Path) -> None:
    with pytest.raises(BadInput, match=r"expected memory_limit_bytes of at least \d+, because the loaded grader needs"):
        GraderPool(f"{plug_in}:Heavy", memory_limit_bytes=1 << 27).grade([("1", "1")])
    with GraderPool(f"{plug_in}:Heavy", memory_limit_bytes=1 << 29) as pool:
        assert pool.grade([("1", "1")])[0].correct


def test_stderr_of_a_grader_that_dies_while_loading_is_quoted(tmp_path: Path) -> None:
    path = tmp_path / "dying.py"
    path.write_text('import os\nos.write(2, b"first\\nout of \\x1b[31mluck\\n")\nos._exit(7)\n')
    with pytest.raises(SandboxUnavailable, match=r"died with exit code 7 \(out of \[31mluck\); run graders doctor"):
        GraderPool(f"{path}:Any").grade([("1", "1")])
    path.write_text("import os\nwhile True: os.write(2, bytes(1 << 16)); os._exit(8)\n")
    with pytest.raises(SandboxUnavailable, match="exit code 8;"):
        GraderPool(f"{path}:Any").grade([("1", "1")])
