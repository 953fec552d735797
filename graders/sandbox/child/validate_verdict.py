"""Whether what a grader gave is a verdict: exact types, bounded texts, a finite duration; if not, an error says why."""

import math
from typing import Any

from graders.errors import BadGrader
from graders.sandbox.diagnostics import kind_of
from graders.sandbox.protocol import MAX_ANSWER_CHARS, MAX_DETAIL_CHARS, MAX_GRADER_CHARS, MAX_METHOD_CHARS
from graders.verdict import Status, Verdict

MAX_TEXT_CHARS = 1 << 20
"""As long as the longest completion that is graded: a grader that says more than that has failed."""

_STATUSES = frozenset(map(id, Status))
"""By identity: a text that equals a status, or claims to be one, is none."""
_SHOWN = (bool, int, float, type(None))


def sound(given: Any, grader: str, duration_s: float) -> Verdict:
    """Give a verdict as the sandbox passes it on: texts cut to their bounds, and the time that was measured.

    Subclasses are refused like any other type, for they may bring code of their own.

    Args:
        given: what the grader returned, which may be anything.
        grader: its name, for the error.
        duration_s: what it took.

    Raises:
        BadGrader: it is no sound verdict; names the field.
    """
    if type(given) is not Verdict:
        raise _unsound(grader, "a graders.Verdict", given)
    if id(given.status) not in _STATUSES:
        raise _unsound(
            grader, "a verdict whose status is one of graders.Status, such as Status.INCORRECT", given.status
        )
    stated = given.duration_s
    if type(stated) not in (float, int) or not 0 <= stated < math.inf:
        raise _unsound(grader, "a verdict whose duration_s is a finite number from 0 on", stated)
    answer = given.answer
    return Verdict(
        given.status,
        None if answer is None else _text(grader, "answer", answer, MAX_ANSWER_CHARS),
        _text(grader, "grader", given.grader, MAX_GRADER_CHARS),
        _text(grader, "method", given.method, MAX_METHOD_CHARS),
        _text(grader, "detail", given.detail, MAX_DETAIL_CHARS).replace("\n", " "),
        duration_s,
    )


def _text(grader: str, field: str, given: Any, limit: int) -> str:
    if type(given) is not str:
        raise _unsound(grader, f"a verdict whose {field} is a str", given)
    if len(given) > MAX_TEXT_CHARS:
        raise _unsound(grader, f"a verdict whose {field} has at most {MAX_TEXT_CHARS} characters", given)
    text = given[:limit]
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise _unsound(grader, f"a verdict whose {field} can be encoded, without lone surrogates", given)
    return text


def _unsound(grader: str, expected: str, got: Any) -> BadGrader:
    shown = f" {got!r}" if type(got) in _SHOWN or (type(got) is str and len(got) < 40) else ""
    shown = f" of {len(got)} characters" if type(got) is str and not shown else shown
    return BadGrader(f"grader {grader!r}: expected {expected}, got {kind_of(got)}{shown}")
