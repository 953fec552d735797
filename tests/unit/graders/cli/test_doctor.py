"""The doctor tells whole from degraded from unsafe, by evidence, and says so in its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from graders import cli
from graders.cli import doctor
from graders.cli.doctor import Examination, Probe, Tier, examine, render
from graders.sandbox.protocol import Layer

SURROUNDINGS = Path(__file__).parents[3] / "security"


def layer(state: str) -> Layer:
    return msgspec.convert({"name": "landlock", "state": state, "evidence": "told"}, Layer)


@pytest.mark.parametrize(
    ("tier_state", "layer_state", "held", "expected", "exit_code"),
    [
        ("ready", "active", True, "whole", 0),
        ("ready", "unavailable", True, "degraded", 2),
        ("refused", "active", True, "degraded", 2),
        ("failed", "active", True, "unsafe", 3),
        ("ready", "active", False, "unsafe", 3),
    ],
)
def test_state_and_exit_code(tier_state: str, layer_state: str, held: bool, expected: str, exit_code: int) -> None:
    tier = msgspec.convert({"name": "t", "state": tier_state, "reason": "", "layers": [layer(layer_state)]}, Tier)
    probes = [Probe("fork", held, "")]
    state = doctor._state([tier], probes)
    examination = Examination(state, "Linux", "3.11", [tier], probes)
    assert (examination.state, examination.exit_code) == (expected, exit_code)
    assert ("ESCAPED" in render(examination)) is not held


def test_this_machine_holds_every_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    examination = examine()
    assert [probe.name for probe in examination.probes if not probe.held] == []
    assert len(examination.probes) >= 15
    assert {tier.name: tier.state for tier in examination.tiers} == dict.fromkeys(doctor.TIERS, "ready")
    assert "shipped graders: ready" in render(examination)
    assert msgspec.json.decode(msgspec.json.encode(examination), type=Examination) == examination


def doctor_where(*denied: str) -> tuple[int, dict]:
    program = (
        f"import sys; sys.path.insert(0, {str(SURROUNDINGS)!r}); import restrictions; "
        f"restrictions.deny({list(denied)!r}); from graders import cli; sys.exit(cli.main(['doctor', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.skipif(
    os.uname().machine != "x86_64", reason="the emulated surroundings are filters of x86_64 system calls"
)
@pytest.mark.parametrize(
    ("denied", "exit_code", "refused"),
    [
        pytest.param(["landlock"], 2, [], marks=pytest.mark.slow),
        pytest.param(["namespaces"], 2, [], marks=pytest.mark.slow),
        (["docker"], 2, []),
        (["seccomp"], 3, ["third-party graders", "programs"]),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_what_the_kernel_refuses_is_reported_never_pretended(
    denied: list[str], exit_code: int, refused: list[str]
) -> None:
    code, examination = doctor_where(*denied)
    assert code == exit_code
    assert [tier["name"] for tier in examination["tiers"] if tier["state"] == "refused"] == refused
    layers = {layer["name"]: layer for tier in examination["tiers"] for layer in tier["layers"]}
    for name in set(denied) - {"docker"}:
        assert layers[name]["state"] == "unavailable"
        assert layers[name]["evidence"]
    if denied == ["seccomp"]:
        assert all("expected the layers" in t["reason"] for t in examination["tiers"] if t["state"] == "refused")


def test_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) in (0, 2)
    assert "attempts that must fail" in capsys.readouterr().out
