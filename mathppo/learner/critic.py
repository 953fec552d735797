"""Fitting the critic: one accumulated gradient, passes of the critic alone, and pretraining before the first update."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mathppo.batch import Batch
from mathppo.config import LearnerSettings
from mathppo.learner import diagnostics, forward
from mathppo.learner.backend import models
from mathppo.learner.backend.forward_options import Compute
from mathppo.learner.backend.micro_batches import Passes, shuffled, without_loss
from mathppo.learner.backend.models import PreTrainedModel
from mathppo.learner.backend.optimizers import CRITIC, Optimizers
from mathppo.learner.backend.sharding import within
from mathppo.learner.experience import Experience
from mathppo.metrics import MetricRow
from mathppo.ppo import estimators, gae, losses


@dataclass(frozen=True)
class CriticFit:
    """What fitting the critic alone works with.

    Args:
        critic: whose weights are trained; of one with a shared trunk, its head only.
        optimizers: those of the learner.
        settings: of the learner.
        passes: how rows are divided.
        compute: how a pass is computed.
    """

    critic: PreTrainedModel
    optimizers: Optimizers
    settings: LearnerSettings
    passes: Passes
    compute: Compute

    def step(
        self,
        batch: Batch,
        returns: Float[Tensor, "B T"],
        old_values: Float[Tensor, "B T"] | None = None,
        *,
        clip: float | None = None,
    ) -> losses.Stats | None:
        """Take one optimizer step on some rows; None where there was nothing to learn or no finite gradient."""
        num_tokens = batch.loss_mask.sum()
        if num_tokens == 0:
            return None
        parts = []
        for index, counts in self.passes.deal(batch):
            rows = self.passes.narrow(batch.rows(index) if counts else without_loss(batch.rows(index)))
            targets, anchor = (
                x[index][:, : rows.completion_width].to(rows.ids.device)
                for x in (returns, returns if old_values is None else old_values)
            )
            loss, stats = value_loss(self._values(rows), rows, targets, anchor, num_tokens=num_tokens, clip=clip)
            self.passes.ranks.scaled(loss).backward()
            parts.append(stats)
        norms = self.optimizers.step([CRITIC])
        return None if norms is None else self.passes.ranks.add_stats(losses.add_stats(parts)) | norms

    def step_on(self, minibatch: Experience) -> losses.Stats | None:
        """Take one optimizer step towards the targets of an experience's rows, values clipped as the settings say."""
        return self.step(minibatch.batch, minibatch.returns, minibatch.values, clip=self.settings.value_clip)

    def further_epochs(self, experience: Experience, order: torch.Generator) -> int:
        """Train the critic alone on an update's rollouts again; give the number of steps that were not taken.

        Source: Cobbe et al. 2021, "Phasic Policy Gradient", section 2: the value function bears more reuse of a sample
        than the policy does.
        """
        epochs, num_parts = self.settings.critic_extra_epochs, self.settings.minibatches
        indices = shuffled(experience.batch.num_rows, num_parts, order, epochs=epochs)
        return sum(self.step_on(experience.rows(index)) is None for index in indices)

    def _values(self, rows: Batch) -> Float[Tensor, "B T"]:
        if not self.settings.shared_trunk:
            return forward.completion_values(self.critic, rows, compute=self.compute)[0]
        # The trunk is the policy's: what trains the critic alone must not move it.
        with torch.no_grad():
            hidden = within(self.critic, lambda: forward.hidden_states(self.critic, rows, compute=self.compute))
        return forward.values_of_states(models.head_of(self.critic), hidden, rows, compute=self.compute)[0]


def value_loss(
    values: Float[Tensor, "B T"],
    batch: Batch,
    returns: Float[Tensor, "B T"],
    old_values: Float[Tensor, "B T"],
    *,
    num_tokens: Tensor,
    clip: float | None,
) -> tuple[Float[Tensor, ""], losses.Stats]:
    """Give the critic's loss on some rows of a step, and its statistics; `old_values` count where `clip` is set."""
    loss, stats = losses.value_loss(values, old_values, returns, batch.loss_mask, clip=clip, denominator=num_tokens)
    return loss, {"value_loss": loss.detach(), "value_clip_share": stats["value_clip_share"]}


def fit_critic(fit: CriticFit, train: Batch, held_out: Batch, *, seed: int) -> Iterator[MetricRow]:
    """Fit the critic to the outcomes of a frozen policy's rollouts; yield what each epoch measured.

    Explained variance is that of the held-out rollouts' Monte-Carlo outcomes, never of a target that contains V. It
    ends after `critic_pretraining_epochs`; the caller stops earlier when it is satisfied.

    Source: Yuan et al. 2025, "What's Behind PPO's Collapse in Long-CoT? Value Optimization Holds the Secret" (VC-PPO),
    section 3.1.
    """
    settings = fit.settings
    rewards = gae.token_rewards(train.outcome, train.completion_mask)
    returns = estimators.discounted_returns(rewards, train.completion_mask, gamma=settings.gamma)
    order = torch.Generator().manual_seed(seed)
    num_steps = max(1, round(train.num_rows / settings.critic_pretraining_batch_size))
    for group in fit.optimizers.by_name[CRITIC].param_groups:
        group["lr"] = settings.critic_lr
    for _ in range(settings.critic_pretraining_epochs):
        minibatches = shuffled(train.num_rows, num_steps, order, epochs=1)
        parts = [fit.step(train.rows(index), returns[index]) for index in minibatches]
        values, _ = fit.passes.run(
            lambda rows: forward.completion_values(fit.critic, rows, compute=fit.compute), held_out
        )
        yield diagnostics.of_critic([part for part in parts if part is not None], values, held_out)
