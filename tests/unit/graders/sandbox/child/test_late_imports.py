"""Late imports: an import inside the sandbox is an error that names the module, never a different verdict."""

import textwrap
from pathlib import Path

import pytest

from graders import GraderPool, Status
from graders.sandbox.host.task_queue import late_import_in

LATE = """
import xml
from graders.verdict import Status, Verdict

class Late:
    name = "late"
    answers_per_process = 0

    def grade(self, completion, reference, *, question=None):
        try:
            if completion == "import":
                import colorsys
            if completion == "absent":
                import no_such_module
            if completion == "part":
                import xml.dom.minidom
            if completion == "absent part":
                import xml.no_such_part
            if completion == "main":
                import xml.__main__
            if completion == "open":
                open("/etc/hostname")
        except (ImportError, OSError):
            return Verdict(Status.INCORRECT, None, self.name, "fallback", "", 0.0)
        return Verdict(Status.CORRECT, None, self.name, "full", "", 0.0)

class Warm(Late):
    name = "warm"
    examples = (("import", "", "correct"), ("absent", "", "incorrect"))
"""


@pytest.fixture
def late_file(tmp_path: Path) -> Path:
    path = tmp_path / "late.py"
    path.write_text(textwrap.dedent(LATE))
    return path


def test_late_import_is_an_error_of_one_answer(late_file: Path) -> None:
    with GraderPool(f"{late_file}:Late", num_workers=1) as pool:
        verdicts = pool.grade([("import", ""), ("", ""), ("open", ""), ("", "")])
    assert [(v.status.value, v.method) for v in verdicts] == [
        ("error", "tainted"),
        ("correct", "full"),
        ("error", "tainted"),
        ("correct", "full"),
    ]
    assert "import of colorsys inside the sandbox; do it at the top of the grader's file" in verdicts[0].detail
    assert "open of /etc/hostname" in verdicts[2].detail


def test_examples_preload_imports_and_reveal_absent_modules(late_file: Path) -> None:
    with GraderPool(f"{late_file}:Warm", num_workers=1) as pool:
        verdicts = pool.grade([("import", ""), ("absent", "")])
    assert [(v.status, v.method) for v in verdicts] == [(Status.CORRECT, "full"), (Status.INCORRECT, "fallback")]


def test_submodules_of_loaded_packages_are_preloaded_and_the_answer_is_graded_again(late_file: Path) -> None:
    with GraderPool(f"{late_file}:Late", num_workers=1) as pool:
        verdicts = pool.grade([("", ""), ("part", ""), ("absent part", ""), ("absent", ""), ("part", ""), ("main", "")])
        again = pool.grade([("part", ""), ("absent", "")])
        counts = pool.counts
    assert [(v.status.value, v.method) for v in verdicts] == [
        ("correct", "full"),
        ("correct", "full"),
        ("incorrect", "fallback"),
        ("incorrect", "fallback"),
        ("correct", "full"),
        ("error", "tainted"),
    ]
    assert [v.method for v in again] == ["full", "fallback"]
    assert counts["late_imports"] == 4
    assert counts.get("crashes", 0) == 0


def test_module_in_the_temporary_folder_is_preloaded(late_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = late_file.parent / "late_package"
    package.mkdir()
    for module in ("__init__", "part"):
        (package / f"{module}.py").touch()
    late_file.write_text(
        late_file.read_text().replace("xml.dom.minidom", "late_package.part") + "import late_package\n"
    )
    monkeypatch.syspath_prepend(str(late_file.parent))
    with GraderPool(f"{late_file}:Late", num_workers=1) as pool:
        assert [v.method for v in pool.grade([("part", ""), ("absent", "")])] == ["full", "fallback"]


def test_module_is_parsed_from_the_detail() -> None:
    assert late_import_in("import of sympy.physics inside the sandbox; exercise it") == "sympy.physics"
    assert late_import_in("import of ../../x inside the sandbox") is None
    assert late_import_in("open of /etc/hostname inside the sandbox") is None
