"""The README's Python examples run, its paths exist, and its commands are known."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import ROOT

from graders.cli import main


@pytest.fixture(scope="module")
def readme() -> str:
    return (ROOT / "README.md").read_text("utf-8")


def _blocks(text: str, *languages: str) -> list[str]:
    found = re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [block for language, block in found if language in languages]


def test_examples_run(readme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = _blocks(readme, "python")
    assert examples
    for number, source in enumerate(examples, start=1):
        name = f"README.md, example {number}"
        if ">>>" in source:
            test = doctest.DocTestParser().get_doctest(source, {}, name, "README.md", 0)
            assert doctest.DocTestRunner(verbose=False).run(test).failed == 0, name
        else:
            exec(compile(source, name, "exec"), {"__name__": "__main__"})


def test_verifier_passes_the_conformance_kit(readme: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (verifier,) = [block for block in _blocks(readme, "python") if "GRADER = " in block]
    (tmp_path / "verifier.py").write_text(verifier)
    code = main(["conformance", f"{tmp_path / 'verifier.py'}:GRADER"])
    assert code == 0, capsys.readouterr().out


def test_paths_exist(readme: str) -> None:
    links = [target for target in re.findall(r"\]\(([^)#]+)[^)]*\)", readme) if "://" not in target]
    named = re.findall(r"(?<![\w/.])(?:scripts|data|graders|mathppo|tests)/[\w./-]*\w", readme)
    missing = sorted({path for path in links + named if not (ROOT / path).exists()})
    assert not missing, f"README.md names {missing}, which do not exist"


def test_commands_exist(readme: str) -> None:
    shown = "\n".join(_blocks(readme, "bash", "sh", "console"))
    for command, verb in sorted(set(re.findall(r"(?:^|[\s/])(mathppo|graders) ([a-z]\w+)", shown))):
        script = f"import sys; from {command}.cli import main; sys.exit(main())"
        ran = subprocess.run(
            [sys.executable, "-c", script, verb, "--help"], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, f"README.md shows `{command} {verb}`: {ran.stderr}"
