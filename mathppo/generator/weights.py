"""Weights on their way to an engine: whole, named as its model folder names them, and on disk where it is elsewhere.

An engine that has been given half a model cannot be mended (vLLM 0.32), so names and shapes are compared before it sees
anything. A tied head has to be there although checkpoints leave it out: vLLM on a CPU keeps a packed copy of its own,
which would stay as it was without a word.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mathppo.errors import BadCheckpoint
from mathppo.generator.shm_cleanup import Claim

TIED_HEAD = "lm_head.weight"
EMBEDDINGS = "embed_tokens.weight"


def expected_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Give the shape of each tensor that a Hugging Face folder holds, read off its safetensors headers.

    Raises:
        BadCheckpoint: there is no model folder, or it holds no weights.
    """
    if not (folder / "config.json").is_file():
        raise BadCheckpoint(
            f"{folder}: expected a Hugging Face model folder, found no config.json there; give the folder that holds it"
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
    """Tell whether a model folder's head is its embeddings."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return bool(config.get("tie_word_embeddings", False))


def check_weights(
    weights: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], *, is_tied: bool, policy_step: int
) -> None:
    """Refuse weights that are not those of the engine's model, all of them.

    Args:
        weights: what a trainer sends.
        expected: as `expected_shapes` reads them.
        is_tied: the head is the embeddings; it has to be sent all the same.
        policy_step: said in messages.

    Raises:
        BadCheckpoint: a tensor is missing, unknown or of another shape.
    """
    wanted = dict(expected)
    if is_tied and TIED_HEAD not in wanted and any(name.endswith(EMBEDDINGS) for name in wanted):
        wanted[TIED_HEAD] = next(shape for name, shape in wanted.items() if name.endswith(EMBEDDINGS))
    faults = [f"no {name}" for name in wanted if name not in weights]
    faults += [f"unknown {name}" for name in weights if name not in wanted]
    faults += [
        f"{name} of shape {tuple(weights[name].shape)} instead of {shape}"
        for name, shape in wanted.items()
        if name in weights and tuple(weights[name].shape) != shape
    ]
    if faults:
        raise BadCheckpoint(
            f"weights of step {policy_step}: expected the {len(wanted)} tensors of the engine's model, got {faults[0]} "
            f"({len(faults)} differences); send the policy's whole state_dict(), tied head included"
        )


class WeightsFile:
    """The newest weights in a folder that an engine of another process reads.

    Args:
        folder: shared with the engine; None = a new one in memory where the system has a disk there.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._claim = Claim() if folder is None else None
        self.folder = self._claim.folder if self._claim is not None else Path(folder or "")
        self._newest: Path | None = None

    def write(self, weights: Mapping[str, Tensor], policy_step: int, dtype: torch.dtype) -> Path:
        """Write weights under a name of their own and give it; the ones before are removed afterwards."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{policy_step:06d}.safetensors"
        # Copies, for tied tensors share memory and a file may not.
        save_file({name: _copy(tensor, dtype) for name, tensor in weights.items()}, path)
        if self._newest not in (None, path):
            assert self._newest is not None
            self._newest.unlink(missing_ok=True)
        self._newest = path
        return path

    def close(self) -> None:
        """Remove what was written."""
        if self._newest is not None:
            self._newest.unlink(missing_ok=True)
        if self._claim is not None:
            self._claim.close()


def _copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    kept = dtype if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to("cpu", kept, copy=True).contiguous()
