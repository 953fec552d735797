"""Checks weights before they are sent to an engine, and writes them to a file for engines in other processes.

vLLM 0.32 cannot recover from a partial update, so names and shapes are checked before anything is sent. A tied head
must be included although checkpoints omit it: vLLM on a CPU keeps a separate packed copy of it, which would otherwise
silently stay outdated.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mathppo.errors import BadCheckpoint
from mathppo.generator.shm_cleanup import ShmFolder

TIED_HEAD = "lm_head.weight"
EMBEDDINGS = "embed_tokens.weight"


def expected_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in a Hugging Face folder, read from its safetensors headers.

    Raises:
        BadCheckpoint: not a model folder, or a folder without weights.
    """
    if not (folder / "config.json").is_file():
        raise BadCheckpoint(
            f"{folder}: expected a Hugging Face model folder, found no config.json; pass the folder that contains it"
        )
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise BadCheckpoint(f"{path}: expected a whole safetensors file, got: {error}; copy it again") from error
    if not shapes:
        raise BadCheckpoint(
            f"{folder}: expected weights in *.safetensors, found none; convert the model, for instance with import-gguf"
        )
    return shapes


def has_tied_head(folder: Path) -> bool:
    """Return True if the output head of a model folder is tied to its embeddings."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return bool(config.get("tie_word_embeddings", False))


def compare_weights(weights: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Describe each tensor that is missing, unknown or of another shape than expected."""
    differences = [f"no {name}" for name in expected if name not in weights]
    differences += [f"unknown {name}" for name in weights if name not in expected]
    differences += [
        f"{name} of shape {tuple(weights[name].shape)} instead of {shape}"
        for name, shape in expected.items()
        if name in weights and tuple(weights[name].shape) != shape
    ]
    return differences


def check_weights(
    weights: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], *, is_tied: bool, policy_step: int
) -> None:
    """Reject weights that are not the complete set of the engine's model.

    Args:
        weights: weights from the trainer.
        expected: shapes from `expected_shapes`.
        is_tied: True if the head is tied to the embeddings; it must be sent too.
        policy_step: used in messages.

    Raises:
        BadCheckpoint: a tensor is missing, unknown or of another shape.
    """
    wanted = dict(expected)
    if is_tied and TIED_HEAD not in wanted and any(name.endswith(EMBEDDINGS) for name in wanted):
        wanted[TIED_HEAD] = next(shape for name, shape in wanted.items() if name.endswith(EMBEDDINGS))
    differences = compare_weights(weights, wanted)
    if differences:
        raise BadCheckpoint(
            f"weights of step {policy_step}: expected the {len(wanted)} tensors of the engine's model, got "
            f"{differences[0]} ({len(differences)} differences); send the whole state_dict(), tied head included"
        )


class WeightsFile:
    """File with the newest weights, in a folder that an engine in another process reads.

    Args:
        folder: folder shared with the engine; None = a new one, in shared memory if available.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._shm = ShmFolder() if folder is None else None
        self.folder = self._shm.folder if self._shm is not None else Path(folder or "")
        self._newest: Path | None = None

    def write(self, weights: Mapping[str, Tensor], policy_step: int, dtype: torch.dtype) -> Path:
        """Write weights to a new file, remove the previous file and return the new path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{policy_step:06d}.safetensors"
        # Copy: tied tensors share memory, which safetensors rejects.
        save_file({name: _copy(tensor, dtype) for name, tensor in weights.items()}, path)
        if self._newest not in (None, path):
            assert self._newest is not None
            self._newest.unlink(missing_ok=True)
        self._newest = path
        return path

    def close(self) -> None:
        """Remove the file and a folder created here."""
        if self._newest is not None:
            self._newest.unlink(missing_ok=True)
        if self._shm is not None:
            self._shm.close()


def _copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    kept = dtype if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to("cpu", kept, copy=True).contiguous()
