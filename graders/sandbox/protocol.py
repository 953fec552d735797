"""The messages between the caller's process, the zygote and the workers, and how they are framed in a pipe.

A frame is a length (u32, little-endian) and that many bytes of msgpack. The length is checked before a byte of it is
kept. A worker's frames are untrusted: they are decoded into the bounded types below and nothing else. None of these
nests, and what does is carried as bytes, for a decoder recurses on the stack of the caller (note G7).
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MAX_FRAME_BYTES = 16 << 20
"""Bound on one frame to a worker: a chunk of completions."""
MAX_RESULT_BYTES = 8 << 20
"""Bound on one frame from a worker."""
MAX_READING_BYTES = 64 << 10
"""Bound on what reading one completion may yield."""
MAX_DETAIL_CHARS = 500
MAX_ANSWER_CHARS = 4096
MAX_GRADER_CHARS = 100
MAX_METHOD_CHARS = 40
MAX_REASON_CHARS = 400
MAX_VERDICT_CHARS = MAX_ANSWER_CHARS + MAX_DETAIL_CHARS + MAX_GRADER_CHARS + MAX_METHOD_CHARS
"""Of all texts of a verdict: answer, detail, and the names of grader and method."""

Role = Literal["grade", "read", "judge"]


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One isolation layer as it stands in a live process: what was observed, not what was asked for."""

    name: Annotated[str, Meta(max_length=40)]
    state: Literal["active", "unavailable", "off"]
    evidence: Annotated[str, Meta(max_length=400)]


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first message to a zygote: everything it must know, none of it secret."""

    spec: str
    origin: str | None
    memory_limit_bytes: int
    time_limit_s: float
    lockdown: bool


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A completion whose verdict is known beforehand: warms a worker up, and serves as its canary."""

    completion: str
    reference: str
    status: str


class Ready(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ready"):
    """A zygote's answer once the grader is loaded and warmed up."""

    name: str
    split: bool
    shows: bool
    runs_programs: bool
    trusted: bool
    answers_per_process: int
    """0 where processes may be kept, 1 where each completion gets one of its own."""
    requires: list[str]
    examples: list[Example]
    layers: list[Layer]


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="refused"):
    """A zygote's answer when the grader cannot be had; `error` names a class of `graders.errors`."""

    error: str
    message: str


class Fork(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="fork"):
    """Ask for a worker; `token` is the caller's number for it."""

    token: int
    role: Role


class End(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="end"):
    """Ask that a worker be killed, if it still lives, and buried."""

    token: int


class Learn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="learn"):
    """Ask that a module be imported for workers to come: one that a locked worker was missing."""

    module: Annotated[str, Meta(max_length=200)]


class Born(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="born"):
    """A worker exists; its three pipe ends travel with this message."""

    token: int
    pid: int


class Stillborn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="stillborn"):
    """A worker could not be forked."""

    token: int
    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARS)]


class Gone(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="gone"):
    """A worker is dead and buried; `exit_code` is negative for a signal."""

    token: int
    exit_code: int


TextTasks = tuple[int, list[tuple[str, str | None, str | None]]]
"""A chunk of work for a grading or reading worker: its number, and (completion, reference, question) of each task.
The number guards against mix-ups; it is no secret, and no proof of anything."""
ReadingTasks = tuple[int, list[tuple[bytes, str, str | None]]]
"""The same for a judge, with an encoded `Read` in the completion's place."""


class Locked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="locked"):
    """A worker's first frame: it is locked down and waits. `pid` is its number where the caller lives, or 0."""

    layers: Annotated[list[Layer], Meta(max_length=32)]
    pid: Annotated[int, Meta(ge=0)]


class Unfit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="unfit"):
    """A worker's only frame, where it could not be locked down or made ready."""

    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARS)]


class Outcomes(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Results of consecutive tasks of a chunk, beginning with number `first`; each is decoded by its role's type."""

    chunk: int
    first: int
    outcomes: Annotated[list[bytes], Meta(max_length=4096)]


class Failure(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="failure"):
    """Why a completion could not be read. There is no way to say "correct" here: a reader owns no verdict (note G1)."""

    status: Literal["over_budget", "error"]
    method: Annotated[str, Meta(max_length=40)]
    detail: Annotated[str, Meta(max_length=MAX_DETAIL_CHARS)]
    duration_s: Annotated[float, Meta(ge=0, le=1e6)]


class Read(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="read"):
    """A completion that was read: the reading, still encoded; only the judge decodes it, into its own bounded type."""

    reading: Annotated[bytes, Meta(max_length=MAX_READING_BYTES)]
    duration_s: Annotated[float, Meta(ge=0, le=1e6)]


def framed(payload: bytes) -> bytes:
    """Give the payload with its length in front."""
    return len(payload).to_bytes(4, "little") + payload


class FrameError(Exception):
    """The other end broke the protocol; it is not to be read any further."""


class FrameBuffer:
    """Bytes from a pipe, cut into frames."""

    def __init__(self, max_bytes: int) -> None:
        self._pending = bytearray()
        self._max_bytes = max_bytes

    def feed(self, received: bytes) -> Iterator[bytes]:
        """Take what was received and give the payloads of the frames that it completes.

        Raises:
            FrameError: a frame announces more bytes than allowed.
        """
        self._pending += received
        begin = 0
        while len(self._pending) - begin >= 4:
            size = int.from_bytes(self._pending[begin : begin + 4], "little")
            if size > self._max_bytes:
                raise FrameError(f"expected a frame of at most {self._max_bytes} bytes, got one of {size}")
            if len(self._pending) - begin < 4 + size:
                break
            yield bytes(self._pending[begin + 4 : begin + 4 + size])
            begin += 4 + size
        del self._pending[:begin]
