"""Optimizers of policy and critic: learning rates, one clipped step of both, and state for resuming."""

import importlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mathppo.config import LearnerSettings
from mathppo.errors import BadSetting, BrokenInvariant
from mathppo.learner.backend import checkpoint
from mathppo.learner.backend.sharding import full_tensor
from mathppo.ppo import losses

POLICY, CRITIC = "policy", "critic"

MOMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"adamw": ("step", "exp_avg", "exp_avg_sq"), "adamw8bit": ("step", "state1", "state2")}
)
"""State of each optimizer per parameter; the last two tensors have the parameter's shape."""


def make_adamw(parameters: list[nn.Parameter], settings: LearnerSettings) -> Optimizer:
    """Build the AdamW of the settings: fused, or with 8-bit moments.

    Raises:
        BadSetting: bitsandbytes is not installed.

    Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization" (https://arxiv.org/abs/1711.05101);
    Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization" (https://arxiv.org/abs/2110.02861).
    """
    shared = {"lr": settings.lr, "betas": (0.9, 0.95), "weight_decay": settings.weight_decay}
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(parameters, fused=True, **shared)
    try:
        library = importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise BadSetting(
            f'learner.optimizer: expected the package bitsandbytes for "adamw8bit", got: {error}; install the extra '
            '`optim8bit`, or set learner.optimizer to "adamw"'
        ) from None
    return library.optim.AdamW8bit(parameters, **shared)


class Optimizers:
    """AdamW for the policy and, if there is one, for the critic.

    Args:
        models: by name; a parameter that several models share, as in a shared trunk, belongs to the first of them, and
            a frozen one to none.
        settings: of the learner.
    """

    def __init__(self, models: Mapping[str, nn.Module], settings: LearnerSettings) -> None:
        self.settings, self.skipped_in_a_row = settings, 0
        self.parameters: dict[str, dict[str, nn.Parameter]] = {}
        taken: set[nn.Parameter] = set()
        for name, model in models.items():
            self.parameters[name] = {
                key: p for key, p in model.named_parameters() if p.requires_grad and p not in taken
            }
            taken |= set(self.parameters[name].values())
        self.by_name: dict[str, Optimizer] = {
            name: make_adamw(list(parameters.values()), settings) for name, parameters in self.parameters.items()
        }

    def set_lr(self, progress: float) -> None:
        """Set the learning rates for a run whose share `progress`, in [0, 1], is done."""
        factor = 1.0 - progress if self.settings.lr_schedule == "linear" else 1.0
        for name, optimizer in self.by_name.items():
            peak = self.settings.lr if name == POLICY else self.settings.critic_lr
            for group in optimizer.param_groups:
                group["lr"] = peak * factor

    @property
    def lr(self) -> dict[str, float]:
        return {f"{name}_lr": float(optimizer.param_groups[0]["lr"]) for name, optimizer in self.by_name.items()}

    def zero_grad(self) -> None:
        for optimizer in self.by_name.values():
            optimizer.zero_grad()

    def step(self, names: Iterable[str]) -> losses.Stats | None:
        """Clip the gradients and step the named models; return the gradient norms.

        If a norm is not finite, no model is stepped, all gradients are discarded and None is returned.

        Raises:
            BrokenInvariant: that happened `max_skipped_updates` times in a row.
        """
        norms = {
            f"{name}_grad_norm": full_tensor(
                nn.utils.clip_grad_norm_(self.parameters[name].values(), self.settings.max_grad_norm)
            )
            for name in names
        }
        is_finite = all(math.isfinite(norm.item()) for norm in norms.values())
        if is_finite:
            for name in names:
                self.by_name[name].step()
        self.zero_grad()
        self.skipped_in_a_row = 0 if is_finite else self.skipped_in_a_row + 1
        if self.skipped_in_a_row >= self.settings.max_skipped_updates:
            found = ", ".join(f"{name} = {norm.item():g}" for name, norm in norms.items())
            raise BrokenInvariant(
                f"learner: gradients were not finite {self.skipped_in_a_row} times in a row ({found}); lower "
                "learner.lr or return to an earlier checkpoint"
            )
        return norms if is_finite else None

    def state(self) -> dict[str, Tensor]:
        """Return all moments without shards, by `<model>.<parameter>.<moment>`; a collective, called on every rank."""
        found: dict[str, Tensor] = {}
        for name, optimizer in self.by_name.items():
            found |= checkpoint.optimizer_tensors(name, self.parameters[name], optimizer)
        return {name: full_tensor(tensor) for name, tensor in found.items()}

    def load_state(self, tensors: Mapping[str, Tensor], *, where: Path) -> None:
        """Load the moments that `state` returned.

        Raises:
            BadCheckpoint: they belong to another model.
        """
        for name, optimizer in self.by_name.items():
            checkpoint.restore_optimizer(
                name, self.parameters[name], optimizer, tensors, where=where, moments=MOMENTS[self.settings.optimizer]
            )
