"""LoRA: trained low-rank factors on frozen weights, merged into plain weights outside the learner.

Only the factors and a critic's head are trained. Engines and model folders get the merged weights, so nothing outside
the learner depends on LoRA (note M-learner-7).
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mathppo.config import LearnerSettings
from mathppo.errors import BadCheckpoint, BadSetting
from mathppo.learner.backend.models import PreTrainedModel
from mathppo.learner.backend.sharding import full_state, full_tensor, shard_like

FACTORS = ("lora_A", "lora_B")
"""Name parts of the trained factors."""


def inject(model: PreTrainedModel, settings: LearnerSettings, *, head: nn.Module | None = None, seed: int = 0) -> None:
    """Add factors to each linear layer of a model's trunk, in place; their initial product is 0.

    Layers that already have factors, as those of a shared trunk do, keep them.

    Args:
        model: policy or critic.
        settings: of the learner.
        head: a module that is trained whole, the critic's head.
        seed: of the initial factors.

    Raises:
        BadSetting: peft is not installed, or the trunk has no linear layer.

    Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models" (https://arxiv.org/abs/2106.09685),
    section 4.1; all linear layers: Schulman et al. 2025, "LoRA Without Regret".
    """
    try:
        library = importlib.import_module("peft")
    except ImportError as error:
        raise BadSetting(
            f"learner.lora_rank: expected the package peft, got: {error}; install the extra `lora`, or set it to 0"
        ) from None
    if not lora_layers(model):
        prefix = f"{model.base_model_prefix}."
        names = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and n.startswith(prefix)]
        if not names:
            raise BadSetting(
                f"learner.lora_rank: expected linear layers in {type(model).__name__}, found none; set it to 0"
            )
        config = library.LoraConfig(r=settings.lora_rank, lora_alpha=settings.lora_alpha, target_modules=names)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            library.inject_adapter_in_model(config, model)  # freezes all parameters but the factors
    if head is not None:
        head.requires_grad_(True)
    model.eval()


def lora_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers that have factors, by the name of the plain layer."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's weights with the factors merged in, by plain names; a collective, called on every rank."""
    state = full_state(model)
    plain = {name.replace(".base_layer.", "."): tensor for name, tensor in state.items() if not _is_factor(name)}
    for name, layer in lora_layers(model).items():
        down, up = (state[f"{name}.{factor}.default.weight"] for factor in FACTORS)
        plain[f"{name}.weight"] = plain[f"{name}.weight"] + up @ down * layer.scaling["default"]
    return plain


def adapter_state(models: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return factors and the weights that they are added to, by `<model>.<name>`; empty without LoRA.

    A resumed run needs both: the merged weights do not determine the factors, and subtracting the factors rounds.
    A collective, called on every rank.

    Args:
        models: by name; a tensor that several models share is returned once, under the first.
    """
    return {name: full_tensor(tensor.detach()) for name, tensor in _sharded_adapter_state(models).items()}


def _sharded_adapter_state(models: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return the models' tensors themselves, in shards if the models are sharded."""
    found, seen = dict[str, Tensor](), set[int]()
    for prefix, model in models.items():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if (_is_factor(name) or name.endswith(".base_layer.weight")) and id(tensor) not in seen:
                seen.add(id(tensor))
                found[f"{prefix}.{name}"] = tensor
    return found


@torch.no_grad()
def load_adapter_state(models: Mapping[str, nn.Module], tensors: Mapping[str, Tensor], *, where: Path) -> None:
    """Load the tensors of `adapter_state` into the models, bit for bit.

    Raises:
        BadCheckpoint: tensors of other models or of another LoRA rank.
    """
    own = _sharded_adapter_state(models)
    if {name: x.shape for name, x in own.items()} != {name: x.shape for name, x in tensors.items()}:
        raise BadCheckpoint(
            f"{where}: expected the {len(own)} tensors of learner.lora_rank in these models, got {len(tensors)} of "
            "other names or shapes; pass the checkpoint of a run with these settings, or start from its policy folder"
        )
    for name, tensor in own.items():
        tensor.copy_(shard_like(tensors[name], tensor))


def _is_factor(name: str) -> bool:
    return any(f".{factor}." in name for factor in FACTORS)
