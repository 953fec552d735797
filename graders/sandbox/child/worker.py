"""The process that grades: it takes chunks of work from one pipe and writes what came of them to another.

It runs forked from the zygote, locked down, and is killed whenever it is in doubt. It tells the caller which task it is
at by one byte per task begun in a third pipe, which nobody watches until a deadline passes: so the culprit of a hang
or a crash is known exactly, at the price of one cheap system call per answer (note G3).
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from graders.sandbox import protocol
from graders.sandbox.child.grader_spec import Declared
from graders.sandbox.child.late_imports import LateImportError, Watch
from graders.sandbox.child.validate_verdict import sound
from graders.sandbox.diagnostics import describe, one_line
from graders.sandbox.protocol import Failure, Read, Role
from graders.verdict import Status, Verdict

FLUSH_S = 0.0005
"""Results wait at most this long, plus one task, before they are sent: the bound on how wrong a deadline can be."""

_TOO_MANY_DIGITS = "ValueError: Exceeds the limit ("
"""What Python says of a numeral that is longer than it may take the time to convert."""

Step = Callable[..., bytes]
"""(completion or encoded reading, reference, question) to an encoded outcome."""


def step_for(role: Role, grader: Any, said: Declared, watch: Watch) -> tuple[Step, Any]:
    """Give the function that does one task of a role, and the type its chunks decode to."""
    if role == "read":
        return _reader(grader, said, watch), protocol.TextTasks
    if role == "judge":
        return _judge(grader, said, watch), protocol.ReadingTasks
    return _grader(grader, said, watch), protocol.TextTasks


def serve(step: Step, task_type: Any, tasks_fd: int, results_fd: int, progress_fd: int) -> None:
    """Do chunk after chunk until the caller closes the pipe of tasks."""
    decoder = msgspec.msgpack.Decoder(task_type)
    for payload in _payloads(tasks_fd):
        chunk, tasks = decoder.decode(payload)
        _do_chunk(step, chunk, tasks, results_fd, progress_fd)


def send(fd: int, message: Any) -> None:
    """Write one frame, whole."""
    unsent = memoryview(protocol.framed(msgspec.msgpack.encode(message)))
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


def _grader(grader: Any, said: Declared, watch: Watch) -> Step:
    def step(completion: str, reference: str | None, question: str | None) -> bytes:
        return _verdict(said.name, watch, lambda: grader.grade(completion, reference, question=question))

    return step


def _judge(grader: Any, said: Declared, watch: Watch) -> Step:
    read_decoder, reading_decoder = msgspec.msgpack.Decoder(Read), said.reader
    assert reading_decoder is not None

    def step(encoded: bytes, reference: str, question: str | None) -> bytes:
        try:
            read = read_decoder.decode(encoded)
            reading = reading_decoder.decode(read.reading)
        except (msgspec.MsgspecError, RecursionError) as error:
            detail = f"not a {reading_decoder.type}: {describe(error)}"
            return _encoded(_failed(said.name, "error", "reading", detail, 0.0))
        return _verdict(said.name, watch, lambda: grader.judge(reading, reference, question=question), read.duration_s)

    return step


def _reader(grader: Any, said: Declared, watch: Watch) -> Step:
    encode = msgspec.msgpack.encode

    def step(completion: str, reference: str | None, question: str | None) -> bytes:
        begin = time.perf_counter()
        try:
            watch.forget()
            reading = encode(grader.read(completion, question=question))
            if not said.runs_programs:  # whose imports are its own affair
                watch.check()
            if len(reading) > protocol.MAX_READING_BYTES:
                return encode(Failure("over_budget", "size", "the reading is too large", _since(begin)))
            return encode(Read(reading, _since(begin)))
        except BaseException as error:  # noqa: BLE001  the worker's outer edge: whatever a grader raises is an outcome
            return encode(Failure(*_cause(error, watch), _since(begin)))

    return step


def _verdict(name: str, watch: Watch, decide: Callable[[], Any], spent_s: float = 0.0) -> bytes:
    """Give the encoded verdict of a grader, or the verdict on the grader if it fails to give a sound one."""
    begin = time.perf_counter() - spent_s
    try:
        watch.forget()
        given = decide()
        watch.check()
        return _encoded(sound(given, name, _since(begin)))
    except BaseException as error:  # noqa: BLE001  the worker's outer edge: whatever a grader raises is an outcome
        return _encoded(_failed(name, *_cause(error, watch), _since(begin)))


def _cause(error: BaseException, watch: Watch) -> tuple[Literal["over_budget", "error"], str, str]:
    """Give status, method and detail for what a grader raised."""
    try:
        watch.check()
    except LateImportError as late:  # whatever was raised may be a consequence of it
        error = late
    if isinstance(error, LateImportError):
        return "error", "tainted", one_line(str(error))
    if isinstance(error, MemoryError | RecursionError):
        return "over_budget", "memory" if isinstance(error, MemoryError) else "recursion", describe(error)
    said = describe(error)
    if said.startswith(_TOO_MANY_DIGITS):
        return "over_budget", "digits", said
    return "error", "exception", said


def _failed(grader: str, status: str, method: str, detail: str, duration_s: float) -> Verdict:
    return Verdict(
        Status(status),
        None,
        grader[: protocol.MAX_GRADER_CHARS],
        method,
        detail[: protocol.MAX_DETAIL_CHARS],
        duration_s,
    )


def _encoded(verdict: Verdict) -> bytes:
    return msgspec.msgpack.encode(verdict)


def _since(begin: float) -> float:
    return max(0.0, time.perf_counter() - begin)
