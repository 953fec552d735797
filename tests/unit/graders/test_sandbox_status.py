"""Sandbox status: whole, degraded and unsafe sandboxes are distinguished, with evidence and an exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from graders import cli
from graders.cli.doctor import render
from graders.sandbox.protocol import Layer
from graders.sandbox_status import TIERS, Probe, SandboxReport, SandboxStatus, examine_sandbox, overall_state

SECURITY_TESTS = Path(__file__).parents[2] / "security"


def layer(state: str) -> Layer:
    return msgspec.convert({"name": "landlock", "state": state, "evidence": "observed"}, Layer)


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
def test_overall_state_and_exit_code(
    tier_state: str, layer_state: str, held: bool, expected: str, exit_code: int
) -> None:
    tier = {"name": "t", "state": tier_state, "reason": "", "layers": [layer(layer_state)]}
    tiers, probes = [msgspec.convert(tier, SandboxStatus)], [Probe("fork", held, "")]
    report = SandboxReport(overall_state(tiers, probes), "Linux", "3.11", tiers, probes)
    assert (report.state, report.exit_code) == (expected, exit_code)
    assert ("ESCAPED" in render(report)) is not held


def test_this_machine_stops_every_attempt_to_break_out() -> None:
    report = examine_sandbox()
    assert [probe.name for probe in report.probes if not probe.held] == []
    assert len(report.probes) >= 15
    assert {tier.name: tier.state for tier in report.tiers} == dict.fromkeys(TIERS, "ready")
    assert "shipped graders: ready" in render(report)
    assert msgspec.json.decode(msgspec.json.encode(report), type=SandboxReport) == report


def run_doctor_without(*denied: str) -> tuple[int, dict]:
    program = (
        f"import sys; sys.path.insert(0, {str(SECURITY_TESTS)!r}); import restrictions; "
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
def test_layers_that_the_kernel_denies_are_reported_as_unavailable(
    denied: list[str], exit_code: int, refused: list[str]
) -> None:
    code, report = run_doctor_without(*denied)
    assert code == exit_code
    assert [tier["name"] for tier in report["tiers"] if tier["state"] == "refused"] == refused
    layers = {layer["name"]: layer for tier in report["tiers"] for layer in tier["layers"]}
    for name in set(denied) - {"docker"}:
        assert layers[name]["state"] == "unavailable"
        assert layers[name]["evidence"]
    if denied == ["seccomp"]:
        assert all("expected the layers" in t["reason"] for t in report["tiers"] if t["state"] == "refused")


def test_doctor_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) in (0, 2)
    assert "attempts that must fail" in capsys.readouterr().out
