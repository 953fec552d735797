"""Late imports: prevents imports inside the sandbox by warming up the grader, and detects those that still happen.

An import inside a sandboxed worker fails. Libraries handle some failed imports by silently using another algorithm, so
a verdict reached after one cannot be trusted: it becomes an `error` that names the module (note G2).
"""

import importlib
import importlib.util
import sys
from typing import Any

import msgspec

from graders.sandbox.child.grader_spec import GraderSpec
from graders.sandbox.protocol import Example

_LAZY_IMPORTS = {"graders.equivalence": ("graders.equivalence.compare.symbolic", "sympy.physics.units")}
"""Modules that loaded packages import lazily and that examples may not reach."""


class LateImportError(Exception):
    """A grader tried to import a module or to open a file inside the sandbox."""


class LateImportWatch:
    """An audit hook that records imports. Once armed, it reports each import that is not known to be absent."""

    def __init__(self) -> None:
        self._requested: set[str] = set()
        self._absent: frozenset[str] = frozenset()
        self._armed = False
        self._late: str | None = None
        sys.addaudithook(self._on_event)

    def preload(self, module: str) -> None:
        """Import, in the zygote, a module that a worker tried to import, or record that it does not exist.

        The name was sent by a worker, so only submodules of packages that are already loaded are imported.
        """
        top = module.partition(".")[0]
        is_absent = False
        if top not in sys.modules:
            is_absent = importlib.util.find_spec(top) is None
        elif not module.endswith("__main__"):  # importing it would run a program
            try:
                importlib.import_module(module)
            except Exception:  # noqa: BLE001  the import fails outside the sandbox too
                is_absent = True
        if is_absent:
            self._requested.add(module)

    def arm(self) -> None:
        """Report every import and every opened file from now on."""
        self._absent = frozenset(name for name in self._requested if name not in sys.modules)
        self._armed = True

    def check(self) -> None:
        """Clear the recorded event.

        Raises:
            LateImportError: there was one; the message contains the module or file and the remedy.
        """
        if self._late is not None:
            late, self._late = self._late, None
            raise LateImportError(
                f"{late} inside the sandbox; do it at the top of the grader's file, or exercise it in the grader's "
                "examples, which run before"
            )

    def reset(self) -> None:
        """Clear the recorded event."""
        self._late = None

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._late is not None:
            return  # the first event is the cause of the others
        if event == "import":
            name = arguments[0]
            if not self._armed:
                self._requested.add(name)
            elif name not in self._absent:
                self._late = f"import of {name!s:.80}"
        elif event == "open" and self._armed and not str(arguments[0]).endswith(".py"):
            self._late = f"open of {arguments[0]!s:.80}"  # source files are opened to print tracebacks: harmless


def warm_up(grader: Any, spec: GraderSpec) -> None:
    """Grade the grader's examples, so that its lazy imports happen before the sandbox is set up."""
    for example in spec.examples:
        try:
            _grade(grader, spec, example)
        except (Exception, SystemExit):  # noqa: BLE001  the same failure is reported later, as a verdict
            continue
    for package, modules in _LAZY_IMPORTS.items():
        if package in sys.modules:
            for module in modules:
                importlib.import_module(module)


def _grade(grader: Any, spec: GraderSpec, example: Example) -> None:
    if spec.reading_decoder is not None:
        question = grader.shown(example.reference, None) if spec.has_shown else None
        reading = grader.read(example.completion, question=question)
        msgspec.msgpack.encode(reading)
        grader.judge(reading, example.reference)
    else:
        grader.grade(example.completion, example.reference)
