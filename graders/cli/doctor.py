"""What the sandbox is worth on this machine: a real worker per tier, its layers, and attempts that must fail."""

import platform
import sys
from typing import Literal

import msgspec

from graders.errors import GraderError
from graders.sandbox.host.pool import GraderPool
from graders.sandbox.protocol import Layer
from graders.verdict import Status

TIERS = {
    "shipped graders": "math",
    "third-party graders": "graders.sandbox.child.probes:ProbeGrader",
    "programs": "python",
}
_PROGRAM = "```python\nprint(int(input()) + 1)\n```", '[{"input": "1", "output": "2"}]'
_SMOKE = {
    "shipped graders": ("\\boxed{1/2}", "0.5"),
    "third-party graders": ("known right", ""),
    "programs": _PROGRAM,
}
PROBE_LIMIT_S = 0.3


class Tier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way of grading: whether it runs here, behind which layers, or why it does not."""

    name: str
    state: Literal["ready", "refused", "failed"]
    reason: str
    layers: list[Layer]


class Probe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One attempt to do what a worker must not; `held` if it was stopped."""

    name: str
    held: bool
    outcome: str


class Examination(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record that `graders doctor --json` prints; a run's manifest keeps the tier that graded it."""

    state: Literal["whole", "degraded", "unsafe"]
    system: str
    python: str
    tiers: list[Tier]
    probes: list[Probe]

    @property
    def exit_code(self) -> int:
        return {"whole": 0, "degraded": 2, "unsafe": 3}[self.state]


def examine() -> Examination:
    """Start a worker of every tier and probe it; takes a few seconds."""
    tiers = [_tier(name, spec) for name, spec in TIERS.items()]
    probes = [*_probes(), _parity()]
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return Examination(_state(tiers, probes), system, sys.version.split()[0], tiers, probes)


def standing(pool: GraderPool) -> Tier:
    """Give the record of one running pool as `examine` would, without attempts to break out: it takes no time."""
    return Tier(pool.name, "ready", "", pool.layers)


def render(examination: Examination) -> str:
    """Give the record as text for a person."""
    lines = [f"{examination.system}, Python {examination.python}: {examination.state}", ""]
    for tier in examination.tiers:
        lines.append(f"{tier.name}: {tier.state}" + (f" ({tier.reason})" if tier.reason else ""))
        lines += [f"  {layer.name:14} {layer.state:12} {layer.evidence}" for layer in tier.layers]
    lines += ["", "attempts that must fail"]
    lines += [
        f"  {'held' if probe.held else 'ESCAPED':8} {probe.name}: {probe.outcome}" for probe in examination.probes
    ]
    return "\n".join(lines)


def _tier(name: str, spec: str) -> Tier:
    try:
        with GraderPool(spec, num_workers=1) as pool:
            verdict = pool.grade([_SMOKE[name]])[0]
            state = "ready" if verdict.correct else "failed"
            return Tier(name, state, "" if verdict.correct else f"{verdict.status}: {verdict.detail}", pool.layers)
    except GraderError as error:
        return Tier(name, "refused", str(error), [])


def _probes() -> list[Probe]:
    from graders.sandbox.child.probes import PROBES

    try:
        with GraderPool(TIERS["third-party graders"], time_limit_s=PROBE_LIMIT_S, require=[]) as pool:
            verdicts = pool.grade([(name, "") for name in PROBES])
    except GraderError as error:
        return [Probe("start a worker", False, str(error))]
    return [
        Probe(name, verdict.status is not Status.CORRECT, f"{verdict.status.value}, {verdict.method}: {verdict.detail}")
        for name, verdict in zip(PROBES, verdicts, strict=True)
    ]


def _parity() -> Probe:
    """Compare verdicts inside the sandbox with those outside on the default grader's examples."""
    from graders.grader import resolve

    name = "change a verdict by locking down"
    grader = resolve("math")
    examples: tuple[tuple[str, str, str], ...] = getattr(grader, "examples", ())
    try:
        with GraderPool("math") as pool:
            inside = pool.grade([(completion, reference) for completion, reference, _ in examples])
    except GraderError as error:
        return Probe(name, False, str(error))
    outside = [grader.grade(completion, reference) for completion, reference, _ in examples]
    changed = [a.detail for a, b in zip(inside, outside, strict=True) if a.status != b.status]
    return Probe(
        name, not changed, changed[0] if changed else f"{len(examples)} verdicts are the same inside and outside"
    )


def _state(tiers: list[Tier], probes: list[Probe]) -> Literal["whole", "degraded", "unsafe"]:
    if not all(probe.held for probe in probes) or any(tier.state == "failed" for tier in tiers):
        return "unsafe"
    layers = [layer for tier in tiers for layer in tier.layers]
    if any(tier.state != "ready" for tier in tiers) or any(layer.state != "active" for layer in layers):
        return "degraded"
    return "whole"
