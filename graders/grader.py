"""What a grader is, and how one is found by name.

A specification is one of: a registered or built-in name (`math`), `package.module:attribute`,
`path/to/file.py:attribute`, the name of an entry point of the group "graders", or `cascade:NAME,NAME,…`, `trl:SPEC`,
`verl:SPEC`, `openrlhf:SPEC`, which wrap other graders and the reward functions of other trainers.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from graders.errors import BadGrader, UnknownGrader
from graders.verdict import Verdict

BUILTIN = {
    "math": "graders.builtin.math:MathGrader",
    "exact": "graders.builtin.exact:ExactGrader",
    "numeric": "graders.builtin.numeric:NumericGrader",
    "choice": "graders.builtin.choice:ChoiceGrader",
    "equation": "graders.builtin.equation:EquationGrader",
    "python": "graders.builtin.python:PythonGrader",
}
WRAPPERS = {
    "cascade": "graders.builtin.cascade:cascade",
    "trl": "graders.integrations.reward_functions:from_trl",
    "verl": "graders.integrations.reward_functions:from_verl",
    "openrlhf": "graders.integrations.reward_functions:from_openrlhf",
}
ENTRY_POINT_GROUP = "graders"
MAX_NAME_CHARS = 1000


@runtime_checkable
class Grader(Protocol):
    """Anything that turns a completion and a reference into a verdict.

    Optional attributes: `examples`, a sequence of (completion, reference, status) that the sandbox uses to warm up and
    as canaries; `requires`, names of the isolation layers without which it must not run; `answers_per_process`, how
    many answers a process gives before it is thrown away, 0 for no bound; `runs_programs`, true if reading runs code of
    the completion, whose late imports are then its own affair.
    """

    name: str

    def grade(self, completion: str, reference: str, *, question: str | None = None) -> Verdict: ...


@runtime_checkable
class SplitGrader(Protocol):
    """A grader in two halves, so that the process that meets raw text never knows the reference (note G1).

    `read` states its result type, a msgspec type of bounded size, in its return annotation. A grader with
    `shown(reference, question)` says what of the reference the reading half may see; it gets that as its question.
    """

    name: str

    def read(self, completion: str, *, question: str | None = None) -> Any: ...

    def judge(self, reading: Any, reference: str, *, question: str | None = None) -> Verdict: ...


class Registration(NamedTuple):
    """A registered grader and the module, or script, whose import registers it anew in a sandbox process."""

    grader: Grader
    origin: str


_REGISTRY: dict[str, Registration] = {}  # the one global of this package: names must be known before any pool exists

G = TypeVar("G")


def register(grader: G) -> G:
    """Make a grader, or a class that builds one without arguments, known by its `name`; usable as a decorator.

    Call it while a module or script is imported: sandbox processes import the same file to find the grader.

    Raises:
        BadGrader: the object is not a grader, or its name is taken by another.
    """
    made = as_grader(grader, where="register()")
    caller = sys._getframe(1).f_globals
    origin = caller.get("__name__", "__main__")
    if origin == "__main__":
        origin = caller.get("__file__", "__main__")
    taken = _REGISTRY.get(made.name)
    if made.name in BUILTIN or (taken is not None and taken.origin != origin):
        raise BadGrader(f"register(): expected a free name, got {made.name!r}, which is taken; choose another name")
    _REGISTRY[made.name] = Registration(made, origin)
    return grader


def origin_of(spec: str) -> str | None:
    """Give the module name or script path that registers `spec`, or None if a sandbox can resolve it unaided."""
    registration = _REGISTRY.get(spec)
    return registration.origin if registration else None


def is_shipped(spec: str) -> bool:
    """Say whether a specification names only graders of this package, whose code may be trusted."""
    wrapper, _, inner = spec.partition(":")
    return spec in BUILTIN or (wrapper == "cascade" and all(name.strip() in BUILTIN for name in inner.split(",")))


def resolve(spec: str) -> Grader:
    """Give the grader that a specification names.

    Raises:
        UnknownGrader: nothing goes by that name, or its module or attribute does not exist.
        BadGrader: what was found is not a grader, or importing it failed.
    """
    if spec in _REGISTRY:
        return _REGISTRY[spec].grader
    if spec in BUILTIN:
        return as_grader(_attribute(BUILTIN[spec]), where=spec)
    wrapper, _, inner = spec.partition(":")
    if wrapper in WRAPPERS and inner:
        return as_grader(_attribute(WRAPPERS[wrapper])(inner), where=spec)
    if ":" in spec:
        return as_grader(_attribute(spec), where=spec)
    from importlib.metadata import entry_points  # a third of this package's import time, and seldom needed

    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == spec:
            return as_grader(loaded(entry.load, spec), where=spec)
    known = ", ".join(sorted({*BUILTIN, *_REGISTRY}))
    raise UnknownGrader(
        f"grader {spec!r}: expected one of {known}, 'package.module:attribute', 'path/to/file.py:attribute' or an "
        f"entry point of the group {ENTRY_POINT_GROUP!r}"
    )


def located(spec: str) -> str:
    """Give the specification with each file at its absolute path: a worker has another folder.

    >>> located("trl:/there/rewards.py:accuracy"), located("cascade:exact,math")
    ('trl:/there/rewards.py:accuracy', 'cascade:exact,math')
    """
    head, _, inner = spec.partition(":")
    if head == "cascade" and inner:
        return f"{head}:{','.join(located(name.strip()) for name in inner.split(','))}"
    if head in WRAPPERS and inner:
        return f"{head}:{located(inner)}"
    return os.path.abspath(spec) if head.endswith(".py") else spec


def attribute(spec: str) -> Any:
    """Give the object at `package.module:attribute` or `path/to/file.py:attribute`; raises like `resolve`."""
    return _attribute(spec)


def as_grader(candidate: Any, *, where: str) -> Grader:
    """Give the grader itself, building it first if `candidate` is a class.

    Raises:
        BadGrader: it has no `name` text or no callable `grade`; names what is missing.
    """
    made = loaded(candidate, where) if isinstance(candidate, type) else candidate
    name, grade = loaded(lambda: (getattr(made, "name", None), getattr(made, "grade", None)), where)
    if not isinstance(name, str) or not name:
        raise BadGrader(f"grader {where!r}: expected an object with a name, got {type(made).__name__} without one")
    if type(name) is not str or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise BadGrader(
            f"grader {where!r}: expected a name that is a plain str of at most {MAX_NAME_CHARS} printable characters, "
            f"got {str(name)[:60]!r}, a {type(name).__name__}"
        )
    if not callable(grade):
        raise BadGrader(
            f"grader {where!r}: expected a method grade(completion, reference, *, question=None), "
            f"got {type(made).__name__} without one"
        )
    return made


def import_origin(origin: str) -> ModuleType:
    """Import a module by name, or a script by path, for the sake of what it registers; raises like `resolve`."""
    return (
        _module_at(Path(origin)) if origin.endswith(".py") else loaded(lambda: importlib.import_module(origin), origin)
    )


def _attribute(spec: str) -> Any:
    module_name, _, path = spec.rpartition(":")
    module = import_origin(module_name)
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise UnknownGrader(f"grader {spec!r}: expected {part!r} in {module_name}, found no such attribute")
        found = getattr(found, part)
    return found


def _module_at(path: Path) -> ModuleType:
    if not path.is_file():
        raise UnknownGrader(f"grader file {str(path)!r}: expected an existing Python file; check the path")
    name = f"graders_plugin_{path.stem}"
    found = sys.modules.get(name)
    if found is not None and getattr(found, "__file__", None) == str(path.resolve()):
        return found
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loaded(lambda: spec.loader.exec_module(module), str(path))  # type: ignore[union-attr]
    except BadGrader:
        del sys.modules[name]
        raise
    return module


def loaded(load: Callable[[], Any], where: str) -> Any:
    """Run code of a plug-in's author, turning whatever it raises into one of this package's errors.

    Raises:
        UnknownGrader: a module that it needs is missing.
        BadGrader: anything else went wrong.
    """
    try:
        return load()
    except ModuleNotFoundError as error:
        raise UnknownGrader(f"grader {where!r}: expected an importable module, got: {error}") from error
    except (Exception, SystemExit) as error:
        raise BadGrader(f"grader {where!r}: expected it to load, got {type(error).__name__}: {error}") from error
