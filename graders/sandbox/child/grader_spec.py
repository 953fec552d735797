"""Grader specification: the attributes of a grader, read once and validated; third-party values can be anything."""

import itertools
import typing
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from graders.errors import BadGrader
from graders.grader import Grader, loaded, option_of
from graders.sandbox.diagnostics import type_name
from graders.sandbox.protocol import Example
from graders.verdict import Status

SEMI_TRUSTED_BATCH = 8
"""Answers after which a process of a third-party grader is replaced, by default."""
MAX_ANSWERS_PER_PROCESS = 1024
MAX_EXAMPLES = 256
MAX_EXAMPLE_BYTES = 100_000
"""Limit on all examples together, because they are sent in one message."""


class GraderSpec(NamedTuple):
    """The attributes of a grader, with exact types.

    Args:
        name: its name.
        reading_decoder: decodes the result of `read`; None if the grader is not split.
        has_shown: True if it has a method `shown`, which selects the text that its reading half may see.
        runs_programs: True if reading runs code of the completion.
        answers_per_process: answers after which a process is replaced; 0 for no limit.
        requires: isolation layers without which it must not run.
        examples: completions with known verdicts.
    """

    name: str
    reading_decoder: "msgspec.msgpack.Decoder[Any] | None"
    has_shown: bool
    runs_programs: bool
    answers_per_process: int
    requires: list[str]
    examples: list[Example]


def read_grader_spec(grader: Grader, *, trusted: bool) -> GraderSpec:
    """Read and validate the attributes of a grader. By default, processes of a trusted grader are kept.

    Raises:
        BadGrader: an attribute is invalid; the message contains its name.
    """
    name, default = grader.name, 0 if trusted else SEMI_TRUSTED_BATCH
    batch = _attribute(grader, name, "answers_per_process", default)
    if type(batch) is not int or not 0 <= batch <= MAX_ANSWERS_PER_PROCESS:
        raise _bad(name, f"answers_per_process from 0, for no limit, to {MAX_ANSWERS_PER_PROCESS}", batch)
    requires = _attribute(grader, name, "requires", ())
    if type(requires) not in (list, tuple, frozenset, set) or any(type(layer) is not str for layer in requires):
        raise _bad(name, "requires to be a sequence of names of layers", requires)
    runs_programs = _attribute(grader, name, "runs_programs", False)
    if type(runs_programs) is not bool:
        raise _bad(name, "runs_programs to be True or False", runs_programs)
    return GraderSpec(
        name,
        _reading_decoder(grader, name),
        callable(_attribute(grader, name, "shown", None)),
        runs_programs,
        batch,
        list(requires),
        _examples(name, _attribute(grader, name, "examples", ())),
    )


def reading_decoder(read: Any) -> "msgspec.msgpack.Decoder[Any]":
    """Return a decoder of the return type that the method `read` is annotated with."""
    return msgspec.msgpack.Decoder(typing.get_type_hints(read).get("return", Any))


def _attribute(grader: Grader, name: str, attribute: str, default: Any) -> Any:
    return loaded(lambda: option_of(grader, attribute, default), f"{name}, attribute {attribute}")


def _reading_decoder(grader: Grader, name: str) -> "msgspec.msgpack.Decoder[Any] | None":
    read, judge = (_attribute(grader, name, half, None) for half in ("read", "judge"))
    if read is None and judge is None:
        return None
    if not callable(read) or not callable(judge):
        raise _bad(name, "read and judge to be methods, or neither to exist", judge if callable(read) else read)
    return loaded(lambda: reading_decoder(read), f"{name}, method read")


def _examples(name: str, examples: Any) -> list[Example]:
    if not isinstance(examples, Iterable):
        raise _bad(name, "examples as a sequence of (completion, reference, status)", examples)
    entries = loaded(lambda: list(itertools.islice(examples, MAX_EXAMPLES)), f"{name}, attribute examples")
    checked = [_example(name, entry) for entry in entries]
    size = sum(len(text.encode()) for example in checked for text in (example.completion, example.reference))
    if size > MAX_EXAMPLE_BYTES:
        raise BadGrader(f"grader {name!r}: expected examples of at most {MAX_EXAMPLE_BYTES} bytes in total, got {size}")
    return checked


def _example(name: str, entry: Any) -> Example:
    try:
        completion, reference, status = entry
        for text in (completion, reference):
            if type(text) is not str:
                raise TypeError(f"expected texts, got {type_name(text)}")
            text.encode()
        return Example(completion, reference, Status(status).value)
    except (TypeError, ValueError) as error:
        raise BadGrader(
            f"grader {name!r}: expected examples as (completion, reference, status), got {entry!r:.100}: {error}"
        ) from error


def _bad(name: str, expected: str, got: Any) -> BadGrader:
    value = f" {got!r:.60}" if type(got) in (str, int, float, bool, type(None)) else ""
    return BadGrader(f"grader {name!r}: expected {expected}, got {type_name(got)}{value}")
