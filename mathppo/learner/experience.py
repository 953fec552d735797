"""What an update learns from: a batch with the frozen models' view of it.

Everything here is computed once per iteration, before the first optimizer step, and has no gradient.

Touches: nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mathppo.batch import Batch
from mathppo.config import LearnerSettings
from mathppo.ppo import estimators, gae, kl, masked


@dataclass(frozen=True)
class Experience:
    """A batch, and per step what the update compares with.

    Args:
        batch: as collated.
        old_logprobs: the learner's own, before this update, nats.
        values: the critic's, before this update; 0 without a critic.
        bootstrap_values: V after the whole completion where it was truncated and the setting asks for it; else 0.
        entropies: of the policy's next-token distributions, nats.
        ref_logprobs: the reference policy's; None where no KL is taken.
        raw_advantages: before whitening.
        advantages: as the loss uses them.
        returns: the critic's targets.
        weights: truncated importance weights, learner over sampler.
    """

    batch: Batch
    old_logprobs: Float[Tensor, "B T"]
    values: Float[Tensor, "B T"]
    bootstrap_values: Float[Tensor, " B"]
    entropies: Float[Tensor, "B T"]
    ref_logprobs: Float[Tensor, "B T"] | None
    raw_advantages: Float[Tensor, "B T"]
    advantages: Float[Tensor, "B T"]
    returns: Float[Tensor, "B T"]
    weights: Float[Tensor, "B T"]

    def rows(self, index: Int[Tensor, " N"]) -> "Experience":
        """Give the rows of `index`, in that order; widths stay."""
        picked = {name: x[index] if isinstance(x, Tensor) else x for name, x in vars(self).items()}
        return Experience(**{**picked, "batch": self.batch.rows(index)})


def row_chunks(lengths: Int[Tensor, " B"], size: int) -> Iterator[Int[Tensor, " N"]]:
    """Yield the indices of all rows, shortest first, at most `size` at a time."""
    yield from lengths.argsort(stable=True).split(size)


@torch.no_grad()
def by_rows(function: Callable[[Batch], tuple[Tensor, Tensor]], batch: Batch, size: int) -> tuple[Tensor, Tensor]:
    """Apply a forward pass to at most `size` rows at a time and give its two results for the whole batch."""
    parts, order = [], []
    for index in row_chunks(batch.lengths, size):
        parts.append(function(batch.rows(index)))
        order.append(index)
    back = torch.cat(order).argsort()
    first, second = zip(*parts, strict=True)
    return torch.cat(first)[back], torch.cat(second)[back]


@torch.no_grad()
def build_experience(
    batch: Batch,
    *,
    old_logprobs: Float[Tensor, "B T"],
    entropies: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    final_values: Float[Tensor, " B"],
    ref_logprobs: Float[Tensor, "B T"] | None,
    settings: LearnerSettings,
) -> Experience:
    """Place the reward, estimate advantages and targets, and weigh the sampler's tokens.

    Args:
        batch: scored rollouts.
        old_logprobs: the learner's, nats.
        entropies: of the policy, nats.
        values: the critic's; zeros without a critic.
        final_values: V(prompt + whole completion); read where truncated and `truncation = "bootstrap"`.
        ref_logprobs: the reference policy's; None without one.
        settings: of the learner.
    """
    if settings.kl_place == "reward" and ref_logprobs is not None:
        token_kl = kl.kl_estimate(old_logprobs, ref_logprobs, settings.kl_kind)
        rewards = gae.token_rewards(batch.outcome, batch.completion_mask, token_kl, kl_coef=settings.kl_coef)
    else:
        rewards = gae.token_rewards(batch.outcome, batch.completion_mask)
    bootstrap = torch.where(batch.truncated & (settings.truncation == "bootstrap"), final_values, 0.0)
    if settings.has_critic:
        estimate = partial(gae.gae, rewards, values, batch.completion_mask, bootstrap, gamma=settings.gamma)
        raw = estimate(lam=settings.lam)
        critic = raw if settings.critic_lam == settings.lam else estimate(lam=settings.critic_lam)
        returns = critic + values
        advantages = masked.whiten(raw, batch.loss_mask) if settings.whiten else raw
    else:
        raw = advantages = _critic_free_advantages(rewards, batch, settings)
        returns = estimators.discounted_returns(rewards, batch.completion_mask, gamma=settings.gamma)
    return Experience(
        batch=batch,
        old_logprobs=old_logprobs,
        values=values,
        bootstrap_values=bootstrap,
        entropies=entropies,
        ref_logprobs=ref_logprobs,
        raw_advantages=raw,
        advantages=advantages,
        returns=returns,
        weights=estimators.token_importance_weights(
            old_logprobs, batch.behaviour_logprobs, batch.loss_mask, cap=settings.importance_cap
        ),
    )


def _critic_free_advantages(
    rewards: Float[Tensor, "B T"], batch: Batch, settings: LearnerSettings
) -> Float[Tensor, "B T"]:
    if settings.algorithm == "reinforce++":
        return estimators.reinforce_plus_plus_advantages(
            rewards, batch.completion_mask, gamma=settings.gamma, loss_mask=batch.loss_mask
        )
    compare = estimators.rloo_advantages if settings.algorithm == "rloo" else estimators.grpo_advantages
    per_rollout = compare(rewards.sum(1), batch.group, scored_mask=batch.loss_mask.any(1))
    return torch.where(batch.completion_mask, per_rollout[:, None], 0.0)
