"""Resource limits: with few files or processes, a pool works, or its error names the resource and the remedy."""

import errno
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from graders import GraderPool
from graders.sandbox.diagnostics import explain_os_error

SECURITY = Path(__file__).parents[1] / "security"
PROGRAM = """
    import resource, sys
    sys.path.insert(0, sys.argv[1])
    from graders import GraderError, GraderPool
    from restrictions import deny
    files, denied = int(sys.argv[2]), sys.argv[3:]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if denied:
        deny(denied)
    try:
        with GraderPool("exact") as pool:
            print([verdict.status.value for verdict in pool.grade([("#### 1", "1"), ("#### 2", "1")] * 100)][:2])
    except GraderError as error:
        print(f"{type(error).__name__}: {error}")
"""


def outcome(files: int, *denied: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(SECURITY), str(files), *denied]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("files", [6, 8, 9, 10, 12, 16, 24])
def test_error_about_too_few_files_contains_the_remedy(files: int) -> None:
    message = outcome(files)
    assert message.startswith("SandboxUnavailable: ")
    assert "ulimit -n" in message
    assert "use fewer workers" in message


@pytest.mark.parametrize("files", [40, 64, 100])
def test_pool_works_with_few_files(files: int) -> None:
    assert outcome(files) == "['correct', 'incorrect']"


@pytest.mark.parametrize("denied", [["processes"], ["processes", "namespaces"]])
def test_error_about_too_few_processes_contains_the_remedy(denied: list[str]) -> None:
    message = outcome(1024, *denied)
    assert message.startswith("SandboxUnavailable: ")
    assert "use fewer workers, or raise the limit on processes (ulimit -u)" in message


def test_pool_needs_no_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    monkeypatch.chdir(tmp_path)
    with GraderPool("exact") as pool:
        assert pool.grade([("#### 1", "1")])[0].correct
    assert list(tmp_path.iterdir()) == []


def test_other_system_errors_contain_the_file() -> None:
    absent = FileNotFoundError(errno.ENOENT, "message of the system", "/no/such/file")
    assert (
        explain_os_error(absent) == "No such file or directory: /no/such/file; check that it exists and is accessible"
    )
    assert explain_os_error(OSError("odd")) == "odd; run graders doctor"
