"""The only holder of trainable state: policy, critic, their optimizers, the KL coefficient, and the step.

`update` follows one iteration's rollouts from the batch to the optimizer step; the maths is in `mathppo.ppo`, what it
compares with in `experience.py`, the loss in `objective.py`. Nothing random is kept: the order of rows derives from the
seed that the caller gives.
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
from mathppo.learner.backend.forward_options import choose_compute, require_fit
from mathppo.learner.backend.micro_batches import Passes, choose_device, shuffled, without_loss
from mathppo.learner.backend.models import PreTrainedModel
from mathppo.learner.backend.optimizers import CRITIC, POLICY, Optimizers
from mathppo.learner.backend.sharding import ALONE, Ranks, within
from mathppo.learner.critic import CriticFit, fit_critic, value_loss
from mathppo.learner.experience import Experience, PolicyView, build_experience, put_together, view_policy
from mathppo.learner.objective import Counts
from mathppo.metrics import MetricRow
from mathppo.ppo import losses
from mathppo.seeds import derive_seed

Seen = list[tuple[Int[Tensor, " N"], PolicyView]]
"""What the policy made of some rows, by their index."""


class Learner:
    """Actor, critic and optimizers.

    Args:
        policy: the actor; its weights are trained in place, as float32.
        critic: predicts the outcome at each step; None for critic-free algorithms.
        reference: frozen policy that a KL term refers to; None where the settings take none.
        settings: of the learner.
        temperature: the sampler's; log-probabilities are those of softmax(logits / temperature).
        max_completion_tokens: the sampler's budget; needed for `aggregation = "constant_length"`.
        step: number of updates that the policy has seen.
        seed: of the first draw of LoRA's factors.
        ranks: the processes that share the work.

    Raises:
        BadSetting: settings that these models or ranks cannot serve.
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
        ranks: Ranks = ALONE,
    ) -> None:
        device = choose_device(settings)
        for model in (policy, critic, reference):
            if model is not None:
                # Masters in float32: AdamW's small steps would vanish in a bfloat16 weight's rounding.
                nn.Module.to(model, device=device, dtype=torch.float32).eval()
        self.policy, self.critic, self.reference = policy, critic, reference
        self.settings, self.temperature, self.step = settings, temperature, step
        self.max_completion_tokens, self.kl_coef = max_completion_tokens, settings.kl_coef
        others = [model for model in (critic, reference) if model is not None]
        self.compute = choose_compute(policy, settings, others=others)
        require_fit(policy, settings, num_ranks=ranks.size)
        for name, model in self.models.items():
            head = models.head_of(model) if name == CRITIC else None
            if settings.lora_rank:
                lora.adapt(model, settings, head=head, seed=derive_seed(seed, name))
            if settings.activation_checkpointing:
                models.mark_layers(model, packs=self.compute.packs)
            if head is not None and settings.shared_trunk:
                ranks.shard_head(model, head, policy)
            else:
                ranks.shard(model)
        if reference is not None:
            ranks.shard(reference)
        self.passes = Passes(
            settings.micro_batch_size, settings.micro_batch_tokens, packs=self.compute.packs, device=device, ranks=ranks
        )
        self.optimizers = Optimizers(self.models, settings)
        self._fit = None if critic is None else CriticFit(critic, self.optimizers, settings, self.passes, self.compute)

    @property
    def models(self) -> dict[str, PreTrainedModel]:
        return {POLICY: self.policy} | ({} if self.critic is None else {CRITIC: self.critic})

    def experience(self, batch: Batch, *, skip_old: bool = False) -> Experience:
        """Run the frozen forward passes over a batch; see `build_experience`.

        Args:
            batch: scored rollouts, on the CPU.
            skip_old: where `makes_own_view`, leave the policy's view to the forward pass of the update's only step.
        """
        old = None
        if not (skip_old and self.makes_own_view):
            logprobs, entropies = self.passes.run(lambda rows: self._logprobs(self.policy, rows), batch)
            old = view_policy(logprobs, entropies, batch, step=self.step, settings=self.settings)
        critic, reference, ref_logprobs = self.critic, self.reference, None
        if critic is None:
            values, final_values = torch.zeros(batch.completion_mask.shape), torch.zeros_like(batch.outcome)
        else:
            values, final_values = self.passes.run(
                lambda rows: forward.completion_values(critic, rows, compute=self.compute), batch
            )
        if reference is not None:
            ref_logprobs, _ = self.passes.run(lambda rows: self._logprobs(reference, rows), batch)
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

    @property
    def makes_own_view(self) -> bool:
        """Whether the next update takes one step only, whose own forward pass can give `old_logprobs`."""
        return self.settings.takes_one_step and self._trains_policy

    @property
    def _trains_policy(self) -> bool:
        return self.step >= self.settings.critic_warmup_iterations

    def _logprobs(self, model: PreTrainedModel, rows: Batch, *, with_entropy: bool = True) -> tuple[Tensor, Tensor]:
        return forward.completion_logprobs(
            model, rows, temperature=self.temperature, with_entropy=with_entropy, compute=self.compute
        )

    def update(self, experience: Experience, *, progress: float, seed: int) -> MetricRow:
        """Take an iteration's optimizer steps and give what was measured.

        Args:
            experience: from `experience`, with the weights as they are now.
            progress: share of the run that is done, in [0, 1]; the learning-rate schedule's argument.
            seed: of the order of rows; one per iteration.

        Raises:
            BrokenInvariant: the first ratio is not 1, or gradients stayed non-finite.
        """
        self.optimizers.set_lr(progress)
        order = torch.Generator().manual_seed(seed)
        parts: list[losses.Stats | None] = []
        seen: Seen = []
        stopped_early = False
        num_rows, settings = experience.batch.num_rows, self.settings
        for index in shuffled(num_rows, settings.minibatches, order, epochs=settings.epochs):
            is_first = all(part is None for part in parts)
            stats, view = self._minibatch(experience.rows(index), is_first=is_first)
            parts.append(stats)
            seen += [(index[rows], part) for rows, part in view]
            stopped_early = stats is not None and objective.is_too_far(stats, settings)
            if stopped_early:
                break
        num_skipped = parts.count(None) + (0 if self._fit is None else self._fit.further_epochs(experience, order))
        old = experience.old or put_together(seen, experience.values, self.passes.ranks)
        row = diagnostics.of_experience(experience, old, settings, kl_coef=self.kl_coef)
        self.step += 1
        self.kl_coef = objective.next_kl_coef(self.kl_coef, row.get("ref_kl"), settings, num_rollouts=num_rows)
        done = [part for part in parts if part is not None]
        lr = self.optimizers.lr
        return {**row, **diagnostics.of_update(done, num_skipped=num_skipped, stopped_early=stopped_early, lr=lr)}

    def _minibatch(self, minibatch: Experience, *, is_first: bool) -> tuple[losses.Stats | None, Seen]:
        """Take one optimizer step; no statistics where there was nothing to learn or the gradient was not finite."""
        if not self._trains_policy:
            return (None if self._fit is None else self._fit.step_on(minibatch)), []
        counts = self.count(minibatch.batch)
        if counts.num_tokens == 0:
            return None, []
        stats, seen = self.accumulate(minibatch, counts, is_first=is_first)
        norms = self.optimizers.step(self.models)
        return (None if norms is None else stats | norms), seen

    def count(self, batch: Batch) -> Counts:
        """Count the rows of one optimizer step; see `objective.count`."""
        return objective.count(batch, self.settings, max_completion_tokens=self.max_completion_tokens)

    def accumulate(self, minibatch: Experience, counts: Counts, *, is_first: bool = False) -> tuple[losses.Stats, Seen]:
        """Add a minibatch's gradients to the models', pass by pass.

        Every mean is a sum divided by a count of the whole optimizer step, known before the first backward, so that the
        split into passes and over ranks changes nothing.

        Args:
            minibatch: rows of an experience.
            counts: of all rows that go into the optimizer step.
            is_first: nothing has been stepped since the experience was built: the ratio must be 1.

        Returns:
            The step's statistics, and what the policy made of this rank's rows before it.

        Raises:
            BrokenInvariant: the ratio is not 1.
        """
        parts, seen = [], []
        for index, is_own in self.passes.deal(minibatch.batch):
            rows = minibatch.rows(index)
            rows = rows.on(self.passes.narrow(rows.batch if is_own else without_loss(rows.batch)))
            stats, view = self._backward(rows, counts, is_first=is_first)
            parts.append(stats)
            seen += [(index, view)] if is_own else []
        return self.passes.ranks.add_stats(losses.add_stats(parts)), seen

    def _backward(self, rows: Experience, counts: Counts, *, is_first: bool) -> tuple[losses.Stats, PolicyView]:
        """Add the gradients of one pass."""
        settings, ranks = self.settings, self.passes.ranks
        logprobs, entropies, values = self._forward(rows)
        view = rows.old
        if view is None:
            view = view_policy(logprobs.detach(), entropies.detach(), rows.batch, step=rows.step, settings=settings)
        elif is_first:
            objective.require_unchanged(logprobs, view.logprobs, rows.batch, self.compute.dtype)
        loss, stats = objective.policy_objective(
            rows, view, logprobs, entropies, counts, settings, kl_coef=self.kl_coef
        )
        if self.critic is None:
            ranks.scaled(loss).backward()
            return stats, view
        if values is None:
            ranks.scaled(loss).backward()
            loss = loss.new_zeros(())
            values, _ = forward.completion_values(self.critic, rows.batch, compute=self.compute)
        of_values, value_stats = value_loss(
            values, rows.batch, rows.returns, rows.values, num_tokens=counts.num_tokens, clip=settings.value_clip
        )
        ranks.scaled(loss + of_values).backward()
        return stats | value_stats, view

    def _forward(self, rows: Experience) -> tuple[Tensor, Tensor, Float[Tensor, "B T"] | None]:
        """Give log-probabilities, entropies and, where one pass of a shared trunk gives them too, values."""
        batch, settings = rows.batch, self.settings
        if self.critic is None or not settings.shared_trunk:
            wanted = settings.entropy_coef > 0 or rows.old is None
            return *self._logprobs(self.policy, batch, with_entropy=wanted), None
        both = partial(
            forward.both_heads,
            self.policy,
            models.head_of(self.critic),
            batch,
            temperature=self.temperature,
            trunk_value_gradient=settings.trunk_value_gradient,
            compute=self.compute,
        )
        return within(self.policy, both)

    def pretrain_critic(self, train: Batch, held_out: Batch, *, seed: int) -> Iterator[MetricRow]:
        """Fit the critic to the frozen policy's rollouts; see `critic.fit_critic`.

        Raises:
            BrokenInvariant: there is no critic.
        """
        if self._fit is None:
            raise BrokenInvariant(f"learner: {self.settings.algorithm} has no critic to pretrain")
        return fit_critic(self._fit, train, held_out, seed=seed)

    def save(self, path: Path, tokenizer: checkpoint.Saveable) -> None:
        """Write a checkpoint: policy with its tokenizer, critic, optimizer state, LoRA's factors, KL coefficient, step.

        All ranks gather their shards; the first one writes.
        """
        folders = {
            name: (checkpoint.Weights(model, lora.plain_state(model)), *((tokenizer,) if name == POLICY else ()))
            for name, model in self.models.items()
        }
        tensors, summands = self.optimizers.tensors(), lora.summands(self.models)
        if self.passes.ranks.rank > 0:
            return
        numbers = {"kl_coef": self.kl_coef, "skipped_in_a_row": float(self.optimizers.skipped_in_a_row)}
        checkpoint.save_checkpoint(
            path,
            step=self.step,
            folders=folders,
            optimizers=tensors,
            adapters=summands,
            numbers=numbers,
        )

    def restore(self, path: Path) -> None:
        """Put optimizer states, LoRA's factors, KL coefficient and the count of skipped updates of a checkpoint back.

        Raises:
            BadCheckpoint: damaged, or of another model.
        """
        numbers = checkpoint.verify_checkpoint(path).numbers
        lora.put_back(self.models, checkpoint.load_adapters(path), where=path)
        self.optimizers.restore(checkpoint.load_optimizers(path), where=path)
        self.optimizers.skipped_in_a_row = int(numbers.get("skipped_in_a_row", 0))
        if self.settings.kl_target is not None:
            self.kl_coef = numbers.get("kl_coef", self.kl_coef)
