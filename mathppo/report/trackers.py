"""Sends a run's metrics to TensorBoard, trackio or wandb, each an optional dependency.

The metrics log remains the source of truth. A tracker reads it during the run or afterwards.
"""

import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from mathppo.errors import BadInput, BadSetting
from mathppo.metrics import read_rows

POLL_S = 2.0
"""Seconds between polls of a growing log."""


class Tracker(Protocol):
    """Destination of metrics."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of one iteration."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...


class TensorBoardTracker:
    """Event files in `tensorboard/` of the run, for `tensorboard --logdir`."""

    def __init__(self, run_dir: Path) -> None:
        writer: Any = _module("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer = writer(log_dir=str(run_dir / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class NamedRunTracker:
    """`trackio` or `wandb`, which share the interface `init`, `log`, `finish`.

    Args:
        package: name of the package.
        run_dir: run directory; its name becomes the run's name.
    """

    def __init__(self, package: str, run_dir: Path) -> None:
        self._package = _module(package, package)
        self._package.init(project="mathppo", name=run_dir.resolve().name)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._package.log(dict(metrics), step=step)

    def close(self) -> None:
        self._package.finish()


TRACKERS: Mapping[str, Callable[[Path], Tracker]] = MappingProxyType(
    {
        "tensorboard": TensorBoardTracker,
        "trackio": lambda run_dir: NamedRunTracker("trackio", run_dir),
        "wandb": lambda run_dir: NamedRunTracker("wandb", run_dir),
    }
)


def track(run_dir: Path, name: str, *, follow: bool = False) -> int:
    """Send a run's metrics to a tracker and return the number of iterations.

    Args:
        run_dir: directory written by `mathppo train`.
        name: one of `TRACKERS`.
        follow: continue until the run finishes.

    Raises:
        BadSetting: the tracker is unknown or not installed.
        BadInput: the folder has no metrics.
    """
    if name not in TRACKERS:
        raise BadSetting(f"track: expected one of {', '.join(TRACKERS)}, got {name!r}")
    if not follow and not (run_dir / "metrics.jsonl").is_file():
        raise BadInput(f"{run_dir}: expected a run directory, found no metrics.jsonl in it; pass train's --run-dir")
    tracker = TRACKERS[name](run_dir)
    count = 0
    try:
        for step, metrics in _iterations(run_dir, follow=follow):
            tracker.log(step, metrics)
            count += 1
    finally:
        tracker.close()
    return count


def _iterations(run_dir: Path, *, follow: bool) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield each iteration once, although a resumed run logs some twice; skip metrics that are lists."""
    last = 0
    while True:
        finished = (run_dir / "summary.json").is_file()
        rows = read_rows(run_dir / "metrics.jsonl")[1] if (run_dir / "metrics.jsonl").is_file() else []
        for row in rows:
            if row.iteration > last:
                last = row.iteration
                yield row.iteration, {key: x for key, x in row.metrics.items() if isinstance(x, float)}
        if finished or not follow:
            return
        time.sleep(POLL_S)


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise BadSetting(
            f"track: expected {package} to be installed, found no such package; pip install 'mathppo[trackers]'"
        ) from None
