"""The `graders` command line starts without heavy imports."""

import subprocess
import sys

SLOW_TO_IMPORT = {"asyncio", "importlib.metadata", "mpmath", "sympy", "torch", "transformers", "uvicorn"}


def test_check_imports_no_slow_module() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "graders", "check", "2", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "graders.sandbox.host.pool" in imported
    assert imported & SLOW_TO_IMPORT == set()
