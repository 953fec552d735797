"""Learner: owns all trainable state, which is policy, critic, their optimizers, the KL coefficient and the step.

`update` takes one iteration's rollouts from the batch to the optimizer step; the formulas are in `mathppo.ppo`, the
experience in `experience.py`, the loss in `objective.py`. The learner holds no random state: the order of rows derives
from the seed that the caller passes.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mathppo.batch import Batch
from mathppo.config import LearnerSettings
from mathppo.errors import BrokenInvariant
from mathppo.learner import diagnostics, forward, objective
from mathppo.learner.backend import checkpoint, lora, models
from mathppo.learner.backend.forward_options import check_models, choose_forward_options
from mathppo.learner.backend.micro_batches import MicroBatches, choose_device, shuffled_minibatches
from mathppo.learner.backend.models import PreTrainedModel
from mathppo.learner.backend.optimizers import CRITIC, POLICY, Optimizers
from mathppo.learner.backend.sharding import SINGLE_PROCESS, DistContext, run_within
from mathppo.learner.critic import CriticTrainer, value_loss
from mathppo.learner.experience import Experience, FromUpdatePass, OldPolicy, build_experience, gather_old_policy
from mathppo.learner.objective import StepCounts
from mathppo.metrics import MetricRow
from mathppo.ppo import losses
from mathppo.seeds import derive_seed

OldParts = list[tuple[Int[Tensor, " N"], OldPolicy]]
"""The old policy on some rows, with their row indices."""


class Learner:
    """Actor, critic and optimizers.

    Args:
        policy: the actor; its weights are trained in place, in float32.
        critic: predicts the outcome at each step; None for critic-free algorithms.
        reference: frozen policy of the reference KL; None without a KL.
        settings: of the learner.
        temperature: the sampler's; log-probabilities are those of softmax(logits / temperature).
        max_completion_tokens: the sampler's budget; required for `aggregation = "constant_length"`.
        step: number of updates that the policy has seen.
        seed: of the initial LoRA factors.
        dist: the processes that share the work.

    Raises:
        BadSetting: settings that these models or processes do not support.
    """

    def __init__(
        self,
        policy: PreTrainedModel,
        critic: PreTrainedModel | None,
        reference: PreTrainedModel | None,
        settings: LearnerSettings,
        *,
        temperature: float,
        max_completion_tokens: int | None = None,
        step: int = 0,
        seed: int = 0,
        dist: DistContext = SINGLE_PROCESS,
    ) -> None:
        device = choose_device(settings)
        for model in (policy, critic, reference):
            if model is not None:
                # Float32 master weights: AdamW's small steps would be lost to rounding in bfloat16.
                nn.Module.to(model, device=device, dtype=torch.float32).eval()
        self.policy, self.critic, self.reference = policy, critic, reference
        self.settings, self.temperature, self.step, self.dist = settings, temperature, step, dist
        self.max_completion_tokens, self.kl_coef = max_completion_tokens, settings.kl_coef
        others = [model for model in (critic, reference) if model is not None]
        self.options = choose_forward_options(policy, settings, others=others)
        check_models(policy, settings, num_ranks=dist.size)
        for name, model in self.models.items():
            head = models.value_head(model) if name == CRITIC else None
            if settings.lora_rank:
                lora.inject(model, settings, head=head, seed=derive_seed(seed, name))
            if settings.activation_checkpointing:
                models.enable_checkpointing(model, packed=self.options.packed)
            if head is not None and settings.shared_trunk:
                dist.shard_head(model, head, policy)
            else:
                dist.shard(model)
        if reference is not None:
            dist.shard(reference)
        self.micro_batches = MicroBatches(
            settings.micro_batch_size, settings.micro_batch_tokens, packed=self.options.packed, device=device, dist=dist
        )
        self.optimizers = Optimizers(self.models, settings)
        self.critic_trainer: CriticTrainer | None = None
        if critic is not None:
            shared = (self.optimizers, settings, self.micro_batches, self.options, dist)
            self.critic_trainer = CriticTrainer(critic, *shared)

    @property
    def models(self) -> dict[str, PreTrainedModel]:
        return {POLICY: self.policy} | ({} if self.critic is None else {CRITIC: self.critic})

    @property
    def _trains_policy(self) -> bool:
        return self.step >= self.settings.critic_warmup_iterations

    def experience(self, batch: Batch, *, for_update: bool = False) -> Experience:
        """Run the forward passes of the policy, critic and reference over a batch; see `build_experience`.

        Args:
            batch: scored rollouts, on the CPU.
            for_update: the experience is used by the next `update` only: if that takes one step, whose forward pass
                computes `old_logprobs`, the policy's pass is skipped.
        """
        old: OldPolicy | FromUpdatePass = FromUpdatePass()
        if not (for_update and self.settings.takes_one_step and self._trains_policy):
            old = OldPolicy(*self.micro_batches.run(lambda rows: self.logprobs(self.policy, rows), batch))
        critic, reference, ref_logprobs = self.critic, self.reference, None
        if critic is None:
            values, final_values = torch.zeros(batch.completion_mask.shape), torch.zeros_like(batch.outcome)
        else:
            values, final_values = self.micro_batches.run(
                lambda rows: forward.completion_values(critic, rows, options=self.options), batch
            )
        if reference is not None:
            ref_logprobs, _ = self.micro_batches.run(lambda rows: self.logprobs(reference, rows), batch)
        return build_experience(
            batch,
            step=self.step,
            old=old,
            values=values,
            final_values=final_values,
            ref_logprobs=ref_logprobs,
            kl_coef=self.kl_coef,
            settings=self.settings,
        )

    def logprobs(
        self, model: PreTrainedModel, rows: Batch, *, with_entropy: bool = True
    ) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        """Return log-probabilities and entropies of a micro-batch at the sampler's temperature, nats."""
        return forward.completion_logprobs(
            model, rows, temperature=self.temperature, with_entropy=with_entropy, options=self.options
        )

    def update(self, experience: Experience, *, progress: float, seed: int) -> MetricRow:
        """Take the optimizer steps of an iteration and return its metrics.

        Args:
            experience: from `experience`, computed with the current weights.
            progress: finished share of the run, in [0, 1], for the learning-rate schedule.
            seed: of the order of rows; one per iteration.

        Raises:
            BrokenInvariant: the first ratio is not 1, or gradients stayed non-finite.
        """
        self.optimizers.set_lr(progress)
        order = torch.Generator().manual_seed(seed)
        parts: list[losses.Stats | None] = []
        old_parts: OldParts = []
        stopped_early = False
        num_rows, settings = experience.batch.num_rows, self.settings
        for index in shuffled_minibatches(num_rows, settings.minibatches, order, epochs=settings.epochs):
            is_first = all(part is None for part in parts)
            stats, old_rows = self._step_on(experience.rows(index), is_first=is_first)
            parts.append(stats)
            old_parts += [(index[rows], old) for rows, old in old_rows]
            stopped_early = stats is not None and objective.exceeds_target_kl(stats, settings)
            if stopped_early:
                break
        num_skipped = parts.count(None)
        if self.critic_trainer is not None:
            num_skipped += self.critic_trainer.extra_epochs(experience, order)
        old = experience.old
        if not isinstance(old, OldPolicy):
            old = gather_old_policy(old_parts, experience.values, self.dist)
        row = diagnostics.experience_metrics(experience, old, settings, kl_coef=self.kl_coef)
        self.step += 1
        self.kl_coef = objective.next_kl_coef(self.kl_coef, row.get("ref_kl"), settings, num_rollouts=num_rows)
        taken = [part for part in parts if part is not None]
        lr = self.optimizers.lr
        return {**row, **diagnostics.update_metrics(taken, num_skipped=num_skipped, stopped_early=stopped_early, lr=lr)}

    def _step_on(self, minibatch: Experience, *, is_first: bool) -> tuple[losses.Stats | None, OldParts]:
        """Take one optimizer step; statistics are None if no token is trained on or a gradient is not finite."""
        if not self._trains_policy:
            return (None if self.critic_trainer is None else self.critic_trainer.step_on(minibatch)), []
        counts = self.count(minibatch.batch)
        if counts.num_tokens == 0:
            return None, []
        stats, old_rows = self.accumulate(minibatch, counts, is_first=is_first)
        norms = self.optimizers.step(self.models)
        return (None if norms is None else stats | norms), old_rows

    def count(self, batch: Batch) -> StepCounts:
        """Count the rows of one optimizer step; see `objective.count_step`."""
        return objective.count_step(batch, self.settings, max_completion_tokens=self.max_completion_tokens)

    def accumulate(
        self, minibatch: Experience, counts: StepCounts, *, is_first: bool = False
    ) -> tuple[losses.Stats, OldParts]:
        """Add a minibatch's gradients to the models' gradients, one micro-batch at a time.

        Every mean is a sum divided by a count of the whole optimizer step that is known before the first backward, so
        the result does not depend on the split into micro-batches and ranks.

        Args:
            minibatch: rows of an experience.
            counts: of the same rows.
            is_first: no optimizer step was taken since the experience was built, so the ratio must be 1.

        Returns:
            The step's statistics, and the old policy on this rank's rows.

        Raises:
            BrokenInvariant: the ratio is not 1.
        """
        parts, old_rows = [], []
        for index, batch, is_own in self.micro_batches.assign(minibatch.batch):
            rows = minibatch.rows(index, batch)
            token_weights = counts.token_weights[index, : batch.completion_width].to(batch.ids.device)
            stats, old = self._backward(rows, token_weights, counts, is_first=is_first)
            parts.append(stats)
            old_rows += [(index, old)] if is_own else []
        return self.dist.all_reduce_stats(losses.add_stats(parts)), old_rows

    def _backward(
        self, rows: Experience, token_weights: Float[Tensor, "B T"], counts: StepCounts, *, is_first: bool
    ) -> tuple[losses.Stats, OldPolicy]:
        """Add the gradients of one micro-batch."""
        settings, dist = self.settings, self.dist
        logprobs, entropies, values = self._forward(rows)
        if isinstance(rows.old, OldPolicy):
            old = rows.old
            if is_first:
                objective.require_unchanged(logprobs, old.logprobs, rows.batch, self.options.dtype)
        else:
            old = OldPolicy(logprobs.detach(), entropies.detach())
        loss, stats = objective.policy_objective(
            rows, old.logprobs, logprobs, entropies, token_weights, counts, settings, kl_coef=self.kl_coef
        )
        if self.critic is None:
            dist.scale_loss(loss).backward()
            return stats, old
        if values is None:
            dist.scale_loss(loss).backward()
            loss = loss.new_zeros(())
            values, _ = forward.completion_values(self.critic, rows.batch, options=self.options)
        critic_loss, value_stats = value_loss(
            values, rows.batch, rows.returns, rows.values, num_tokens=counts.num_tokens, clip=settings.value_clip
        )
        dist.scale_loss(loss + critic_loss).backward()
        return stats | value_stats, old

    def _forward(self, rows: Experience) -> tuple[Tensor, Tensor, Float[Tensor, "B T"] | None]:
        """Return log-probabilities, entropies and, if policy and critic share a trunk, values of the same pass."""
        batch, settings = rows.batch, self.settings
        if self.critic is None or not settings.shared_trunk:
            with_entropy = settings.entropy_coef > 0 or isinstance(rows.old, FromUpdatePass)
            return *self.logprobs(self.policy, batch, with_entropy=with_entropy), None
        both_heads = partial(
            forward.logprobs_and_values,
            self.policy,
            models.value_head(self.critic),
            batch,
            temperature=self.temperature,
            trunk_value_gradient=settings.trunk_value_gradient,
            options=self.options,
        )
        return run_within(self.policy, both_heads)

    def pretrain_critic(self, train: Batch, held_out: Batch, *, seed: int) -> Iterator[MetricRow]:
        """Fit the critic to the frozen policy's rollouts; see `CriticTrainer.pretrain`.

        Raises:
            BrokenInvariant: there is no critic.
        """
        if self.critic_trainer is None:
            raise BrokenInvariant(f"learner: {self.settings.algorithm} has no critic to pretrain")
        return self.critic_trainer.pretrain(train, held_out, seed=seed)

    def save(self, path: Path, tokenizer: checkpoint.Saveable) -> None:
        """Write a checkpoint: policy with tokenizer, critic, optimizer state, LoRA factors, KL coefficient, step.

        All ranks gather their shards; rank 0 writes.
        """
        folders = {
            name: (checkpoint.Weights(model, lora.merged_state(model)), *((tokenizer,) if name == POLICY else ()))
            for name, model in self.models.items()
        }
        optimizer_state, adapter_state = self.optimizers.state(), lora.adapter_state(self.models)
        if self.dist.rank > 0:
            return
        numbers = {"kl_coef": self.kl_coef, "skipped_in_a_row": float(self.optimizers.skipped_in_a_row)}
        checkpoint.save_checkpoint(
            path, step=self.step, folders=folders, optimizers=optimizer_state, adapters=adapter_state, numbers=numbers
        )

    def restore(self, path: Path) -> None:
        """Restore optimizer states, LoRA factors, KL coefficient and the count of skipped updates of a checkpoint.

        Raises:
            BadCheckpoint: damaged, or of another model.
        """
        numbers = checkpoint.verify_checkpoint(path).numbers
        lora.load_adapter_state(self.models, checkpoint.load_adapters(path), where=path)
        self.optimizers.load_state(checkpoint.load_optimizers(path), where=path)
        self.optimizers.skipped_in_a_row = int(numbers.get("skipped_in_a_row", 0))
        if self.settings.kl_target is not None:
            self.kl_coef = numbers.get("kl_coef", self.kl_coef)
