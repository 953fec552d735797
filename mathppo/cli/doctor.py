"""`mathppo doctor`: reports what works on this machine, and why the rest does not."""

import json
from typing import NamedTuple

import torch

from graders import GraderPool
from graders.errors import GraderError
from mathppo.errors import BadSetting
from mathppo.generator.vllm import vllm_memory, vllm_startup
from mathppo.pipeline.run_directory import versions


class Finding(NamedTuple):
    """Result of one check.

    Args:
        name: what was checked.
        works: True if it can be used.
        detail: what was found, or the reason why it cannot be used and the remedy.
    """

    name: str
    works: bool
    detail: str


def examine(*, as_json: bool) -> int:
    """Print all findings; return 0 if a run has what it needs, else 1."""
    findings = [_packages(), _accelerator(), _grader(), _embedded(), _vllm(), _servers()]
    if as_json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        for finding in findings:
            print(f"{'yes' if finding.works else 'no ':<4}{finding.name:<12}{finding.detail}")
    return 0 if all(finding.works for finding in findings if finding.name in ("packages", "grader")) else 1


def _packages() -> Finding:
    found = versions()
    missing = [name for name, version in found.items() if version == "not installed"]
    return Finding("packages", not missing, ", ".join(f"{name} {version}" for name, version in found.items()))


def _accelerator() -> Finding:
    if torch.cuda.is_available():
        return Finding("gpu", True, torch.cuda.get_device_name())
    return Finding("gpu", False, f"torch finds no GPU; runs use the CPU with {torch.get_num_threads()} threads")


def _grader() -> Finding:
    try:
        with GraderPool(num_workers=1) as pool:
            verdict = pool.grade([(r"\boxed{\frac{2}{4}}", "1/2")])[0]
    except GraderError as error:
        return Finding("grader", False, str(error))
    return Finding(
        "grader", verdict.correct, f"a sandboxed worker returned {verdict.status} in {verdict.duration_s:.4f} s"
    )


def _embedded() -> Finding:
    return Finding("hf", True, "embedded engine; runs wherever torch and transformers run")


def _vllm() -> Finding:
    reason = vllm_memory.unavailable_reason()
    if reason:
        return Finding("vllm", False, reason)
    try:
        version = vllm_startup.version()
    except BadSetting as error:
        return Finding("vllm", False, str(error))
    where = "the GPU, bfloat16" if torch.cuda.is_available() else "the CPU, float32"
    return Finding("vllm", True, f"{version}; set generator.engine=vllm; runs on {where}")


def _servers() -> Finding:
    return Finding(
        "servers", True, "vllm-http and openai need generator.url; the server is checked when a command starts"
    )
