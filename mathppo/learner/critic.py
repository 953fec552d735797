"""Critic training: value loss, optimizer steps of the critic alone, and pretraining before the first update."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mathppo.batch import Batch
from mathppo.config import LearnerSettings
from mathppo.learner import diagnostics, forward
from mathppo.learner.backend import models
from mathppo.learner.backend.forward_options import ForwardOptions
from mathppo.learner.backend.micro_batches import MicroBatches, shuffled_minibatches
from mathppo.learner.backend.models import PreTrainedModel
from mathppo.learner.backend.optimizers import CRITIC, Optimizers
from mathppo.learner.backend.sharding import DistContext, run_within
from mathppo.learner.experience import Experience
from mathppo.metrics import MetricRow
from mathppo.ppo import gae, losses
from mathppo.ppo.advantages import discounted_returns


@dataclass(frozen=True)
class CriticTrainer:
    """Trains the critic alone.

    Args:
        critic: the critic; only its head is trained if it shares the policy's trunk.
        optimizers: of the learner.
        settings: of the learner.
        micro_batches: splits rows into forward passes.
        options: of the forward passes.
        dist: the processes that share the work.
    """

    critic: PreTrainedModel
    optimizers: Optimizers
    settings: LearnerSettings
    micro_batches: MicroBatches
    options: ForwardOptions
    dist: DistContext

    def step(
        self,
        batch: Batch,
        returns: Float[Tensor, "B T"],
        old_values: Float[Tensor, "B T"] | None = None,
        *,
        clip: float | None = None,
    ) -> losses.Stats | None:
        """Take one optimizer step; return None if no token is trained on or a gradient is not finite."""
        num_tokens = batch.loss_mask.sum()
        if num_tokens == 0:
            return None
        parts = []
        for index, rows, _ in self.micro_batches.assign(batch):
            targets, old = (
                x[index][:, : rows.completion_width].to(rows.ids.device)
                for x in (returns, returns if old_values is None else old_values)
            )
            loss, stats = value_loss(self._values(rows), rows, targets, old, num_tokens=num_tokens, clip=clip)
            self.dist.scale_loss(loss).backward()
            parts.append(stats)
        norms = self.optimizers.step([CRITIC])
        return None if norms is None else self.dist.all_reduce_stats(losses.add_stats(parts)) | norms

    def step_on(self, minibatch: Experience) -> losses.Stats | None:
        """Take one optimizer step towards an experience's returns, with the value clip of the settings."""
        return self.step(minibatch.batch, minibatch.returns, minibatch.values, clip=self.settings.value_clip)

    def extra_epochs(self, experience: Experience, order: torch.Generator) -> int:
        """Train the critic for `critic_extra_epochs` more on an update's rollouts; return the number of skipped steps.

        Source: Cobbe et al. 2021, "Phasic Policy Gradient" (https://arxiv.org/abs/2009.04416), section 2: the value
        function tolerates more sample reuse than the policy.
        """
        epochs, num_minibatches = self.settings.critic_extra_epochs, self.settings.minibatches
        indices = shuffled_minibatches(experience.batch.num_rows, num_minibatches, order, epochs=epochs)
        return sum(self.step_on(experience.rows(index)) is None for index in indices)

    def _values(self, rows: Batch) -> Float[Tensor, "B T"]:
        if not self.settings.shared_trunk:
            return forward.completion_values(self.critic, rows, options=self.options)[0]
        # The trunk is the policy's and must not move when the critic is trained alone.
        with torch.no_grad():
            hidden = run_within(self.critic, lambda: forward.hidden_states(self.critic, rows, options=self.options))
        return forward.values_from_hidden(models.value_head(self.critic), hidden, rows, options=self.options)[0]

    def pretrain(self, train: Batch, held_out: Batch, *, seed: int) -> Iterator[MetricRow]:
        """Fit the critic to the outcomes of a frozen policy's rollouts; yield the metrics of each epoch.

        Explained variance is of the held-out rollouts' Monte Carlo outcomes, never of a target that contains V. Ends
        after `critic_pretraining_epochs`; the caller may stop earlier.

        Source: Yuan et al. 2025, "What's Behind PPO's Collapse in Long-CoT? Value Optimization Holds the Secret"
        (https://arxiv.org/abs/2503.01491) (VC-PPO), section 3.1.
        """
        settings = self.settings
        rewards = gae.token_rewards(train.outcome, train.completion_mask)
        returns = discounted_returns(rewards, train.completion_mask, gamma=settings.gamma)
        order = torch.Generator().manual_seed(seed)
        num_steps = max(1, round(train.num_rows / settings.critic_pretraining_batch_size))
        for group in self.optimizers.by_name[CRITIC].param_groups:
            group["lr"] = settings.critic_lr
        for _ in range(settings.critic_pretraining_epochs):
            minibatches = shuffled_minibatches(train.num_rows, num_steps, order, epochs=1)
            parts = [self.step(train.rows(index), returns[index]) for index in minibatches]
            values, _ = self.micro_batches.run(
                lambda rows: forward.completion_values(self.critic, rows, options=self.options), held_out
            )
            yield diagnostics.critic_metrics([part for part in parts if part is not None], values, held_out)


def value_loss(
    values: Float[Tensor, "B T"],
    batch: Batch,
    returns: Float[Tensor, "B T"],
    old_values: Float[Tensor, "B T"],
    *,
    num_tokens: Tensor,
    clip: float | None,
) -> tuple[Float[Tensor, ""], losses.Stats]:
    """Return the value loss of some rows of a step, and its statistics; `old_values` are read only if `clip` is set."""
    loss, stats = losses.value_loss(values, old_values, returns, batch.loss_mask, clip=clip, denominator=num_tokens)
    return loss, {"value_loss": loss.detach(), "value_clip_share": stats["value_clip_share"]}
