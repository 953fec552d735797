"""No attack gets out of a worker: as root, as nobody, under Docker's restrictions, or with a layer missing.

Without the sandbox most of them succeed, or these tests would prove nothing.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = str(HERE / "run_attacks.py")
DIRECTORY_UNTOUCHED = ["bait", "bait2", "secret", "unix"]
EVERY_LAYER = {"namespaces", "empty root", "identity", "rlimits", "no_new_privs", "landlock", "seccomp"}

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox needs Linux")


def run(*arguments: str, prefix: tuple[str, ...] = (), python: str = sys.executable) -> dict:
    done = start(*arguments, prefix=prefix, python=python)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def start(*arguments: str, prefix: tuple[str, ...] = (), python: str = sys.executable) -> subprocess.CompletedProcess:
    environment = dict(os.environ, PYTHONPATH=sysconfig.get_path("purelib"))
    command = [*prefix, python, SCRIPT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd="/")


def assert_unharmed(report: dict, layers: set[str]) -> None:
    succeeded = {name: said for name, (status, _, said) in report["outcomes"].items() if status == "correct"}
    assert succeeded == {}
    assert len(report["outcomes"]) >= 100
    assert report["victim"] == "alive"
    assert report["directory"] == DIRECTORY_UNTOUCHED
    assert {name for name, state in report["layers"].items() if state == "active"} == layers


def as_nobody() -> tuple[tuple[str, ...], str]:
    """Give a command prefix that becomes nobody, and an interpreter that nobody may run."""
    setpriv = shutil.which("setpriv")
    if setpriv is None or os.geteuid() != 0:
        pytest.skip("needs root and setpriv to become nobody")
    prefix = (setpriv, "--reuid", "65534", "--regid", "65534", "--clear-groups")
    version = f"python3.{sys.version_info.minor}"
    start_itself = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    for python in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        if subprocess.run([*prefix, python, "-c", start_itself], capture_output=True).returncode == 0:
            return prefix, python
    pytest.skip(f"needs a {version} that nobody may run")


def test_positive_control_most_attacks_succeed_without_a_sandbox() -> None:
    report = run("bare")
    succeeded = [name for name, (status, _, _) in report["outcomes"].items() if status == "correct"]
    assert len(succeeded) >= len(report["outcomes"]) // 2
    assert report["directory"] != DIRECTORY_UNTOUCHED


def test_no_attack_succeeds_as_the_user_who_runs_the_tests() -> None:
    report = run("sandbox")
    active = {name for name, state in report["layers"].items() if state == "active"}
    assert_unharmed(report, active)
    assert {"seccomp", "rlimits", "no_new_privs"} <= active


def test_no_attack_succeeds_as_nobody() -> None:
    prefix, python = as_nobody()
    report = run("sandbox", prefix=prefix, python=python)
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
def test_no_attack_succeeds_in_poorer_surroundings(denied: list[str], lost: set[str]) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("needs x86_64: the emulated surroundings are filters of its system calls")
    report = run("sandbox", "--deny", *denied)
    missing_here = {name for name in EVERY_LAYER if name not in report["layers"]}
    assert_unharmed(report, EVERY_LAYER - lost - missing_here)


def test_a_stranger_is_refused_where_the_kernel_has_no_seccomp() -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("needs x86_64: the emulated surroundings are filters of its system calls")
    done = start("sandbox", "--deny", "seccomp")
    assert done.returncode != 0
    assert "SandboxUnavailable: grader 'attacker': expected the layers ['seccomp']" in done.stderr
    assert "seccomp(): Invalid argument" in done.stderr
