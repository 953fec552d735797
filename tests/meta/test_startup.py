"""Commands import torch and transformers only if they use them, so that the others start in a fraction of a second."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "datasets", "pyarrow", "scipy", "matplotlib")
WITHOUT_HEAVY_IMPORTS = {
    "mathppo": (
        *("--help", "train --help", "conformance --help"),
        *("compare MISSING MISSING", "score MISSING", "export MISSING --format=lm-eval --out=MISSING"),
        *("report MISSING", "report MISSING --terminal", "track MISSING --to=wandb"),
    ),
    "graders": ("--help", "check 1/2 0.5", "check --help", "doctor --help"),
}
"""Commands by program. MISSING is a folder that does not exist: the command imports all it uses, then fails with 2."""

LIGHT_MODULES = (
    *("mathppo.cli.result_commands", "mathppo.cli.tool_commands", "mathppo.report", "mathppo.report.trackers"),
    *("mathppo.pipeline.run_directory", "mathppo.storage.store", "mathppo.config", "mathppo.prompts"),
)
REPORT = f"""
import sys
print(*(name for name in {HEAVY} if name in sys.modules))
"""


def loaded(code: str) -> list[str]:
    """Run code in a new interpreter and return the heavy packages that it has imported at its end."""
    ran = subprocess.run([sys.executable, "-c", code + REPORT], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    ("program", "arguments"), [(name, text) for name, texts in WITHOUT_HEAVY_IMPORTS.items() for text in texts]
)
def test_command_starts_without_heavy_imports(program: str, arguments: str) -> None:
    code = f"""
from {program}.cli import main
try:
    main({arguments.split()})
except SystemExit:
    pass
"""
    assert loaded(code) == []


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_module_is_imported_without_heavy_imports(module: str) -> None:
    assert loaded(f"import {module}") == []


def test_doctor_imports_torch_but_not_transformers() -> None:
    assert loaded("from mathppo.cli import main\nmain(['doctor'])") == ["torch"]
