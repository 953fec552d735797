"""Fitting the critic: one accumulated gradient, and pretraining before the first policy update.

Touches: nothing but the critic and optimizer it is given.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mathppo.batch import Batch
from mathppo.config import LearnerSettings
from mathppo.learner import diagnostics, models
from mathppo.learner.experience import by_rows, row_chunks
from mathppo.learner.models import PreTrainedModel
from mathppo.metrics import MetricRow
from mathppo.ppo import estimators, gae, losses


def critic_backward(
    critic: PreTrainedModel,
    batch: Batch,
    returns: Float[Tensor, "B T"],
    *,
    num_tokens: Tensor,
    old_values: Float[Tensor, "B T"] | None = None,
    clip: float | None = None,
) -> losses.Stats:
    """Accumulate the critic's gradient on some rows; `old_values` are read where `clip` is set."""
    values, _ = models.completion_values(critic, batch)
    anchor = returns if old_values is None else old_values
    loss, stats = losses.value_loss(values, anchor, returns, batch.loss_mask, clip=clip, denominator=num_tokens)
    loss.backward()
    return {"value_loss": loss.detach(), "value_clip_share": stats["value_clip_share"]}


def fit_critic(
    critic: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    train: Batch,
    held_out: Batch,
    settings: LearnerSettings,
    *,
    seed: int,
) -> Iterator[MetricRow]:
    """Fit the critic to the outcomes of a frozen policy's rollouts; yield what each epoch measured.

    Explained variance is that of the held-out rollouts' Monte-Carlo outcomes, never of a target that contains V. It
    ends after `critic_pretraining_epochs`; the caller stops earlier when it is satisfied.

    Source: Yuan et al. 2025, "What's Behind PPO's Collapse in Long-CoT? Value Optimization Holds the Secret" (VC-PPO),
    section 3.1.
    """
    size = settings.micro_batch_size
    rewards = gae.token_rewards(train.outcome, train.completion_mask)
    returns = estimators.discounted_returns(rewards, train.completion_mask, gamma=settings.gamma)
    order = torch.Generator().manual_seed(seed)
    num_steps = max(1, round(train.num_rows / settings.critic_pretraining_batch_size))
    for group in optimizer.param_groups:
        group["lr"] = settings.critic_lr
    for _ in range(settings.critic_pretraining_epochs):
        parts = []
        for index in torch.randperm(train.num_rows, generator=order).tensor_split(num_steps):
            num_tokens = train.loss_mask[index].sum().clamp(min=1)
            chunks = [index[chunk] for chunk in row_chunks(train.lengths[index], size)]
            stats = [
                critic_backward(critic, train.rows(chunk), returns[chunk], num_tokens=num_tokens) for chunk in chunks
            ]
            norm = nn.utils.clip_grad_norm_(critic.parameters(), settings.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            parts.append(losses.add_stats(stats) | {"critic_grad_norm": norm})
        values, _ = by_rows(lambda rows: models.completion_values(critic, rows), held_out, size)
        yield diagnostics.of_critic(parts, values, held_out)
