"""Known answers, run through a grader before anything is locked down, so that no import is left for later.

A lazy import that first happens inside a locked worker fails, and libraries answer some failed imports by quietly
taking another path: the verdict flips and nobody hears of it (note G2).

Touches: whatever the grader touches.
"""

import importlib
import sys
from typing import Any, cast

import msgspec

from graders.errors import BadGrader
from graders.grader import Grader, SplitGrader
from graders.sandbox.frames import Example
from graders.verdict import Status

MAX_EXAMPLES = 256
_IMPORTED_LATE = {"graders.equivalence": ("graders.equivalence.symbolic", "sympy.physics.units")}
"""Modules that loaded packages import at the first need, which examples may not arouse."""


def run(grader: Grader) -> list[Example]:
    """Grade the grader's own `examples` and give them back, checked for shape.

    Raises:
        BadGrader: `examples` is not a sequence of (completion, reference, status).
    """
    examples = [_example(grader, entry) for entry in list(getattr(grader, "examples", ()))[:MAX_EXAMPLES]]
    for example in examples:
        try:
            _grade(grader, example)
        except Exception:  # noqa: BLE001  warming up judges nothing: the same failure comes back as a verdict
            continue
    for package, modules in _IMPORTED_LATE.items():
        if package in sys.modules:
            for module in modules:
                importlib.import_module(module)
    return examples


def _example(grader: Grader, entry: Any) -> Example:
    try:
        completion, reference, status = entry
        return Example(str(completion), str(reference), Status(status).value)
    except (TypeError, ValueError) as error:
        raise BadGrader(
            f"grader {grader.name!r}: expected examples as (completion, reference, status), got {entry!r:.100}: {error}"
        ) from error


def _grade(grader: Any, example: Example) -> None:
    if isinstance(grader, SplitGrader):
        grader = cast(Any, grader)
        question = grader.shown(example.reference, None) if hasattr(grader, "shown") else None
        reading = grader.read(example.completion, question=question)
        msgspec.msgpack.encode(reading)
        grader.judge(reading, example.reference)
    else:
        grader.grade(example.completion, example.reference)
