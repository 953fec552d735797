"""Sandbox status: runs a real worker per tier, records its isolation layers, and tries to break out of it."""

import platform
import sys
from typing import Literal

import msgspec

from graders.errors import GraderError
from graders.grader import option_of, resolve
from graders.sandbox.host.pool import GraderPool
from graders.sandbox.protocol import Layer
from graders.verdict import Status

THIRD_PARTY = "graders.sandbox.child.probes:ProbeGrader"
TIERS = {
    "shipped graders": ("math", ("\\boxed{1/2}", "0.5")),
    "third-party graders": (THIRD_PARTY, ("known right", "")),
    "programs": ("python", ("```python\nprint(int(input()) + 1)\n```", '[{"input": "1", "output": "2"}]')),
}
"""A grader of each tier and a (completion, reference) that it must find correct."""
PROBE_LIMIT_S = 0.3


class SandboxStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of one tier of graders on this machine, its isolation layers, and the reason if it does not run."""

    name: str
    state: Literal["ready", "refused", "failed"]
    reason: str
    layers: list[Layer]


class Probe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One attempt to do what a worker must not do; `held` if the sandbox stopped it."""

    name: str
    held: bool
    outcome: str


class SandboxReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record that `graders doctor --json` prints; the manifest of a run stores the tier that graded it."""

    state: Literal["whole", "degraded", "unsafe"]
    system: str
    python: str
    tiers: list[SandboxStatus]
    probes: list[Probe]

    @property
    def exit_code(self) -> int:
        return {"whole": 0, "degraded": 2, "unsafe": 3}[self.state]


def sandbox_status(pool: GraderPool) -> SandboxStatus:
    """Return the status of a running pool, without any attempt to break out; returns at once."""
    return SandboxStatus(pool.name, "ready", "", pool.layers)


def examine_sandbox() -> SandboxReport:
    """Start a worker of every tier and run the probes; takes a few seconds."""
    tiers = [_tier_status(name) for name in TIERS]
    probes = [*_break_out_probes(), _parity_probe()]
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return SandboxReport(overall_state(tiers, probes), system, sys.version.split()[0], tiers, probes)


def overall_state(tiers: list[SandboxStatus], probes: list[Probe]) -> Literal["whole", "degraded", "unsafe"]:
    """Return `unsafe` if a probe escaped or a tier failed, `degraded` if a tier or layer is missing, else `whole`."""
    if not all(probe.held for probe in probes) or any(tier.state == "failed" for tier in tiers):
        return "unsafe"
    layers = [layer for tier in tiers for layer in tier.layers]
    if any(tier.state != "ready" for tier in tiers) or any(layer.state != "active" for layer in layers):
        return "degraded"
    return "whole"


def _tier_status(name: str) -> SandboxStatus:
    spec, known_correct = TIERS[name]
    try:
        with GraderPool(spec, num_workers=1) as pool:
            verdict = pool.grade([known_correct])[0]
            if verdict.correct:
                return SandboxStatus(name, "ready", "", pool.layers)
            return SandboxStatus(name, "failed", f"{verdict.status}: {verdict.detail}", pool.layers)
    except GraderError as error:
        return SandboxStatus(name, "refused", str(error), [])


def _break_out_probes() -> list[Probe]:
    from graders.sandbox.child.probes import PROBES

    try:
        with GraderPool(THIRD_PARTY, time_limit_s=PROBE_LIMIT_S, require=[]) as pool:
            verdicts = pool.grade([(name, "") for name in PROBES])
    except GraderError as error:
        return [Probe("start a worker", False, str(error))]
    return [
        Probe(name, verdict.status is not Status.CORRECT, f"{verdict.status.value}, {verdict.method}: {verdict.detail}")
        for name, verdict in zip(PROBES, verdicts, strict=True)
    ]


def _parity_probe() -> Probe:
    """Compare verdicts inside and outside the sandbox on the examples of the default grader."""
    name = "change a verdict by locking down"
    grader = resolve("math")
    pairs = [(completion, reference) for completion, reference, _ in option_of(grader, "examples", ())]
    try:
        with GraderPool("math") as pool:
            inside = pool.grade(pairs)
    except GraderError as error:
        return Probe(name, False, str(error))
    outside = [grader.grade(*pair) for pair in pairs]
    changed = [a.detail for a, b in zip(inside, outside, strict=True) if a.status != b.status]
    if changed:
        return Probe(name, False, changed[0])
    return Probe(name, True, f"{len(pairs)} verdicts are the same inside and outside")
