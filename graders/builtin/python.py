"""Runs the Python program of a completion on input and output tests, inside a locked worker only.

The reference is JSON: `{"inputs": [text, …], "outputs": [text, …]}` or `[{"input": text, "output": text}, …]`. The
process that runs the program receives only the inputs, runs nothing else, and is discarded. Another process compares
the output, so no exit code, marker or forged result can pass a test (note G1).
"""

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from graders.errors import BadReference, SandboxUnavailable
from graders.grader import GraderOptions
from graders.sandbox.child.run_program import MAX_OUTPUT_BYTES, Run, is_locked, run_program
from graders.verdict import Status, Verdict

MAX_TESTS = 256
_FENCE = re.compile(r"```(?:python|py|python3)?[ \t]*\r?\n(.*?)```", re.DOTALL | re.IGNORECASE)
_PRELOADED = (
    "array, base64, bisect, cmath, collections, copy, dataclasses, datetime, decimal, enum, fractions, functools, "
    "heapq, io, itertools, json, math, operator, os, queue, random, re, statistics, string, sys, time, typing, zlib"
)
_DOUBLED = '[{"input": "2", "output": "4"}]'


class Runs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The program of a completion and its run on each input; None and an empty list without a program."""

    program: Annotated[str, Meta(max_length=MAX_OUTPUT_BYTES)] | None
    runs: Annotated[list[Run], Meta(max_length=MAX_TESTS)]


class _Test(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input: str
    output: str


class _Tests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    inputs: list[str]
    outputs: list[str]


class PythonGrader:
    """Correct if the last fenced program prints the expected lines for every input; trailing blanks are ignored."""

    name = "python"
    options = GraderOptions(
        examples=(
            (f"```python\nimport {_PRELOADED}\nprint(int(input()) * 2)\n```", _DOUBLED, "correct"),
            ("```python\nprint(open(0).read())\n```", _DOUBLED, "incorrect"),
        ),
        requires=("seccomp", "rlimits"),
        answers_per_process=1,
        runs_programs=True,
    )

    def shown(self, reference: str, question: str | None) -> str:
        """Return the inputs, the only part of the reference that the program may see."""
        try:
            return msgspec.json.encode([test.input for test in _tests(reference)]).decode()
        except BadReference:
            return "[]"  # `judge` reports it for this item

    def read(self, completion: str, *, question: str | None = None) -> Runs:
        """Run the program on every input.

        Raises:
            SandboxUnavailable: this process is not locked down.
        """
        if not is_locked() and completion not in (example[0] for example in self.options.examples):
            raise SandboxUnavailable(
                "python grader: expected a locked sandbox process, got an open one; grade through GraderPool"
            )
        blocks = _FENCE.findall(completion)
        if not blocks:
            return Runs(None, [])
        program = blocks[-1]
        runs: list[Run] = []
        left = MAX_OUTPUT_BYTES
        for text in msgspec.json.decode(question or "[]", type=list[str]):
            runs.append(run_program(program, text, left))
            left -= len(runs[-1].printed.encode())
            if runs[-1].end != "finished":
                break
        return Runs(program[:4000], runs)

    def judge(self, reading: Runs, reference: str, *, question: str | None = None) -> Verdict:
        """Compare the printed output with the expected output of each test.

        Raises:
            BadReference: the reference is not a list of tests.
        """
        tests = _tests(reference)
        if reading.program is None:
            return self._verdict(Status.NO_ANSWER, reading, "expected a fenced Python program, found none")
        for number, (test, run) in enumerate(zip(tests, reading.runs, strict=False), start=1):
            if run.end == "output limit":
                return self._verdict(
                    Status.OVER_BUDGET, reading, f"test {number}: printed more than {MAX_OUTPUT_BYTES} bytes"
                )
            if run.end == "raised":
                return self._verdict(Status.INCORRECT, reading, f"test {number}: {run.failure}")
            if _lines(run.printed) != _lines(test.output):
                return self._verdict(Status.INCORRECT, reading, f"test {number}: printed {run.printed[:80]!r}")
        if len(reading.runs) < len(tests):
            return self._verdict(Status.INCORRECT, reading, f"only {len(reading.runs)} of {len(tests)} tests were run")
        return self._verdict(Status.CORRECT, reading, f"{len(tests)} tests passed")

    def grade(self, completion: str, reference: str, *, question: str | None = None) -> Verdict:
        """Read and judge; raises what they raise."""
        return self.judge(self.read(completion, question=self.shown(reference, question)), reference)

    def _verdict(self, status: Status, reading: Runs, detail: str) -> Verdict:
        return Verdict(status, reading.program, self.name, "tests", detail, 0.0)


def _lines(printed: str) -> list[str]:
    return [line.rstrip() for line in printed.rstrip().splitlines()]


def _tests(reference: str) -> list[_Test]:
    try:
        tests = msgspec.json.decode(reference, type=list[_Test] | _Tests)
    except msgspec.MsgspecError as error:
        raise BadReference(
            f"python grader: expected input and output tests as JSON, got {reference[:60]!r}: {error}"
        ) from error
    if isinstance(tests, _Tests):
        if len(tests.inputs) != len(tests.outputs):
            raise BadReference(
                f"python grader: expected as many outputs as inputs, got {len(tests.outputs)} and {len(tests.inputs)}"
            )
        tests = [_Test(*pair) for pair in zip(tests.inputs, tests.outputs, strict=True)]
    if not 0 < len(tests) <= MAX_TESTS:
        raise BadReference(f"python grader: expected 1 to {MAX_TESTS} tests, got {len(tests)}")
    return tests
