"""The only holder of trainable state: policy, critic, their optimizers, and the step.

`update` follows one iteration's rollouts from the batch to the optimizer step; the maths is in `mathppo.ppo`, what it
compares with in `experience.py`. Nothing random is kept: the order of rows derives from the seed that the caller gives.

Touches: nothing but its own models; checkpoints through `checkpoint.py`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor, nn

from mathppo.batch import Batch
from mathppo.config import LearnerSettings
from mathppo.errors import BadCheckpoint, BrokenInvariant
from mathppo.learner import checkpoint, diagnostics, models
from mathppo.learner.critic import critic_backward, fit_critic
from mathppo.learner.experience import Experience, build_experience, by_rows, row_chunks
from mathppo.learner.models import PreTrainedModel
from mathppo.metrics import MetricRow
from mathppo.ppo import kl, losses, masked

RATIO_TOLERANCE = 1e-3
"""Nats by which float32 log-probabilities of unchanged weights may differ between two ways of batching them."""


class Learner:
    """Actor, critic and optimizers.

    Args:
        policy: the actor; its weights are trained in place.
        critic: predicts the outcome at each step; None for critic-free algorithms.
        reference: frozen policy that a KL term refers to; None where the settings take none.
        settings: of the learner.
        temperature: the sampler's; log-probabilities are those of softmax(logits / temperature).
        step: number of updates that the policy has seen.
    """

    def __init__(
        self,
        policy: PreTrainedModel,
        critic: PreTrainedModel | None,
        reference: PreTrainedModel | None,
        settings: LearnerSettings,
        *,
        temperature: float,
        step: int = 0,
    ) -> None:
        self.policy, self.critic, self.reference = policy.eval(), critic, reference
        self.settings, self.temperature, self.step = settings, temperature, step
        self._skipped_in_a_row = 0
        self._optimizers = {name: _adamw(model, settings) for name, model in self._models().items()}

    def _models(self) -> dict[str, PreTrainedModel]:
        return {"policy": self.policy} | ({} if self.critic is None else {"critic": self.critic})

    def experience(self, batch: Batch) -> Experience:
        """Run the frozen forward passes over a batch; see `build_experience`."""
        size = self.settings.micro_batch_size
        old_logprobs, entropies = by_rows(self._logprobs_of(self.policy), batch, size)
        if self.critic is None:
            values, final_values = torch.zeros_like(old_logprobs), torch.zeros_like(batch.outcome)
        else:
            critic = self.critic
            values, final_values = by_rows(lambda rows: models.completion_values(critic, rows), batch, size)
        ref_logprobs = None
        if self.reference is not None:
            ref_logprobs, _ = by_rows(self._logprobs_of(self.reference), batch, size)
        return build_experience(
            batch,
            old_logprobs=old_logprobs,
            entropies=entropies,
            values=values,
            final_values=final_values,
            ref_logprobs=ref_logprobs,
            settings=self.settings,
        )

    def _logprobs_of(self, model: PreTrainedModel) -> Callable[[Batch], tuple[Tensor, Tensor]]:
        return lambda rows: models.completion_logprobs(model, rows, temperature=self.temperature)

    def update(self, experience: Experience, *, progress: float, seed: int) -> MetricRow:
        """Take an iteration's optimizer steps and give what was measured.

        Args:
            experience: from `experience`, with the weights as they are now.
            progress: share of the run that is done, in [0, 1); the learning-rate schedule's argument.
            seed: of the order of rows; one per iteration.

        Raises:
            BrokenInvariant: the first ratio is not 1, or gradients stayed non-finite.
        """
        self._set_lr(progress)
        parts: list[losses.Stats] = []
        num_skipped, stopped_early = 0, False
        for number, index in enumerate(self._minibatches(experience.batch, seed)):
            stats = self._minibatch(experience.rows(index), is_first=number == 0)
            if stats is None:
                num_skipped += 1
                continue
            parts.append(stats)
            stopped_early = self.settings.target_kl is not None and stats["approx_kl"].item() > self.settings.target_kl
            if stopped_early:
                break
        self.step += 1
        measured = diagnostics.of_update(parts, num_skipped=num_skipped, stopped_early=stopped_early, lr=self._lr())
        return {**diagnostics.of_experience(experience, self.settings), **measured}

    def _minibatches(self, batch: Batch, seed: int) -> Iterator[Int[Tensor, " N"]]:
        order = torch.Generator().manual_seed(seed)
        for _ in range(self.settings.epochs):
            yield from torch.randperm(batch.num_rows, generator=order).tensor_split(self.settings.minibatches)

    def _minibatch(self, minibatch: Experience, *, is_first: bool) -> losses.Stats | None:
        """Take one optimizer step; None where there was nothing to learn or the gradient was not finite."""
        num_tokens = minibatch.batch.loss_mask.sum()
        if num_tokens == 0:
            return None
        stats = self.accumulate(minibatch, num_tokens, is_first=is_first)
        norms = self._step_optimizers()
        return None if norms is None else stats | norms

    def accumulate(self, minibatch: Experience, num_tokens: Tensor, *, is_first: bool = False) -> losses.Stats:
        """Add a minibatch's gradients to the models', micro-batch by micro-batch.

        Every mean is a sum divided by `num_tokens`, the trained tokens of the whole optimizer step, known before the
        first backward, so that the split into micro-batches changes nothing.

        Args:
            minibatch: rows of an experience.
            num_tokens: True positions of the `loss_mask` of all rows that go into the optimizer step.
            is_first: nothing has been stepped since the experience was built: the ratio must be 1.

        Raises:
            BrokenInvariant: it is not.
        """
        parts = []
        for index in row_chunks(minibatch.batch.lengths, self.settings.micro_batch_size):
            rows = minibatch.rows(index)
            stats = self._policy_backward(rows, num_tokens)
            if is_first:
                _require_unchanged(stats, num_rows=rows.batch.num_rows)
            if self.critic is not None:
                stats |= critic_backward(
                    self.critic,
                    rows.batch,
                    rows.returns,
                    num_tokens=num_tokens,
                    old_values=rows.values,
                    clip=self.settings.value_clip,
                )
            parts.append(stats)
        return losses.add_stats(parts)

    def _policy_backward(self, rows: Experience, num_tokens: Tensor) -> losses.Stats:
        batch, settings = rows.batch, self.settings
        logprobs, entropies = models.completion_logprobs(
            self.policy, batch, temperature=self.temperature, with_entropy=settings.entropy_coef > 0
        )
        loss, stats = losses.policy_loss(
            logprobs,
            rows.old_logprobs,
            rows.advantages,
            batch.loss_mask,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            dual_clip=settings.dual_clip,
            weights=rows.weights,
            denominator=num_tokens,
        )
        stats["policy_loss"] = loss.detach()
        if settings.entropy_coef > 0:
            loss = loss - settings.entropy_coef * masked.masked_mean(entropies, batch.loss_mask, denominator=num_tokens)
        if settings.kl_place == "loss" and rows.ref_logprobs is not None:
            token_kl = kl.kl_estimate(logprobs, rows.ref_logprobs, settings.kl_kind)
            loss = loss + settings.kl_coef * masked.masked_mean(token_kl, batch.loss_mask, denominator=num_tokens)
        loss.backward()
        return stats

    def _step_optimizers(self) -> losses.Stats | None:
        """Clip and step; a non-finite gradient is thrown away, and counted."""
        norms = {
            f"{name}_grad_norm": nn.utils.clip_grad_norm_(model.parameters(), self.settings.max_grad_norm)
            for name, model in self._models().items()
        }
        is_finite = all(norm.isfinite() for norm in norms.values())
        for optimizer in self._optimizers.values():
            if is_finite:
                optimizer.step()
            optimizer.zero_grad()
        self._skipped_in_a_row = 0 if is_finite else self._skipped_in_a_row + 1
        if self._skipped_in_a_row >= self.settings.max_skipped_updates:
            found = ", ".join(f"{name} = {norm.item():g}" for name, norm in norms.items())
            raise BrokenInvariant(
                f"learner: gradients were not finite {self._skipped_in_a_row} times in a row ({found}); lower "
                "learner.lr or go back to an earlier checkpoint"
            )
        return norms if is_finite else None

    def pretrain_critic(self, train: Batch, held_out: Batch, *, seed: int) -> Iterator[MetricRow]:
        """Fit the critic to the frozen policy's rollouts; see `critic.fit_critic`.

        Raises:
            BrokenInvariant: there is no critic.
        """
        if self.critic is None:
            raise BrokenInvariant(f"learner: {self.settings.algorithm} has no critic to pretrain")
        return fit_critic(self.critic, self._optimizers["critic"], train, held_out, self.settings, seed=seed)

    def _set_lr(self, progress: float) -> None:
        factor = 1.0 - progress if self.settings.lr_schedule == "linear" else 1.0
        for name, optimizer in self._optimizers.items():
            peak = self.settings.lr if name == "policy" else self.settings.critic_lr
            for group in optimizer.param_groups:
                group["lr"] = peak * factor

    def _lr(self) -> dict[str, float]:
        return {f"{name}_lr": float(optimizer.param_groups[0]["lr"]) for name, optimizer in self._optimizers.items()}

    def save(self, path: Path, tokenizer: checkpoint.Saveable) -> None:
        """Write a checkpoint: policy with its tokenizer, critic, optimizer state, step."""
        folders: dict[str, tuple[checkpoint.Saveable, ...]] = {"policy": (self.policy, tokenizer)}
        if self.critic is not None:
            folders["critic"] = (self.critic,)
        tensors: dict[str, Tensor] = {}
        for name, model in self._models().items():
            tensors |= checkpoint.optimizer_tensors(name, dict(model.named_parameters()), self._optimizers[name])
        checkpoint.save_checkpoint(path, step=self.step, folders=folders, optimizers=tensors)

    @classmethod
    def load(cls, path: Path, settings: LearnerSettings, *, reference: Path, temperature: float) -> "Learner":
        """Restore a learner from a checkpoint, exactly as it was saved.

        Args:
            path: the checkpoint.
            settings: of the learner.
            reference: folder of the reference policy; read only where the settings take a KL.
            temperature: the sampler's.

        Raises:
            BadCheckpoint: missing, damaged, of another model, or without the critic that the algorithm needs.
        """
        step = checkpoint.verify_checkpoint(path).step
        critic = None
        if settings.has_critic:
            if not (path / "critic").is_dir():
                raise BadCheckpoint(
                    f"{path}: expected a critic beside the policy for learner.algorithm={settings.algorithm!r}, found "
                    "none; start from a checkpoint of that algorithm"
                )
            critic = models.load_critic(path / "critic")
        learner = cls(
            models.load_policy(path / "policy"),
            critic,
            load_reference(reference, settings),
            settings,
            temperature=temperature,
            step=step,
        )
        tensors = checkpoint.load_optimizers(path)
        for name, model in learner._models().items():
            checkpoint.restore_optimizer(
                name, dict(model.named_parameters()), learner._optimizers[name], tensors, where=path
            )
        return learner


def load_reference(path: Path, settings: LearnerSettings) -> PreTrainedModel | None:
    """Load the frozen reference policy, or None where the settings take no KL."""
    return None if settings.kl_place == "none" else models.load_policy(path).requires_grad_(False)


def _adamw(model: nn.Module, settings: LearnerSettings) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        model.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=settings.weight_decay, fused=True
    )


def _require_unchanged(stats: Mapping[str, Tensor], *, num_rows: int) -> None:
    """Before the first step of an update the policy is the old policy: ratio 1, KL 0, nothing clipped."""
    worst = stats["log_ratio_abs_max"].item()
    if math.isnan(worst) or worst > RATIO_TOLERANCE:
        raise BrokenInvariant(
            f"learner: expected logprobs = old_logprobs before the first step (within {RATIO_TOLERANCE:g} nats), got a "
            f"difference of {worst:g} among {num_rows} rollouts (approximate KL {stats['approx_kl'].item():g}); likely "
            "causes: dropout is on, weights changed since old_logprobs were taken, other temperature, padding leaks"
        )
