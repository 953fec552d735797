"""Checkpoints: weights in Hugging Face format, optimizer state beside them, written whole or not at all.

    000040/
      policy/               model.safetensors, config.json, tokenizer: what transformers and vLLM load as they are
      critic/               the same, as a token classifier with one label; absent without a critic
      optimizers.safetensors   AdamW moments, by `policy.<parameter>.<moment>` and `critic.<parameter>.<moment>`
      adapters.safetensors     LoRA's factors and the weights beside them, whose sum is above; absent without LoRA
      checkpoint.json       the step, and the sha256 of every file above

There is no random state to save: every random number of a run derives from its seed and the step (`mathppo.seeds`).
"""

import errno
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Protocol

import msgspec
import torch
from msgspec import Meta
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer

from mathppo.errors import BadCheckpoint
from mathppo.learner.backend.sharding import like
from mathppo.records import Record
from mathppo.storage import store
from mathppo.storage.files import finish_replacing, remove_folder, replace_folder, write_file

HEADER = "checkpoint.json"
OPTIMIZERS = "optimizers.safetensors"
ADAPTERS = "adapters.safetensors"


class CheckpointHeader(Record, frozen=True, tag="checkpoint/1"):
    """What `checkpoint.json` says.

    Args:
        step: number of updates that the weights have seen.
        sha256: of every other file, by its path within the folder.
        numbers: what else a resumed run needs, by name, for instance the KL coefficient of the moment.
    """

    step: Annotated[int, Meta(ge=0)]
    sha256: dict[str, str]
    numbers: dict[str, float] = msgspec.field(default_factory=dict)


class Saveable(Protocol):
    """A model or tokenizer that writes itself in Hugging Face format."""

    def save_pretrained(self, save_directory: str | os.PathLike[str], /) -> object: ...


class Model(Protocol):
    """A model that writes itself, and can be given its weights for that."""

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], /, *, state_dict: dict[str, Tensor] | None = None
    ) -> object: ...


@dataclass(frozen=True)
class Weights:
    """A model to save with plain weights: gathered from shards, LoRA's factors added up; None = as they lie in it."""

    model: Model
    state: dict[str, Tensor] | None

    def save_pretrained(self, save_directory: str | os.PathLike[str], /) -> None:
        self.model.save_pretrained(save_directory, state_dict=self.state)


