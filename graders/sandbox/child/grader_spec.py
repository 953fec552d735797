"""What a grader says of itself, read once and checked: its attributes are a stranger's, and may be anything."""

import itertools
import typing
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from graders.errors import BadGrader
from graders.grader import Grader, loaded, option_of
from graders.sandbox.diagnostics import kind_of
from graders.sandbox.protocol import Example
from graders.verdict import Status

SEMI_TRUSTED_BATCH = 8
"""Answers that a third-party grader gives before its process is thrown away."""
MAX_ANSWERS_PER_PROCESS = 1024
MAX_EXAMPLES = 256
MAX_EXAMPLE_BYTES = 100_000
"""Of all examples together: they travel in one message."""


class Declared(NamedTuple):
    """A grader's attributes, of exact types.

    Args:
        name: its name.
        reader: decodes what `read` gives; None where the grader is in one piece.
        shows: whether it says what of a reference its reading half may see.
        runs_programs: whether reading runs code of the completion.
        answers_per_process: 0 where processes may be kept.
        requires: the isolation layers without which it must not run.
        examples: known answers.
    """

    name: str
    reader: "msgspec.msgpack.Decoder[Any] | None"
    shows: bool
    runs_programs: bool
    answers_per_process: int
    requires: list[str]
    examples: list[Example]


def declared(grader: Grader, *, trusted: bool) -> Declared:
    """Read what a grader says of itself.

    Raises:
        BadGrader: an attribute is not what it should be; names it.
    """
    name, default = grader.name, 0 if trusted else SEMI_TRUSTED_BATCH
    batch = _attribute(grader, name, "answers_per_process", default)
    if type(batch) is not int or not 0 <= batch <= MAX_ANSWERS_PER_PROCESS:
        raise _bad(name, f"answers_per_process from 0, for no bound, to {MAX_ANSWERS_PER_PROCESS}", batch)
    requires = _attribute(grader, name, "requires", ())
    if type(requires) not in (list, tuple, frozenset, set) or any(type(layer) is not str for layer in requires):
        raise _bad(name, "requires to be a sequence of names of layers", requires)
    runs_programs = _attribute(grader, name, "runs_programs", False)
    if type(runs_programs) is not bool:
        raise _bad(name, "runs_programs to be True or False", runs_programs)
    return Declared(
        name,
        _reader(grader, name),
        callable(_attribute(grader, name, "shown", None)),
        runs_programs,
        batch,
        list(requires),
        _examples(name, _attribute(grader, name, "examples", ())),
    )


def _attribute(grader: Grader, name: str, attribute: str, default: Any) -> Any:
    return loaded(lambda: option_of(grader, attribute, default), f"{name}, attribute {attribute}")


def _reader(grader: Grader, name: str) -> "msgspec.msgpack.Decoder[Any] | None":
    read, judge = (_attribute(grader, name, half, None) for half in ("read", "judge"))
    if read is None and judge is None:
        return None
    if not callable(read) or not callable(judge):
        raise _bad(name, "read and judge to be methods, or neither to exist", judge if callable(read) else read)
    return loaded(lambda: reading_decoder(read), f"{name}, method read")


def reading_decoder(read: Any) -> "msgspec.msgpack.Decoder[Any]":
    """Give the decoder of the type that a reading half states as its result."""
    return msgspec.msgpack.Decoder(typing.get_type_hints(read).get("return", Any))


def _examples(name: str, given: Any) -> list[Example]:
    if not isinstance(given, Iterable):
        raise _bad(name, "examples as a sequence of (completion, reference, status)", given)
    entries = loaded(lambda: list(itertools.islice(given, MAX_EXAMPLES)), f"{name}, attribute examples")
    examples = [_example(name, entry) for entry in entries]
    if sum(len(text.encode()) for example in examples for text in (example.completion, example.reference)) > (
        MAX_EXAMPLE_BYTES
    ):
        raise BadGrader(f"grader {name!r}: expected examples of at most {MAX_EXAMPLE_BYTES} bytes in all, got more")
    return examples


def _example(name: str, entry: Any) -> Example:
    try:
        completion, reference, status = entry
        for text in (completion, reference):
            if type(text) is not str:
                raise TypeError(f"expected texts, got {kind_of(text)}")
            text.encode()
        return Example(completion, reference, Status(status).value)
    except (TypeError, ValueError) as error:
        raise BadGrader(
            f"grader {name!r}: expected examples as (completion, reference, status), got {entry!r:.100}: {error}"
        ) from error


def _bad(name: str, expected: str, got: Any) -> BadGrader:
    shown = f" {got!r:.60}" if type(got) in (str, int, float, bool, type(None)) else ""
    return BadGrader(f"grader {name!r}: expected {expected}, got {kind_of(got)}{shown}")
