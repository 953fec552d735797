"""LoRA: factors of low rank beside frozen weights, and plain weights again for everyone else.

The factors are trained; the weights they are added to, and all others but a critic's head, are not. Engines and model
folders get the sum, so that nothing outside the learner knows of factors (note M-learner-7).
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
from mathppo.learner.backend.sharding import like, whole, whole_state

FACTORS = ("lora_A", "lora_B")
"""Parts of the names of what is trained."""


def adapt(model: PreTrainedModel, settings: LearnerSettings, *, head: nn.Module | None = None, seed: int = 0) -> None:
    """Give each linear layer of a model's trunk its factors, in place; their product is 0 at first.

    Where the layers have theirs already, as those of a shared trunk do, they keep them.

    Args:
        model: policy or critic.
        settings: of the learner.
        head: what is trained as a whole beside the factors: a critic's.
        seed: of the factors' first draw.

    Raises:
        BadSetting: peft is not there, or the trunk has no linear layer.

    Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1; all linear layers:
    Schulman et al. 2025, "LoRA Without Regret".
    """
    try:
        library = importlib.import_module("peft")
    except ImportError as error:
        raise BadSetting(
            f"learner.lora_rank: expected the package peft, got: {error}; install the extra `lora`, or set it to 0"
        ) from None
    if not adapted_layers(model):
        prefix = f"{model.base_model_prefix}."
        names = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and n.startswith(prefix)]
        if not names:
            raise BadSetting(
                f"learner.lora_rank: expected linear layers in {type(model).__name__}, found none; set it to 0"
            )
        wanted = library.LoraConfig(r=settings.lora_rank, lora_alpha=settings.lora_alpha, target_modules=names)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            library.inject_adapter_in_model(wanted, model)  # freezes all but the factors
    if head is not None:
        head.requires_grad_(True)
    model.eval()


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """Give the layers that have factors, by the name that the plain layer has."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """Give a model's weights as if it never had factors, by their plain names; every rank has to ask."""
    state = whole_state(model)
    plain = {name.replace(".base_layer.", "."): tensor for name, tensor in state.items() if not _is_factor(name)}
    for name, layer in adapted_layers(model).items():
        down, up = (state[f"{name}.{factor}.default.weight"] for factor in FACTORS)
        plain[f"{name}.weight"] = plain[f"{name}.weight"] + up @ down * layer.scaling["default"]
    return plain


def summands(models: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Give what `plain_state` adds up, by `<model>.<name>`: factors and the weights beside them; empty without factors.

    The sum alone would not do to go on from: it says nothing of the factors, and taking them off again rounds. Every
    rank has to ask.

    Args:
        models: by name; what several share is given once, under the first.
    """
    return {name: whole(tensor.detach()) for name, tensor in _summands(models).items()}


def _summands(models: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Give the same as the models hold them, in shards where they are in shards."""
    found, taken = dict[str, Tensor](), set[int]()
    for prefix, model in models.items():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if (_is_factor(name) or name.endswith(".base_layer.weight")) and id(tensor) not in taken:
                taken.add(id(tensor))
                found[f"{prefix}.{name}"] = tensor
    return found


@torch.no_grad()
def put_back(models: Mapping[str, nn.Module], tensors: Mapping[str, Tensor], *, where: Path) -> None:
    """Put back what `summands` gave, to the same bits, over the sums that were loaded.

    Raises:
        BadCheckpoint: of other models or another rank.
    """
    own = _summands(models)
    if {name: x.shape for name, x in own.items()} != {name: x.shape for name, x in tensors.items()}:
        raise BadCheckpoint(
            f"{where}: expected the {len(own)} tensors of learner.lora_rank in these models, got {len(tensors)} of "
            "other names or shapes; give the checkpoint of a run with these settings, or start from its policy folder"
        )
    for name, tensor in own.items():
        tensor.copy_(like(tensors[name], tensor))


def _is_factor(name: str) -> bool:
    return any(f".{factor}." in name for factor in FACTORS)
