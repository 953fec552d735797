"""Where everything of a run lies, and what says how the run was made."""

import importlib.metadata
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from graders.sandbox_status import SandboxStatus
from mathppo.config import Config, encode_config, load_config
from mathppo.errors import BadSetting
from mathppo.storage import store

PACKAGES = ("mathppo", "torch", "transformers", "tokenizers", "safetensors", "sympy", "msgspec", "numpy")


@dataclass(frozen=True)
class RunDirectory:
    """Names within a run directory.

    Args:
        root: the run directory.
    """

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.json"

    @property
    def wall_time(self) -> Path:
        return self.root / "wall_time.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def train_problems(self) -> Path:
        return self.root / "problems" / "train"

    @property
    def held_out_problems(self) -> Path:
        return self.root / "problems" / "held_out"

    @property
    def warmstart(self) -> Path:
        return self.root / "warmstart"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"{step:06d}"

    def iteration(self, number: int) -> Path:
        return self.root / "iterations" / f"{number:06d}"

    def evaluation(self, step: int) -> Path:
        return self.root / "evaluations" / f"{step:06d}"


def check_run(run: RunDirectory, config: Config) -> None:
    """See that a run with these settings can begin or go on there; nothing is written.

    Raises:
        BadSetting: the directory holds a run with other settings that has made something, or no run.
    """
    if run.root.exists() and not run.root.is_dir():
        raise BadSetting(f"{run.root}: expected a folder, got a file; choose another --run-dir")
    if not run.root.exists() or not _has_begun(run):
        return
    if not run.config.is_file():
        raise BadSetting(
            f"{run.root}: expected an empty or missing folder, or a run to go on with; choose another --run-dir"
        )
    begun = load_config(run.config)
    if begun != config:
        raise BadSetting(
            f"{run.root}: holds a run with other settings ({_first_difference(begun, config)}); choose another "
            "--run-dir, or delete it to begin anew"
        )


@contextmanager
def open_run(run: RunDirectory, config: Config, sandbox: SandboxStatus | None = None) -> Iterator[None]:
    """Begin a run, or go on with the one that is there, and keep every other process out of it meanwhile.

    Args:
        run: where.
        config: the run's settings.
        sandbox: what isolates the grader's workers, for the manifest; None where nothing is graded.

    Raises:
        BadSetting: see `check_run`.
        BadArtefact: another process is at work there.
    """
    run.root.mkdir(parents=True, exist_ok=True)
    with store.claim(run.root):
        check_run(run, config)
        if not _has_begun(run):
            store.write_file(run.manifest, msgspec.json.format(msgspec.json.encode(manifest(config, sandbox))))
            store.write_file(run.config, encode_config(config))
        yield


def _has_begun(run: RunDirectory) -> bool:
    """Tell whether the directory holds more than what says how a run is made: else it may be made in another way."""
    own = {run.config.name, run.manifest.name, run.wall_time.name} if run.manifest.is_file() else set[str]()
    return any(path.name not in own and not path.name.startswith(".") for path in run.root.iterdir())


def manifest(config: Config, sandbox: SandboxStatus | None) -> dict[str, Any]:
    """Say with what a run was made: versions, commit, seed, machine, settings, isolation of the grader.

    No environment variable, no path.
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
    """Give the versions of the packages that decide what a run computes."""
    return {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _git_commit() -> str:
    """Give the commit of the source tree this runs from; "" where it is no checkout."""
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
