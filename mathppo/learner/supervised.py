"""Supervised training on worked derivations, the warm start of PPO."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from mathppo.config import WarmstartSettings
from mathppo.learner.backend.models import PreTrainedModel

IGNORED = -100
"""Label of a position without a loss: prompt and padding."""

Example = tuple[Sequence[int], Sequence[int]]
"""Prompt ids and completion ids, stop token included."""


def learning_rate(step: int, settings: WarmstartSettings) -> float:
    """Return the learning rate of a step: linear over the first 5 %, then a cosine from the peak to a tenth of it."""
    warmup = max(1, settings.steps // 20)
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, settings.steps - warmup)
    return settings.lr * (0.55 + 0.45 * math.cos(math.pi * progress))


def make_optimizer(policy: PreTrainedModel) -> torch.optim.AdamW:
    return torch.optim.AdamW(policy.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, fused=True)


def supervised_step(
    policy: PreTrainedModel, optimizer: torch.optim.Optimizer, examples: Sequence[Example], *, lr: float
) -> float:
    """Take one step on the mean negative log-likelihood of the completion tokens; return that loss in nats."""
    ids, mask, labels = _pad(examples)
    ids, mask, labels = (x.to(policy.device) for x in (ids, mask, labels))
    logits = policy(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    loss = functional.cross_entropy(logits.float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
    for group in optimizer.param_groups:
        group["lr"] = lr
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def _pad(examples: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor]:
    """Return right-padded ids, attention mask and labels, each `[B, L]`."""
    width = max(len(prompt) + len(completion) for prompt, completion in examples)
    ids = torch.zeros(len(examples), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, IGNORED)
    for row, (prompt, completion) in enumerate(examples):
        end = len(prompt) + len(completion)
        ids[row, :end] = torch.tensor([*prompt, *completion])
        mask[row, :end] = 1
        labels[row, len(prompt) : end] = ids[row, len(prompt) : end]
    return ids, mask, labels
