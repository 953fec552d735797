"""Run directory: its paths, its manifest, and the lock that keeps other processes out."""

import importlib.metadata
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from graders.sandbox_status import SandboxStatus
from mathppo.config import Config, encode_config, load_config
from mathppo.errors import BadSetting
from mathppo.storage import store
from mathppo.storage.files import claim, write_file, write_record

PACKAGES = ("mathppo", "torch", "transformers", "tokenizers", "safetensors", "sympy", "msgspec", "numpy")


class RunDirectory:
    """Paths in a run directory.

    Args:
        root: the run directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.toml"
        self.manifest = root / "manifest.json"
        self.wall_time = root / "wall_time.json"
        self.metrics = root / "metrics.jsonl"
        self.summary = root / "summary.json"
        self.train_problems = root / "problems" / "train"
        self.held_out_problems = root / "problems" / "held_out"
        self.warmstart = root / "warmstart"
        self.critic_pretraining = root / "critic_pretraining"
        self.checkpoints = root / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"{step:06d}"

    def iteration(self, number: int) -> Path:
        return self.root / "iterations" / f"{number:06d}"

    def evaluation(self, step: int) -> Path:
        return self.root / "evaluations" / f"{step:06d}"


def check_run(run: RunDirectory, config: Config) -> None:
    """Check that a run with these settings can start or resume there; nothing is written.

    Raises:
        BadSetting: the directory holds artefacts of a run with other settings, or files of no run.
    """
    if run.root.exists() and not run.root.is_dir():
        raise BadSetting(f"{run.root}: expected a folder, got a file; choose another --run-dir")
    if not run.root.exists() or not _has_artefacts(run):
        return
    if not run.config.is_file():
        raise BadSetting(
            f"{run.root}: expected an empty or missing folder, or a run to resume; choose another --run-dir"
        )
    saved = load_config(run.config)
    if saved != config:
        raise BadSetting(
            f"{run.root}: holds a run with other settings ({_first_difference(saved, config)}); choose another "
            "--run-dir, or delete it to start again"
        )


@contextmanager
def open_run(run: RunDirectory, config: Config, sandbox: SandboxStatus | None = None) -> Iterator[None]:
    """Start or resume a run, and lock its directory against other processes.

    Args:
        run: the run directory.
        config: settings of the run.
        sandbox: isolation of the grader's workers, for the manifest; None if nothing is graded.

    Raises:
        BadSetting: see `check_run`.
        BadArtefact: another process has locked the directory.
    """
    run.root.mkdir(parents=True, exist_ok=True)
    with claim(run.root):
        check_run(run, config)
        if not _has_artefacts(run):
            write_record(run.manifest, manifest(config, sandbox))
            write_file(run.config, encode_config(config))
        yield


def _has_artefacts(run: RunDirectory) -> bool:
    """Return True if the directory holds more than settings, manifest and times: only then are its settings fixed."""
    head = {run.config.name, run.manifest.name, run.wall_time.name} if run.manifest.is_file() else set[str]()
    return any(path.name not in head and not path.name.startswith(".") for path in run.root.iterdir())


def manifest(config: Config, sandbox: SandboxStatus | None) -> dict[str, Any]:
    """Return what a run was made with: versions, commit, seed, machine, settings, isolation of the grader.

    It contains no environment variable and no path.
    """
    return {
        "schema": "manifest/1",
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": versions(),
        "git_commit": _git_commit(),
        "seed": config.run.seed,
        "config_sha256": store.fingerprint(config=config),
        "grader_sandbox": sandbox,
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that affect what a run computes."""
    return {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _git_commit() -> str:
    """Return the commit of the source tree this runs from; "" if it is not a checkout."""
    git = Path(__file__).resolve().parents[2] / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        return head if not head.startswith("ref: ") else (git / head.removeprefix("ref: ")).read_text().strip()
    except OSError:
        return ""


def _first_difference(old: Config, new: Config) -> str:
    for section, body in msgspec.to_builtins(old).items():
        other = msgspec.to_builtins(new)[section]
        for name, value in body.items():
            if value != other[name]:
                return f"{section}.{name} is {value!r} there and {other[name]!r} now"
    return "none"
