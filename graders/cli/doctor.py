"""`graders doctor`: prints the sandbox report of this machine."""

import argparse

import msgspec

from graders.sandbox_status import SandboxReport, examine_sandbox


def doctor(options: argparse.Namespace) -> int:
    """Examine the sandbox and return 0 if it is whole, 2 if degraded, 3 if unsafe."""
    report = examine_sandbox()
    print(msgspec.json.encode(report).decode() if options.json else render(report))
    return report.exit_code


def render(report: SandboxReport) -> str:
    """Return the report as readable text."""
    lines = [f"{report.system}, Python {report.python}: {report.state}", ""]
    for tier in report.tiers:
        lines.append(f"{tier.name}: {tier.state}" + (f" ({tier.reason})" if tier.reason else ""))
        lines += [f"  {layer.name:14} {layer.state:12} {layer.evidence}" for layer in tier.layers]
    lines += ["", "attempts that must fail"]
    lines += [f"  {'held' if probe.held else 'ESCAPED':8} {probe.name}: {probe.outcome}" for probe in report.probes]
    return "\n".join(lines)
