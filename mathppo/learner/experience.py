"""What an update learns from: a batch with the frozen models' view of it.

Everything here is computed once per iteration, before the first optimizer step, and has no gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mathppo.batch import Batch
from mathppo.config import LearnerSettings
from mathppo.learner.backend.sharding import Ranks
from mathppo.ppo import estimators, gae, kl, masked


@dataclass(frozen=True)
class PolicyView:
    """What the policy made of a batch before the update.

    Args:
        logprobs: `old_logprobs`, the learner's own, nats.
        entropies: of its next-token distributions, nats.
        anchor: log-probabilities that the ratio and its clip refer to: the behaviour policy's where a rollout is stale
            and the setting says so, else `logprobs`.
        weights: truncated importance weights, learner over sampler; 1 where the ratio refers to the sampler itself.
    """

    logprobs: Float[Tensor, "B T"]
    entropies: Float[Tensor, "B T"]
    anchor: Float[Tensor, "B T"]
    weights: Float[Tensor, "B T"]


@dataclass(frozen=True)
class Experience:
    """A batch, and per step what the update compares with.

    Args:
        batch: as collated.
        step: number of updates that the policy has seen; rollouts of an earlier one are stale.
        old: the policy's view; None where the update's only step takes it from its own forward pass.
        values: the critic's, before this update; 0 without a critic.
        bootstrap_values: V after the whole completion where it was truncated and the setting asks for it; else 0.
        ref_logprobs: the reference policy's; None where no KL is taken.
        raw_advantages: before whitening.
        advantages: as the loss uses them.
        returns: the critic's targets.
    """

    batch: Batch
    step: int
    old: PolicyView | None
    values: Float[Tensor, "B T"]
    bootstrap_values: Float[Tensor, " B"]
    ref_logprobs: Float[Tensor, "B T"] | None
    raw_advantages: Float[Tensor, "B T"]
    advantages: Float[Tensor, "B T"]
    returns: Float[Tensor, "B T"]

    def rows(self, index: Int[Tensor, " N"]) -> "Experience":
        """Give the rows of `index`, in that order; widths stay."""
        picked = {name: x[index] if isinstance(x, Tensor) else x for name, x in vars(self).items()}
        old = None if self.old is None else PolicyView(**{name: x[index] for name, x in vars(self.old).items()})
        return Experience(**{**picked, "batch": self.batch.rows(index), "old": old})

    def on(self, batch: Batch) -> "Experience":
        """Give the same rows beside `batch`, the same with fewer columns or on another device."""

        def fit(x: Tensor) -> Tensor:
            return (x[:, : batch.completion_width] if x.dim() == 2 else x).to(batch.ids.device)

        fitted = {name: fit(x) if isinstance(x, Tensor) else x for name, x in vars(self).items()}
        old = None if self.old is None else PolicyView(**{name: fit(x) for name, x in vars(self.old).items()})
        return Experience(**{**fitted, "batch": batch, "old": old})


@torch.no_grad()
def view_policy(
    logprobs: Float[Tensor, "B T"],
    entropies: Float[Tensor, "B T"],
    batch: Batch,
    *,
    step: int,
    settings: LearnerSettings,
) -> PolicyView:
    """Weigh the sampler's tokens, and choose what the clip refers to.

    The recomputed log-probability as the ratio's denominator would let a stale rollout's distance from the sampler grow
    unclipped (marin-community/marin#8955); its ratio refers to the behaviour policy, which also corrects for it.

    Args:
        logprobs: the learner's own before the update, nats.
        entropies: of the policy, nats.
        batch: the same rows.
        step: number of updates that the policy has seen.
        settings: of the learner.

    Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", for the weights;
    Schulman et al. 2017, "Proximal Policy Optimization Algorithms", section 3, for the anchor: the policy that acted.
    """
    is_stale = (batch.policy_step < step)[:, None] & batch.loss_mask & (settings.stale_anchor == "behaviour")
    if settings.importance == "off":
        weights = batch.loss_mask.to(logprobs.dtype)
    else:
        weigh = {"token": estimators.token_importance_weights, "sequence": estimators.sequence_importance_weights}
        weights = weigh[settings.importance](
            logprobs, batch.behaviour_logprobs, batch.loss_mask, cap=settings.importance_cap
        )
    return PolicyView(
        logprobs=logprobs,
        entropies=entropies,
        anchor=torch.where(is_stale, batch.behaviour_logprobs, logprobs),
        weights=torch.where(is_stale, 1.0, weights),
    )


def put_together(
    parts: Sequence[tuple[Int[Tensor, " N"], PolicyView]], like: Float[Tensor, "B T"], ranks: Ranks
) -> PolicyView:
    """Give the whole batch's view from those of its rows on all ranks; what no part covers is 0."""
    whole = {field.name: torch.zeros_like(like) for field in fields(PolicyView)}
    for index, view in parts:
        for name, x in vars(view).items():
            whole[name][index, : x.shape[1]] = x.cpu()
    return PolicyView(**{name: ranks.add(x) for name, x in whole.items()})


@torch.no_grad()
def build_experience(
    batch: Batch,
    *,
    step: int,
    old: PolicyView | None,
    values: Float[Tensor, "B T"],
    final_values: Float[Tensor, " B"],
    ref_logprobs: Float[Tensor, "B T"] | None,
    kl_coef: float,
    settings: LearnerSettings,
) -> Experience:
    """Place the reward, and estimate advantages and targets.

    Args:
        batch: scored rollouts.
        step: number of updates that the policy has seen.
        old: the policy's view of them; None where no KL is taken off the reward and the update makes it itself.
        values: the critic's; zeros without a critic.
        final_values: V(prompt + whole completion); read where truncated and `truncation = "bootstrap"`.
        ref_logprobs: the reference policy's; None without one.
        kl_coef: weight of the reference KL now.
        settings: of the learner.

    Source: Yue et al. 2025, "VAPO: Efficient and Reliable Reinforcement Learning for Advanced Reasoning Tasks", for
    lambdas of the policy and of the critic apart, and for one that grows with the completion.
    """
    rewards = gae.token_rewards(batch.outcome, batch.completion_mask)
    if settings.kl_place == "reward" and ref_logprobs is not None and old is not None:
        token_kl = kl.kl_estimate(old.logprobs, ref_logprobs, settings.kl_kind)
        rewards = gae.token_rewards(batch.outcome, batch.completion_mask, token_kl, kl_coef=kl_coef)
    bootstrap = torch.where(batch.truncated & (settings.truncation == "bootstrap"), final_values, 0.0)
    if settings.has_critic:
        estimate = partial(gae.gae, rewards, values, batch.completion_mask, bootstrap, gamma=settings.gamma)
        if settings.lam_alpha is not None:
            raw = estimate(lam=gae.length_adaptive_lambda(batch.lengths, settings.lam_alpha))
        else:
            raw = estimate(lam=settings.lam)
        is_shared = settings.lam_alpha is None and settings.critic_lam == settings.lam
        returns = (raw if is_shared else estimate(lam=settings.critic_lam)) + values
        advantages = masked.whiten(raw, batch.loss_mask) if settings.whiten else raw
    else:
        raw = advantages = _critic_free_advantages(rewards, batch, settings)
        returns = estimators.discounted_returns(rewards, batch.completion_mask, gamma=settings.gamma)
    return Experience(
        batch=batch,
        step=step,
        old=old,
        values=values,
        bootstrap_values=bootstrap,
        ref_logprobs=ref_logprobs,
        raw_advantages=raw,
        advantages=advantages,
        returns=returns,
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
