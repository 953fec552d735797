"""Commands on two processes that torchrun starts."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def start(*command: str) -> "subprocess.Popen[str]":
    """Start a command on two processes."""
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def torchrun(*command: str) -> str:
    """Run a command on two processes and return their output."""
    with start(*command) as running:
        out, errors = running.communicate(timeout=120)
    assert running.returncode == 0, errors[-3000:]
    return out


def failing(*command: str) -> list[str]:
    """Run a command on two processes that must fail, and return the error lines of `mathppo`."""
    with start(*command) as running:
        return said(running)


def said(running: "subprocess.Popen[str]") -> list[str]:
    """Wait for processes that must fail, and return the error lines of `mathppo`."""
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 1, errors[-3000:]
    return [line for line in errors.splitlines() if line.startswith("mathppo: ")]


def process_of_rank(rank: int, running: "subprocess.Popen[str]") -> int:
    """Return the id of the process that torchrun started for a rank."""
    wanted = f"RANK={rank}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == running.pid and wanted in (process / "environ").read_bytes().split(b"\0"):
                return int(process.name)
        except OSError:  # it has ended
            continue
    raise AssertionError(f"no process of rank {rank}")
