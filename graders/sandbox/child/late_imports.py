"""Notices imports and file reads that happen where they cannot succeed, inside a locked worker.

Libraries answer some failed imports by quietly taking another path, so a verdict reached after one cannot be trusted:
it becomes an `error` that names the module (note G2).
"""

import importlib
import importlib.util
import sys
from typing import Any

from graders.sandbox.isolation.namespaces import EMPTY_ROOT

_RUNS_WHEN_IMPORTED = "__main__"


class LateImportError(Exception):
    """A grader tried to import or open something inside the sandbox."""


class Watch:
    """An audit hook. Until armed it learns which modules are asked for and absent; then it reports all others."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._absent: frozenset[str] = frozenset()
        self._armed = False
        self._late: str | None = None
        sys.addaudithook(self._hear)

    def learn(self, module: str) -> None:
        """Import, in the zygote, what a worker was missing, or note that there is no such module.

        The name comes from a worker, so only parts of packages that are loaded already are imported. Where the workers'
        empty root hides a part of the import path, absence proves nothing.
        """
        top = module.partition(".")[0]
        is_absent = False
        if top not in sys.modules:
            is_absent = importlib.util.find_spec(top) is None
        elif not module.endswith(_RUNS_WHEN_IMPORTED):
            try:
                importlib.import_module(module)
            except Exception:  # noqa: BLE001  a module that cannot be had, inside and outside alike
                is_absent = True
        if is_absent and not any(entry.startswith(EMPTY_ROOT) for entry in sys.path):
            self._asked.add(module)

    def arm(self) -> None:
        """From now on, report."""
        self._absent = frozenset(name for name in self._asked if name not in sys.modules)
        self._armed = True

    def check(self) -> None:
        """Forget what was seen.

        Raises:
            LateImportError: something was; names it and the remedy.
        """
        if self._late is not None:
            late, self._late = self._late, None
            raise LateImportError(
                f"{late} inside the sandbox; do it at the top of the grader's file, or exercise it in the grader's "
                "examples, which run before"
            )

    def forget(self) -> None:
        """Forget what was seen."""
        self._late = None

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._late is not None:
            return  # the first one is the cause of the others
        if event == "import":
            name = arguments[0]
            if not self._armed:
                self._asked.add(name)
            elif name not in self._absent:
                self._late = f"import of {name!s:.80}"
        elif event == "open" and self._armed and not str(arguments[0]).endswith(".py"):
            self._late = f"open of {arguments[0]!s:.80}"  # source files are opened to print tracebacks: harmless