def save_checkpoint(
    path: Path,
    *,
    step: int,
    folders: Mapping[str, tuple[Saveable, ...]],
    optimizers: Mapping[str, Tensor],
    adapters: Mapping[str, Tensor] = MappingProxyType({}),
    numbers: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Write a checkpoint aside, flush it, and give it its name; an older one of that name is replaced.

    Args:
        path: the checkpoint's folder.
        step: number of updates seen.
        folders: what to save in which sub-folder, for instance `{"policy": (model, tokenizer)}`.
        optimizers: flat optimizer state.
        adapters: what the saved weights are the sum of, where they are one.
        numbers: what else a resumed run needs.
    """
    recover(path)
    aside = _aside(path)
    remove_folder(aside)
    aside.mkdir(parents=True)
    try:
        for name, parts in folders.items():
            for part in parts:
                part.save_pretrained(aside / name)
        for file, tensors in ((OPTIMIZERS, optimizers), (ADAPTERS, adapters)):
            if tensors:
                save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, aside / file)
    except SafetensorError as error:
        # How safetensors says that the disk is full.
        raise OSError(errno.EIO, str(error), str(path)) from error
    files = sorted(file for file in aside.rglob("*") if file.is_file())
    sha256 = {str(file.relative_to(aside)): _flush_and_hash(file) for file in files}
    header = CheckpointHeader(step=step, sha256=sha256, numbers=dict(numbers))
    write_file(aside / HEADER, msgspec.json.format(msgspec.json.encode(header)))
    replace_folder(aside, path)


def recover(path: Path) -> None:
    """Put a finished checkpoint in its place that a kill left beside it, in the moment of replacing an older one."""
    finish_replacing(_aside(path), path)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def verify_checkpoint(path: Path) -> CheckpointHeader:
    """Read the header and check every file against its hash.

    Raises:
        BadCheckpoint: missing, damaged, or no checkpoint of this project.
    """
    try:
        header = msgspec.json.decode((path / HEADER).read_bytes(), type=CheckpointHeader)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadCheckpoint(f"{path}: expected a checkpoint folder with {HEADER}, got: {error}") from None
    for name, expected in header.sha256.items():
        file = path / name
        if not file.resolve().is_relative_to(path.resolve()) or not file.is_file():
            raise BadCheckpoint(f"{file}: expected a file that {HEADER} names, found none; use another checkpoint")
        if _hash(file) != expected:
            raise BadCheckpoint(f"{file}: damaged, its sha256 is not the one in {HEADER}; use another checkpoint")
    return header


def checkpoint_step(path: Path) -> int:
    """Give the step a checkpoint folder's policy has seen; 0 for a plain Hugging Face folder."""
    return verify_checkpoint(path).step if (path / HEADER).is_file() else 0


def policy_folder(path: Path) -> Path:
    """Give the Hugging Face folder of a checkpoint's policy; a plain Hugging Face folder is its own."""
    return path / "policy" if (path / HEADER).is_file() else path


def weights_id(path: Path) -> str:
    """Give an identity of a policy's weights: the sha256 of its safetensors files, by name."""
    files = sorted(policy_folder(path).glob("*.safetensors"))
    if not files:
        raise BadCheckpoint(f"{path}: expected a folder with *.safetensors, found none")
    return store.fingerprint(files={file.name: _hash(file) for file in files})


def load_optimizers(path: Path) -> dict[str, Tensor]:
    """Load the flat optimizer state; empty where the checkpoint holds none."""
    return load_file(path / OPTIMIZERS) if (path / OPTIMIZERS).is_file() else {}


def load_adapters(path: Path) -> dict[str, Tensor]:
    """Load what the weights are the sum of; empty where the checkpoint was made without LoRA."""
    return load_file(path / ADAPTERS) if (path / ADAPTERS).is_file() else {}


def optimizer_tensors(prefix: str, names: Mapping[str, Tensor], optimizer: Optimizer) -> dict[str, Tensor]:
    """Flatten an optimizer's state to `<prefix>.<parameter>.<moment>`."""
    return {
        f"{prefix}.{name}.{moment}": value if isinstance(value, Tensor) else torch.tensor(value)
        for name, parameter in names.items()
        for moment, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(
    prefix: str,
    names: Mapping[str, Tensor],
    optimizer: Optimizer,
    tensors: Mapping[str, Tensor],
    *,
    where: Path,
    moments: Sequence[str] = ("step", "exp_avg", "exp_avg_sq"),
) -> None:
    """Put back what `optimizer_tensors` gave.

    Args:
        prefix: as `optimizer_tensors` was given it.
        names: the parameters by name.
        optimizer: that of the parameters.
        tensors: flat optimizer state, of others too.
        where: the checkpoint, for messages.
        moments: what must be there; all but `step` in the parameter's shape.

    Raises:
        BadCheckpoint: a moment is missing or of another shape.
    """
    if not any(key.startswith(f"{prefix}.") for key in tensors):
        return
    for name, parameter in names.items():
        start = f"{prefix}.{name}."
        state = {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
        for moment in moments:
            value = state.get(moment)
            if value is None or (moment != "step" and value.shape != parameter.shape):
                raise BadCheckpoint(
                    f"{where / OPTIMIZERS}: expected {start}{moment} of shape {tuple(parameter.shape)}, got "
                    f"{'none' if value is None else tuple(value.shape)}; it belongs to another model or optimizer"
                )
        restored: dict[str, Any] = {}
        for moment, value in state.items():
            if moment == "step":  # AdamW keeps a tensor of one float, 8-bit AdamW a number
                restored[moment] = value if value.is_floating_point() else int(value)
            else:
                restored[moment] = like(value, parameter) if moment in moments else value.to(parameter.device)
        optimizer.state[parameter] = restored  # type: ignore[index]


def list_checkpoints(folder: Path) -> list[Path]:
    """Give the finished checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob("[0-9]*") if (path / HEADER).is_file())


def prune_checkpoints(folder: Path, *, keep: int) -> None:
    """Remove all but step 0 and the `keep` newest checkpoints."""
    for path in list_checkpoints(folder)[1:-keep]:
        remove_folder(path)


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush_and_hash(path: Path) -> str:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return _hash(path)
