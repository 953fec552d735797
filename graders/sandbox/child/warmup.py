"""Known answers, run through a grader before anything is locked down, so that no import is left for later.

A lazy import that first happens inside a locked worker fails, and libraries answer some failed imports by quietly
taking another path: the verdict flips and nobody hears of it (note G2).
"""

import importlib
import sys
from typing import Any

import msgspec

from graders.sandbox.child.grader_spec import Declared
from graders.sandbox.protocol import Example

_IMPORTED_LATE = {"graders.equivalence": ("graders.equivalence.compare.symbolic", "sympy.physics.units")}
"""Modules that loaded packages import at the first need, which examples may not arouse."""


def run(grader: Any, said: Declared) -> None:
    """Grade the grader's own examples."""
    for example in said.examples:
        try:
            _grade(grader, said, example)
        except (Exception, SystemExit):  # noqa: BLE001  warming up judges nothing: the same failure comes back as a verdict
            continue
    for package, modules in _IMPORTED_LATE.items():
        if package in sys.modules:
            for module in modules:
                importlib.import_module(module)


def _grade(grader: Any, said: Declared, example: Example) -> None:
    if said.reader is not None:
        question = grader.shown(example.reference, None) if said.shows else None
        reading = grader.read(example.completion, question=question)
        msgspec.msgpack.encode(reading)
        grader.judge(reading, example.reference)
    else:
        grader.grade(example.completion, example.reference)
