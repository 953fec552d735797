"""Worker: the sandboxed process that grades chunks of tasks from one pipe and writes their outcomes to another.

A worker is forked from the zygote and is killed in case of doubt. It writes one byte per task begun to a third pipe,
which the caller reads only after a deadline or a crash. This identifies the offending task exactly, for the price of
one cheap system call per answer (note G3).
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from graders.sandbox import protocol
from graders.sandbox.child.grader_spec import GraderSpec
from graders.sandbox.child.late_imports import LateImportError, LateImportWatch
from graders.sandbox.child.validate_verdict import validate_verdict
from graders.sandbox.diagnostics import describe, one_line
from graders.sandbox.protocol import Failure, Read, Role
from graders.verdict import Status, Verdict

FLUSH_S = 0.0005
"""Results are sent at most this long, plus one task, after they are known: the error of a deadline is bounded by it."""

_TOO_MANY_DIGITS = "ValueError: Exceeds the limit ("
"""The beginning of Python's message about a numeral that is too long to convert."""

Step = Callable[..., bytes]
"""Maps (completion or encoded reading, reference, question) to an encoded outcome."""


def make_step(role: Role, grader: Any, spec: GraderSpec, watch: LateImportWatch) -> tuple[Step, Any]:
    """Return the function that does one task of a role, and the type of a chunk of such tasks."""
    if role == "read":
        return _read_step(grader, spec, watch), protocol.TextTasks
    if role == "judge":
        return _judge_step(grader, spec, watch), protocol.ReadingTasks
    return _grade_step(grader, spec, watch), protocol.TextTasks


def do_chunks(step: Step, chunk_type: Any, tasks_fd: int, results_fd: int, progress_fd: int) -> None:
    """Do one chunk after another until the caller closes the task pipe."""
    decoder = msgspec.msgpack.Decoder(chunk_type)
    for payload in _payloads(tasks_fd):
        chunk, tasks = decoder.decode(payload)
        _do_chunk(step, chunk, tasks, results_fd, progress_fd)


def send(fd: int, message: Any) -> None:
    """Write one complete frame."""
    unsent = memoryview(protocol.encode_frame(msgspec.msgpack.encode(message)))
    while unsent:
        unsent = unsent[os.write(fd, unsent) :]


def _do_chunk(step: Step, chunk: int, tasks: list[Any], results_fd: int, progress_fd: int) -> None:
    outcomes: list[bytes] = []
    sent_at, first = time.perf_counter(), 0
    for number, task in enumerate(tasks, start=1):
        os.write(progress_fd, b".")
        outcomes.append(step(*task))
        now = time.perf_counter()
        if number == len(tasks) or now - sent_at > FLUSH_S:
            send(results_fd, (chunk, first, outcomes))
            outcomes, sent_at, first = [], now, number


def _payloads(fd: int) -> Iterator[bytes]:
    buffer = protocol.FrameBuffer(protocol.MAX_FRAME_BYTES)
    while received := os.read(fd, 1 << 20):
        yield from buffer.feed(received)


def _grade_step(grader: Any, spec: GraderSpec, watch: LateImportWatch) -> Step:
    def step(completion: str, reference: str | None, question: str | None) -> bytes:
        return _verdict(spec.name, watch, lambda: grader.grade(completion, reference, question=question))

    return step


def _judge_step(grader: Any, spec: GraderSpec, watch: LateImportWatch) -> Step:
    read_decoder, reading_decoder = msgspec.msgpack.Decoder(Read), spec.reading_decoder
    assert reading_decoder is not None

    def step(encoded: bytes, reference: str, question: str | None) -> bytes:
        try:
            read = read_decoder.decode(encoded)
            reading = reading_decoder.decode(read.reading)
        except (msgspec.MsgspecError, RecursionError) as error:
            detail = f"not a {reading_decoder.type}: {describe(error)}"
            return _encode(_failure_verdict(spec.name, "error", "reading", detail, 0.0))
        return _verdict(spec.name, watch, lambda: grader.judge(reading, reference, question=question), read.duration_s)

    return step


def _read_step(grader: Any, spec: GraderSpec, watch: LateImportWatch) -> Step:
    encode = msgspec.msgpack.encode

    def step(completion: str, reference: str | None, question: str | None) -> bytes:
        begin = time.perf_counter()
        try:
            watch.reset()
            reading = encode(grader.read(completion, question=question))
            if not spec.runs_programs:  # a program's imports do not affect the grader
                watch.check()
            if len(reading) > protocol.MAX_READING_BYTES:
                return encode(Failure("over_budget", "size", "the reading is too large", _since(begin)))
            return encode(Read(reading, _since(begin)))
        except BaseException as error:  # noqa: BLE001  the worker's outer edge: any exception becomes an outcome
            return encode(Failure(*_explain(error, watch), _since(begin)))

    return step


def _verdict(name: str, watch: LateImportWatch, decide: Callable[[], Any], spent_s: float = 0.0) -> bytes:
    """Return the encoded verdict of a grader, or an error verdict if the grader fails to return a valid one."""
    begin = time.perf_counter() - spent_s
    try:
        watch.reset()
        result = decide()
        watch.check()
        return _encode(validate_verdict(result, name, _since(begin)))
    except BaseException as error:  # noqa: BLE001  the worker's outer edge: any exception becomes an outcome
        return _encode(_failure_verdict(name, *_explain(error, watch), _since(begin)))


def _explain(error: BaseException, watch: LateImportWatch) -> tuple[Literal["over_budget", "error"], str, str]:
    """Return status, method and detail for an exception of a grader."""
    try:
        watch.check()
    except LateImportError as late:  # the exception may be a consequence of the late import
        error = late
    if isinstance(error, LateImportError):
        return "error", "tainted", one_line(str(error))
    if isinstance(error, MemoryError | RecursionError):
        return "over_budget", "memory" if isinstance(error, MemoryError) else "recursion", describe(error)
    description = describe(error)
    if description.startswith(_TOO_MANY_DIGITS):
        return "over_budget", "digits", description
    return "error", "exception", description


def _failure_verdict(grader: str, status: str, method: str, detail: str, duration_s: float) -> Verdict:
    name, detail = grader[: protocol.MAX_GRADER_CHARS], detail[: protocol.MAX_DETAIL_CHARS]
    return Verdict(Status(status), None, name, method, detail, duration_s)


def _encode(verdict: Verdict) -> bytes:
    return msgspec.msgpack.encode(verdict)


def _since(begin: float) -> float:
    return max(0.0, time.perf_counter() - begin)
