"""Graders are resolved by name, module, file and entry point; other objects are rejected with a reason."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

from graders import BadGrader, GraderOptions, GraderPool, SandboxUnavailable, UnknownGrader, grade, register
from graders.grader import (
    BUILTIN,
    Grader,
    SplitGrader,
    as_grader,
    import_origin,
    is_shipped,
    option_of,
    origin_of,
    resolve,
)

PLUG_IN = """
from graders import Status, Verdict, register

@register
class Registered:
    name = "registered-in-{stem}"

    def grade(self, completion, reference, *, question=None):
        status = Status.CORRECT if completion == reference else Status.INCORRECT
        return Verdict(status, completion, self.name, "exact", "", 0.0)

class Outer:
    grader = Registered()

def needs_arguments(): ...
class NeedsArguments:
    name = "needs arguments"
    def __init__(self, argument): ...
    def grade(self, completion, reference, *, question=None): ...
"""


def write(path: Path) -> Path:
    path.write_text(PLUG_IN.replace("{stem}", path.stem))
    return path


@pytest.mark.parametrize("name", BUILTIN)
def test_shipped_graders_resolve_by_name(name: str) -> None:
    grader = resolve(name)
    assert isinstance(grader, Grader)
    assert isinstance(grader, SplitGrader)
    assert grader.name == name
    assert is_shipped(name)


def test_resolve_by_file_and_nested_attribute(tmp_path: Path) -> None:
    path = write(tmp_path / "by_file.py")
    assert resolve(f"{path}:Registered").name == "registered-in-by_file"
    assert resolve(f"{path}:Outer.grader").grade("1", "1").correct
    assert not is_shipped(f"{path}:Outer.grader")


def test_resolve_by_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "by_module_name.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve("by_module_name:Registered").grade("1", "2").status == "incorrect"
    assert grade("1", "1", grader="by_module_name:Registered").correct
    with pytest.raises(UnknownGrader, match="expected an importable module"):
        resolve("no_such_module_here:Registered")


def test_registered_graders_resolve_in_the_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "registering.py")
    monkeypatch.syspath_prepend(tmp_path)
    import_origin("registering")
    assert origin_of("registered-in-registering") == "registering"
    assert origin_of("math") is None
    with GraderPool("registered-in-registering") as pool:
        assert pool.grade([("1", "1")])[0].grader == "registered-in-registering"


def test_register_rejects_a_taken_name(tmp_path: Path) -> None:
    class Math:
        name = "math"

        def grade(self, completion: str, reference: str, *, question: str | None = None) -> None: ...

    with pytest.raises(BadGrader, match="expected a free name, got 'math'"):
        register(Math)


def test_resolve_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "entered.py")
    metadata = tmp_path / "entered-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: entered\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[graders]\nby-entry-point = entered:Registered\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert [e.name for e in importlib.metadata.entry_points(group="graders")] == ["by-entry-point"]
    assert resolve("by-entry-point").name == "registered-in-entered"
    with GraderPool("by-entry-point") as pool:
        assert pool.grade([("1", "1")])[0].correct


@pytest.mark.parametrize(
    ("attribute", "kind", "message"),
    [
        ("Missing", UnknownGrader, "expected 'Missing' in"),
        ("needs_arguments", BadGrader, "expected an object with a name, got function without one"),
        ("NeedsArguments", BadGrader, "expected it to load, got TypeError"),
    ],
)
def test_objects_that_are_not_graders_are_rejected(
    tmp_path: Path, attribute: str, kind: type[Exception], message: str
) -> None:
    path = write(tmp_path / "rejected.py")
    with pytest.raises(kind, match=message):
        resolve(f"{path}:{attribute}")


def test_errors_name_the_missing_attribute() -> None:
    with pytest.raises(BadGrader, match=r"expected a method grade\(completion, reference, \*, question=None\)"):
        as_grader(type("Nameful", (), {"name": "x"}), where="here")
    with pytest.raises(UnknownGrader, match="expected one of choice, equation, exact"):
        resolve("unknown")


def test_broken_file_leaves_no_module_in_sys_modules(tmp_path: Path) -> None:
    path = tmp_path / "half_loaded.py"
    path.write_text("value = 1\n1 / 0\n")
    with pytest.raises(BadGrader, match="ZeroDivisionError"):
        resolve(f"{path}:value")
    assert "graders_plugin_half_loaded" not in sys.modules
    with pytest.raises(UnknownGrader, match="expected an existing Python file"):
        import_origin(str(tmp_path / "absent.py"))


def test_options_come_from_grader_options_or_from_attributes() -> None:
    class Loose:
        examples = (("1", "1", "correct"),)
        options = "unrelated"

    class Declared:
        examples = ()
        options = GraderOptions(examples=Loose.examples, runs_programs=True)
        shown = None

    for grader in (Loose(), Declared()):
        assert option_of(grader, "examples", ()) == Loose.examples
        assert option_of(grader, "answers_per_process", 8) == 8
        assert option_of(grader, "shown", None) is None
    assert (option_of(Loose(), "runs_programs", False), option_of(Declared(), "runs_programs", False)) == (False, True)


def test_grader_options_reach_the_sandbox(tmp_path: Path) -> None:
    path = tmp_path / "declaring.py"
    path.write_text(
        PLUG_IN.replace("{stem}", "declaring")
        + 'Registered.options = __import__("graders").GraderOptions(requires=["no such layer"])\n'
    )
    with pytest.raises(SandboxUnavailable, match="no such layer"), GraderPool(f"{path}:Registered"):
        pass
