"""Sandbox protocol: the messages between the caller, the zygote and the workers, and their framing in a pipe.

A frame is a length (u32, little-endian) followed by that many bytes of msgpack. The length is checked before any of
the payload is stored. Frames from a worker are untrusted: they are decoded into the bounded types below and nothing
else. None of these types nests, and nested data is carried as bytes, because a decoder recurses on the stack of the
caller (note G7).
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MAX_FRAME_BYTES = 16 << 20
"""Limit on a frame sent to a worker: one chunk of completions."""
MAX_RESULT_BYTES = 8 << 20
"""Limit on a frame received from a worker."""
MAX_READING_BYTES = 64 << 10
"""Limit on the encoded result of reading one completion."""
MAX_DETAIL_CHARS = 500
MAX_ANSWER_CHARS = 4096
MAX_GRADER_CHARS = 100
MAX_METHOD_CHARS = 40
MAX_REASON_CHARS = 400
MAX_VERDICT_CHARS = MAX_ANSWER_CHARS + MAX_DETAIL_CHARS + MAX_GRADER_CHARS + MAX_METHOD_CHARS
"""Limit on all texts of a verdict together: answer, detail, grader and method."""

Role = Literal["grade", "read", "judge"]


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One isolation layer of a live process: the observed state, not the requested one."""

    name: Annotated[str, Meta(max_length=40)]
    state: Literal["active", "unavailable", "off"]
    evidence: Annotated[str, Meta(max_length=400)]


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Caller to zygote, first: its complete configuration, which contains no secrets."""

    spec: str
    origin: str | None
    memory_limit_bytes: int
    time_limit_s: float
    lockdown: bool


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A completion with a known verdict, used to warm up workers and as a canary."""

    completion: str
    reference: str
    status: str


class Ready(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ready"):
    """Zygote to caller, first: the grader is loaded and warmed up."""

    name: str
    split: bool
    has_shown: bool
    runs_programs: bool
    trusted: bool
    answers_per_process: int
    """0: processes may be kept; otherwise the number of completions after which a process is replaced."""
    requires: list[str]
    examples: list[Example]
    layers: list[Layer]


class LoadFailed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="load_failed"):
    """Zygote to caller, first: the grader cannot be loaded; `error` names a class of `graders.errors`."""

    error: str
    message: str


class Spawn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="spawn"):
    """Caller to zygote: fork a worker; `token` is the caller's number for it."""

    token: int
    role: Role


class Kill(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="kill"):
    """Caller to zygote: kill a worker if it is alive, and reap it."""

    token: int


class Preload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="preload"):
    """Caller to zygote: import a module that a worker tried to import, so that workers forked later have it."""

    module: Annotated[str, Meta(max_length=200)]


class Started(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="started"):
    """Zygote to caller: a worker was forked; the caller's ends of its three pipes are attached to this message."""

    token: int
    pid: int


class SpawnFailed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="spawn_failed"):
    """Zygote to caller: a worker could not be forked."""

    token: int
    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARS)]


class Exited(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="exited"):
    """Zygote to caller: a worker was reaped; `exit_code` is negative for a signal."""

    token: int
    exit_code: int


TextTasks = tuple[int, list[tuple[str, str | None, str | None]]]
"""Caller to worker: the number of a chunk, and (completion, reference, question) per task. The number detects
mix-ups; it is neither secret nor a proof of origin."""
ReadingTasks = tuple[int, list[tuple[bytes, str, str | None]]]
"""A chunk for a judging worker: an encoded `Read` replaces the completion."""


class Sandboxed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sandboxed"):
    """Worker to caller, first: its sandbox is in place. `pid` is its process id in the caller's namespace, or 0."""

    layers: Annotated[list[Layer], Meta(max_length=32)]
    pid: Annotated[int, Meta(ge=0)]


class StartFailed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="start_failed"):
    """Worker to caller, first: it could not set up its sandbox, and exits."""

    reason: Annotated[str, Meta(max_length=MAX_REASON_CHARS)]


class Outcomes(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Worker to caller: results of consecutive tasks from position `first`, each to be decoded by the role's type."""

    chunk: int
    first: int
    outcomes: Annotated[list[bytes], Meta(max_length=4096)]


class Failure(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="failure"):
    """The reason why a completion could not be read. The type cannot express "correct" (note G1)."""

    status: Literal["over_budget", "error"]
    method: Annotated[str, Meta(max_length=40)]
    detail: Annotated[str, Meta(max_length=MAX_DETAIL_CHARS)]
    duration_s: Annotated[float, Meta(ge=0, le=1e6)]


class Read(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="read"):
    """A successful reading, still encoded; only the judge decodes it, into the grader's bounded type."""

    reading: Annotated[bytes, Meta(max_length=MAX_READING_BYTES)]
    duration_s: Annotated[float, Meta(ge=0, le=1e6)]


def encode_frame(payload: bytes) -> bytes:
    """Return the payload with its length in front."""
    return len(payload).to_bytes(4, "little") + payload


class FrameError(Exception):
    """The peer violated the protocol; its pipe must not be read any further."""


class FrameBuffer:
    """Splits bytes from a pipe into frames of at most `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._pending = bytearray()
        self._max_bytes = max_bytes

    def feed(self, received: bytes) -> Iterator[bytes]:
        """Append received bytes and yield the payload of each completed frame.

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
