"""Grader protocol, registry, and resolution of grader specifications.

A specification is a built-in or registered name (`math`), `package.module:attribute`, `path/to/file.py:attribute`, the
name of an entry point in the group "graders", `cascade:NAME,NAME,…`, which combines graders, or `trl:SPEC`,
`verl:SPEC` or `openrlhf:SPEC`, which wrap a reward function of another trainer.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class GraderOptions:
    """Options of a grader, declared as its attribute `options`; without it, each is an attribute of the grader itself.

    Args:
        examples: (completion, reference, status) of known answers; the sandbox warms up on them and grades them again
            after each batch as canaries.
        requires: names of the isolation layers without which the grader must not run.
        answers_per_process: answers that a process grades before it is replaced; 0 for no bound; None for the default,
            which is 0 for graders of this package and 8 for others.
        runs_programs: True if grading runs code from the completion; the imports of that code are not checked.
    """

    examples: Sequence[tuple[str, str, str]] = ()
    requires: Sequence[str] = ()
    answers_per_process: int | None = None
    runs_programs: bool = False


@runtime_checkable
class Grader(Protocol):
    """An object that turns a completion and a reference into a verdict; see `GraderOptions` for optional attributes."""

    name: str

    def grade(self, completion: str, reference: str, *, question: str | None = None) -> Verdict: ...


@runtime_checkable
class SplitGrader(Protocol):
    """A grader in two halves: the process that reads untrusted text never sees the reference (note G1).

    The return annotation of `read` is a msgspec type of bounded size. If the grader has a method
    `shown(reference, question)`, `read` receives its result as `question`: the part of the reference it may see.
    """

    name: str

    def read(self, completion: str, *, question: str | None = None) -> Any: ...

    def judge(self, reading: Any, reference: str, *, question: str | None = None) -> Verdict: ...


class Registration(NamedTuple):
    """A registered grader and the module or script that a sandbox process imports to register it again."""

    grader: Grader
    origin: str


_REGISTRY: dict[str, Registration] = {}  # global, because a name is registered before any pool exists

G = TypeVar("G")


def register(grader: G) -> G:
    """Register a grader, or a class that takes no arguments, by its `name`; usable as a decorator.

    Call it at module level: sandbox processes import the same file to find the grader.

    Raises:
        BadGrader: the object is not a grader, or the name is taken.
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
    """Return the module name or script path that registers `spec`; None if it is not a registered name."""
    registration = _REGISTRY.get(spec)
    return registration.origin if registration else None


def is_shipped(spec: str) -> bool:
    """Return True if a specification names only graders of this package, whose code is trusted."""
    wrapper, _, inner = spec.partition(":")
    return spec in BUILTIN or (wrapper == "cascade" and all(name.strip() in BUILTIN for name in inner.split(",")))


def resolve(spec: str) -> Grader:
    """Return the grader that a specification names.

    Raises:
        UnknownGrader: the name, module or attribute does not exist.
        BadGrader: the object is not a grader, or importing it failed.
    """
    if spec in _REGISTRY:
        return _REGISTRY[spec].grader
    if spec in BUILTIN:
        return as_grader(load_attribute(BUILTIN[spec]), where=spec)
    wrapper, _, inner = spec.partition(":")
    if wrapper in WRAPPERS and inner:
        return as_grader(load_attribute(WRAPPERS[wrapper])(inner), where=spec)
    if ":" in spec:
        return as_grader(load_attribute(spec), where=spec)
    from importlib.metadata import entry_points  # slow to import and rarely needed

    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == spec:
            return as_grader(loaded(entry.load, spec), where=spec)
    known = ", ".join(sorted({*BUILTIN, *_REGISTRY}))
    raise UnknownGrader(
        f"grader {spec!r}: expected one of {known}, 'package.module:attribute', 'path/to/file.py:attribute' or an "
        f"entry point of the group {ENTRY_POINT_GROUP!r}"
    )


def absolute_spec(spec: str) -> str:
    """Return the specification with absolute file paths, because a worker has another current folder.

    >>> absolute_spec("trl:/there/rewards.py:accuracy"), absolute_spec("cascade:exact,math")
    ('trl:/there/rewards.py:accuracy', 'cascade:exact,math')
    """
    head, _, inner = spec.partition(":")
    if head == "cascade" and inner:
        return f"{head}:{','.join(absolute_spec(name.strip()) for name in inner.split(','))}"
    if head in WRAPPERS and inner:
        return f"{head}:{absolute_spec(inner)}"
    return os.path.abspath(spec) if head.endswith(".py") else spec


def as_grader(candidate: Any, *, where: str) -> Grader:
    """Return `candidate`, or an instance of it if it is a class.

    Raises:
        BadGrader: `name` is not a printable str, or `grade` is not callable; names the fault.
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


def option_of(grader: Any, name: str, default: Any) -> Any:
    """Return an optional attribute of a grader: from its `GraderOptions` if it has them, else its own, or `default`."""
    options = getattr(grader, "options", None)
    if isinstance(options, GraderOptions) and hasattr(options, name):
        value = getattr(options, name)
        return default if value is None else value
    return getattr(grader, name, default)


def import_origin(origin: str) -> ModuleType:
    """Import a module by name, or a script by path; raises like `resolve`."""
    return (
        _module_at(Path(origin)) if origin.endswith(".py") else loaded(lambda: importlib.import_module(origin), origin)
    )


def load_attribute(spec: str) -> Any:
    """Return the object at `package.module:attribute` or `path/to/file.py:attribute`; raises like `resolve`."""
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
    """Call third-party code and convert its exceptions to those of this package.

    Raises:
        UnknownGrader: a module is missing.
        BadGrader: the code raised any other exception or called `sys.exit`.
    """
    try:
        return load()
    except ModuleNotFoundError as error:
        raise UnknownGrader(f"grader {where!r}: expected an importable module, got: {error}") from error
    except (Exception, SystemExit) as error:
        raise BadGrader(f"grader {where!r}: expected it to load, got {type(error).__name__}: {error}") from error
