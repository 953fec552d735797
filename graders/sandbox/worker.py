"""The process that grades: it takes chunks of work from one pipe and writes what came of them to another.

It runs forked from the zygote, locked down, and is killed whenever it is in doubt. It tells the caller which task it is
at by one byte per task begun in a third pipe, which nobody watches until a deadline passes: so the culprit of a hang
or a crash is known exactly, at the price of one cheap system call per answer (note G3).

Touches: its three pipes.
"""

import os
import time
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from graders.grader import Grader, SplitGrader
from graders.sandbox import frames
from graders.sandbox.frames import Failure, Read, Role
from graders.sandbox.taint import LateImportError, Watch
from graders.verdict import Status, Verdict

FLUSH_S = 0.0005
"""Results wait at most this long, plus one task, before they are sent: the bound on how wrong a deadline can be."""

Step = Callable[..., bytes]
"""(completion or encoded reading, reference, question) to an encoded outcome."""


def step_for(role: Role, grader: Grader, watch: Watch) -> tuple[Step, Any]:
    """Give the function that does one task of a role, and the type its chunks decode to."""
    if role == "read":
        return _reader(grader, watch), frames.TextTasks
    if role == "judge":
        return _judge(grader, watch), frames.ReadingTasks
    return _grader(grader, watch), frames.TextTasks


def serve(step: Step, task_type: Any, tasks_fd: int, results_fd: int, progress_fd: int) -> None:
    """Do chunk after chunk until the caller closes the pipe of tasks."""
    decoder = msgspec.msgpack.Decoder(task_type)
    for payload in _payloads(tasks_fd):
        chunk, tasks = decoder.decode(payload)
        _do_chunk(step, chunk, tasks, results_fd, progress_fd)


def send(fd: int, message: Any) -> None:
    """Write one frame, whole."""
    unsent = memoryview(frames.framed(msgspec.msgpack.encode(message)))
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
    buffer = frames.FrameBuffer(frames.MAX_FRAME_BYTES)
    while received := os.read(fd, 1 << 20):
        yield from buffer.feed(received)


def _grader(grader: Grader, watch: Watch) -> Step:
    def step(completion: str, reference: str | None, question: str | None) -> bytes:
        assert reference is not None
        return _verdict(grader, watch, lambda: grader.grade(completion, reference, question=question))

    return step


def _judge(grader: Any, watch: Watch) -> Step:
    reading_type = typing.get_type_hints(grader.read).get("return", Any)
    read_decoder = msgspec.msgpack.Decoder(Read)
    reading_decoder = msgspec.msgpack.Decoder(reading_type)

    def step(encoded: bytes, reference: str, question: str | None) -> bytes:
        try:
            read = read_decoder.decode(encoded)
            reading = reading_decoder.decode(read.reading)
        except (msgspec.MsgspecError, RecursionError) as error:
            return _encoded(_failed(grader.name, "error", "reading", f"not a {reading_type}: {describe(error)}", 0.0))
        return _verdict(grader, watch, lambda: grader.judge(reading, reference, question=question), read.duration_s)

    return step


def _reader(grader: Any, watch: Watch) -> Step:
    encode = msgspec.msgpack.encode
    imports_are_its_own = not getattr(grader, "runs_programs", False)

    def step(completion: str, reference: str | None, question: str | None) -> bytes:
        begin = time.perf_counter()
        try:
            watch.forget()
            reading = encode(grader.read(completion, question=question))
            if imports_are_its_own:
                watch.check()
            if len(reading) > frames.MAX_READING_BYTES:
                return encode(Failure("over_budget", "size", "the reading is too large", _since(begin)))
            return encode(Read(reading, _since(begin)))
        except BaseException as error:  # noqa: BLE001  the worker's outer edge: whatever a grader raises is an outcome
            return encode(Failure(*_cause(error, watch), _since(begin)))

    return step


def _verdict(grader: Grader | SplitGrader, watch: Watch, decide: Callable[[], Any], spent_s: float = 0.0) -> bytes:
    """Give the encoded verdict of a grader, or the verdict on the grader if it fails to give a sound one."""
    begin = time.perf_counter() - spent_s
    try:
        watch.forget()
        verdict = decide()
        watch.check()
        if not isinstance(verdict, Verdict):
            raise TypeError(f"expected a Verdict, got {type(verdict).__name__}")
        encoded = _encoded(_within_bounds(verdict, _since(begin)))
        msgspec.msgpack.decode(encoded, type=Verdict)  # constructors check no types; the caller will
        return encoded
    except BaseException as error:  # noqa: BLE001  the worker's outer edge: whatever a grader raises is an outcome
        return _encoded(_failed(grader.name, *_cause(error, watch), _since(begin)))


def _cause(error: BaseException, watch: Watch) -> tuple[Literal["over_budget", "error"], str, str]:
    """Give status, method and detail for what a grader raised."""
    try:
        watch.check()
    except LateImportError as late:  # whatever was raised may be a consequence of it
        error = late
    if isinstance(error, LateImportError):
        return "error", "tainted", describe(error)
    if isinstance(error, MemoryError | RecursionError):
        return "over_budget", "memory" if isinstance(error, MemoryError) else "recursion", describe(error)
    return "error", "exception", describe(error)


def _within_bounds(verdict: Verdict, duration_s: float) -> Verdict:
    answer = verdict.answer
    return Verdict(
        verdict.status,
        answer[: frames.MAX_ANSWER_CHARS] if answer is not None else None,
        verdict.grader[:100],
        verdict.method[:40],
        verdict.detail[: frames.MAX_DETAIL_CHARS],
        duration_s,
    )


def _failed(grader: str, status: str, method: str, detail: str, duration_s: float) -> Verdict:
    return Verdict(Status(status), None, grader[:100], method, detail[: frames.MAX_DETAIL_CHARS], duration_s)


def _encoded(verdict: Verdict) -> bytes:
    return msgspec.msgpack.encode(verdict)


def _since(begin: float) -> float:
    return max(0.0, time.perf_counter() - begin)


def describe(error: BaseException) -> str:
    """Give an exception as one bounded, encodable line, even if its own `__str__` fails."""
    try:
        text = str(error) if isinstance(error, LateImportError) else f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  the text of a hostile exception is hostile code
        text = type(error).__name__
    return text[: frames.MAX_DETAIL_CHARS].encode("utf-8", "replace").decode().replace("\n", " ")
