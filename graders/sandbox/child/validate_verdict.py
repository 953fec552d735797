"""Verdict validation: accepts exact types, bounded texts and a finite duration; anything else is an error."""

import math
from typing import Any

from graders.errors import BadGrader
from graders.sandbox.diagnostics import type_name
from graders.sandbox.protocol import MAX_ANSWER_CHARS, MAX_DETAIL_CHARS, MAX_GRADER_CHARS, MAX_METHOD_CHARS
from graders.verdict import Status, Verdict

MAX_TEXT_CHARS = 1 << 20
"""The length of the longest completion that is graded; a grader that returns a longer text has failed."""

_STATUS_IDS = frozenset(map(id, Status))
"""Compared by identity: a str that equals a status, or pretends to be one, is not a status."""
_SHOWN = (bool, int, float, type(None))


def validate_verdict(result: Any, grader: str, duration_s: float) -> Verdict:
    """Return a grader's result as the verdict that the sandbox passes on.

    Its texts are cut to their limits, and its duration is replaced by the measured one. Subclasses are rejected like
    any other type, because their methods are third-party code.

    Args:
        result: what the grader returned; it can be any object.
        grader: the name of the grader, for the error message.
        duration_s: the measured duration.

    Raises:
        BadGrader: the result is not a valid verdict; the message contains the field.
    """
    if type(result) is not Verdict:
        raise _bad(grader, "a graders.Verdict", result)
    if id(result.status) not in _STATUS_IDS:
        raise _bad(grader, "a verdict whose status is one of graders.Status, such as Status.INCORRECT", result.status)
    stated_s = result.duration_s
    if type(stated_s) not in (float, int) or not 0 <= stated_s < math.inf:
        raise _bad(grader, "a verdict whose duration_s is a finite number >= 0", stated_s)
    answer = result.answer
    return Verdict(
        result.status,
        None if answer is None else _text(grader, "answer", answer, MAX_ANSWER_CHARS),
        _text(grader, "grader", result.grader, MAX_GRADER_CHARS),
        _text(grader, "method", result.method, MAX_METHOD_CHARS),
        _text(grader, "detail", result.detail, MAX_DETAIL_CHARS).replace("\n", " "),
        duration_s,
    )


def _text(grader: str, field: str, value: Any, max_chars: int) -> str:
    if type(value) is not str:
        raise _bad(grader, f"a verdict whose {field} is a str", value)
    if len(value) > MAX_TEXT_CHARS:
        raise _bad(grader, f"a verdict whose {field} has at most {MAX_TEXT_CHARS} characters", value)
    text = value[:max_chars]
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise _bad(grader, f"a verdict whose {field} can be encoded, without lone surrogates", value)
    return text


def _bad(grader: str, expected: str, got: Any) -> BadGrader:
    value = f" {got!r}" if type(got) in _SHOWN or (type(got) is str and len(got) < 40) else ""
    value = f" of {len(got)} characters" if type(got) is str and not value else value
    return BadGrader(f"grader {grader!r}: expected {expected}, got {type_name(got)}{value}")
