"""Attacks: none escapes from a worker as root, as an unprivileged user, in Docker, or with a layer missing.

Positive control: most of them succeed without the sandbox.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = "tests/security/run_attacks.py"
DIRECTORY_UNTOUCHED = ["bait", "bait2", "secret", "unix"]
BROKEN_PROGRAM = tuple(f"stopped: {name}Error" for name in ("Name", "Attribute", "Import", "ModuleNotFound", "Syntax"))
"""Outcomes of a program that failed before its attack."""
EVERY_LAYER = {"namespaces", "empty root", "identity", "rlimits", "no_new_privs", "landlock", "seccomp"}

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox needs Linux")


def run(*arguments: str, root: Path = ROOT, command: tuple[str, ...] = (sys.executable,)) -> dict:
    done = start(*arguments, root=root, command=command)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def start(
    *arguments: str, root: Path = ROOT, command: tuple[str, ...] = (sys.executable,)
) -> subprocess.CompletedProcess:
    packages = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    environment = dict(os.environ, PYTHONPATH=packages)
    whole = [*command, str(root / SCRIPT), *arguments]
    return subprocess.run(whole, capture_output=True, text=True, timeout=120, env=environment, cwd="/")


def assert_unharmed(report: dict, layers: set[str]) -> None:
    succeeded = {name: evidence for name, (status, _, evidence) in report["outcomes"].items() if status == "correct"}
    assert succeeded == {}
    assert len(report["outcomes"]) >= 100
    assert report["victim"] == "alive"
    assert report["directory"] == DIRECTORY_UNTOUCHED
    assert {name for name, state in report["layers"].items() if state == "active"} == layers


@pytest.fixture
def readable_copy() -> Iterator[Path]:
    """A copy of the sources that every user can read, since the checkout may be in a private folder."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("graders", "tests/security"):
            shutil.copytree(ROOT / part, Path(folder) / part, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (Path(folder), *Path(folder).rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield Path(folder)


def unprivileged_python() -> tuple[str, ...]:
    """Return a command that runs Python as an unprivileged user."""
    setpriv = shutil.which("setpriv")
    if setpriv is None or os.geteuid() != 0:
        pytest.skip("needs root and setpriv to become an unprivileged user")
    prefix = (setpriv, "--reuid", "65534", "--regid", "65534", "--clear-groups")
    version = f"python3.{sys.version_info.minor}"
    start_itself = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    for python in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        if subprocess.run([*prefix, python, "-c", start_itself], capture_output=True).returncode == 0:
            return (*prefix, python)
    pytest.skip(f"needs a {version} that an unprivileged user can run")


def test_positive_control_most_attacks_succeed_without_a_sandbox() -> None:
    report = run("bare")
    succeeded = [name for name, (status, _, _) in report["outcomes"].items() if status == "correct"]
    assert len(succeeded) >= len(report["outcomes"]) // 2
    broken = [name for name, (_, _, outcome) in report["outcomes"].items() if outcome.startswith(BROKEN_PROGRAM)]
    assert broken == []
    assert report["directory"] != DIRECTORY_UNTOUCHED


def test_no_attack_succeeds_as_the_user_who_runs_the_tests() -> None:
    report = run("sandbox")
    active = {name for name, state in report["layers"].items() if state == "active"}
    assert_unharmed(report, active)
    assert {"seccomp", "rlimits", "no_new_privs"} <= active


def test_no_attack_succeeds_as_an_unprivileged_user(readable_copy: Path) -> None:
    report = run("sandbox", root=readable_copy, command=unprivileged_python())
    assert_unharmed(report, EVERY_LAYER)


@pytest.mark.parametrize(
    ("denied", "lost"),
    [
        pytest.param(["docker"], {"namespaces", "empty root"}, marks=pytest.mark.slow),
        pytest.param(["landlock"], {"landlock"}, marks=pytest.mark.slow),
        pytest.param(["namespaces"], {"namespaces", "empty root"}, marks=pytest.mark.slow),
        (["landlock", "docker"], {"landlock", "namespaces", "empty root"}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_no_attack_succeeds_with_a_layer_missing(denied: list[str], lost: set[str]) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("needs x86_64: the emulated restrictions filter its system calls")
    report = run("sandbox", "--deny", *denied)
    missing_here = {name for name in EVERY_LAYER if name not in report["layers"]}
    assert_unharmed(report, EVERY_LAYER - lost - missing_here)


def test_third_party_grader_is_rejected_without_seccomp() -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("needs x86_64: the emulated restrictions filter its system calls")
    done = start("sandbox", "--deny", "seccomp")
    assert done.returncode != 0
    assert "SandboxUnavailable: grader 'attacker': expected the layers ['seccomp']" in done.stderr
    assert "seccomp(): Invalid argument" in done.stderr
