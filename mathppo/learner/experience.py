"""Experience of one iteration: a batch, and everything that its loss compares with.

Computed once per iteration, before the first optimizer step, without gradients.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mathppo.batch import Batch
from mathppo.config import LearnerSettings
from mathppo.learner.backend.sharding import DistContext
from mathppo.ppo import gae, kl, masked
from mathppo.ppo.advantages import discounted_returns, grpo_advantages, reinforce_plus_plus_advantages, rloo_advantages
from mathppo.ppo.gae_lambda import length_adaptive_lambda


@dataclass(frozen=True)
class OldPolicy:
    """The policy before the update, on the rows of a batch.

    Args:
        logprobs: `old_logprobs`, the learner's, nats.
        entropies: of its next-token distributions, nats.
    """

    logprobs: Float[Tensor, "B T"]
    entropies: Float[Tensor, "B T"]


@dataclass(frozen=True)
class FromUpdatePass:
    """Takes the place of `OldPolicy` in an update of one optimizer step.

    The forward pass of that step runs on the old policy, so `old_logprobs` is `logprobs.detach()` and a separate pass
    is not needed.
    """


@dataclass(frozen=True)
class Experience:
    """A batch, and per step what the update compares with.

    Args:
        batch: collated rollouts.
        step: number of updates that the policy has seen; rollouts of an earlier step are stale.
        old: the policy before the update.
        values: the critic's, before the update; 0 without a critic.
        bootstrap_values: V after the whole completion if it was truncated and `truncation = "bootstrap"`, else 0.
        ref_logprobs: the reference policy's; None without a reference KL.
        raw_advantages: before whitening.
        advantages: as the loss uses them.
        returns: targets of the critic.
    """

    batch: Batch
    step: int
    old: OldPolicy | FromUpdatePass
    values: Float[Tensor, "B T"]
    bootstrap_values: Float[Tensor, " B"]
    ref_logprobs: Float[Tensor, "B T"] | None
    raw_advantages: Float[Tensor, "B T"]
    advantages: Float[Tensor, "B T"]
    returns: Float[Tensor, "B T"]

    def rows(self, index: Int[Tensor, " N"], batch: Batch | None = None) -> "Experience":
        """Return the rows of `index`, in that order.

        Args:
            index: row indices.
            batch: the same rows of the batch, trimmed or on another device; None = as they are.
        """
        batch = self.batch.rows(index) if batch is None else batch

        def pick(x: Tensor) -> Tensor:
            return (x[index][:, : batch.completion_width] if x.dim() == 2 else x[index]).to(batch.ids.device)

        old = self.old
        if isinstance(old, OldPolicy):
            old = OldPolicy(pick(old.logprobs), pick(old.entropies))
        tensors = {name: pick(x) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, batch=batch, old=old, **tensors)


@torch.no_grad()
def build_experience(
    batch: Batch,
    *,
    step: int,
    old: OldPolicy | FromUpdatePass,
    values: Float[Tensor, "B T"],
    final_values: Float[Tensor, " B"],
    ref_logprobs: Float[Tensor, "B T"] | None,
    kl_coef: float,
    settings: LearnerSettings,
) -> Experience:
    """Place the reward, and estimate advantages and return targets.

    Args:
        batch: scored rollouts.
        step: number of updates that the policy has seen.
        old: the policy before the update; must be an `OldPolicy` if `kl_place = "reward"`.
        values: the critic's; zeros without a critic.
        final_values: V(prompt + whole completion); read for truncated rows if `truncation = "bootstrap"`.
        ref_logprobs: the reference policy's; None without a reference.
        kl_coef: the current weight of the reference KL.
        settings: of the learner.

    Source: separate lambdas for policy and critic, and one that grows with the completion: Yue et al. 2025, "VAPO:
    Efficient and Reliable Reinforcement Learning for Advanced Reasoning Tasks" (https://arxiv.org/abs/2504.05118).
    """
    rewards = gae.token_rewards(batch.outcome, batch.completion_mask)
    if settings.kl_place == "reward" and ref_logprobs is not None and isinstance(old, OldPolicy):
        token_kl = kl.kl_estimate(old.logprobs, ref_logprobs, settings.kl_kind)
        rewards = gae.token_rewards(batch.outcome, batch.completion_mask, token_kl, kl_coef=kl_coef)
    bootstrap = torch.where(batch.truncated & (settings.truncation == "bootstrap"), final_values, 0.0)
    if settings.has_critic:
        estimate = partial(gae.gae, rewards, values, batch.completion_mask, bootstrap, gamma=settings.gamma)
        if settings.lam_alpha is not None:
            raw = estimate(lam=length_adaptive_lambda(batch.lengths, settings.lam_alpha))
        else:
            raw = estimate(lam=settings.lam)
        is_shared = settings.lam_alpha is None and settings.critic_lam == settings.lam
        returns = (raw if is_shared else estimate(lam=settings.critic_lam)) + values
        advantages = masked.whiten(raw, batch.loss_mask) if settings.whiten else raw
    else:
        raw = advantages = _critic_free_advantages(rewards, batch, settings)
        returns = discounted_returns(rewards, batch.completion_mask, gamma=settings.gamma)
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


def gather_old_policy(
    parts: Iterable[tuple[Int[Tensor, " N"], OldPolicy]], like: Float[Tensor, "B T"], dist: DistContext
) -> OldPolicy:
    """Merge the old policy on some rows of each rank into that on the whole batch; rows of no part are 0."""
    logprobs, entropies = torch.zeros_like(like), torch.zeros_like(like)
    for index, old in parts:
        width = old.logprobs.shape[1]
        logprobs[index, :width], entropies[index, :width] = old.logprobs.cpu(), old.entropies.cpu()
    return OldPolicy(dist.all_reduce(logprobs), dist.all_reduce(entropies))


def _critic_free_advantages(
    rewards: Float[Tensor, "B T"], batch: Batch, settings: LearnerSettings
) -> Float[Tensor, "B T"]:
    if settings.algorithm == "reinforce++":
        return reinforce_plus_plus_advantages(
            rewards, batch.completion_mask, gamma=settings.gamma, loss_mask=batch.loss_mask
        )
    estimate = rloo_advantages if settings.algorithm == "rloo" else grpo_advantages
    per_rollout = estimate(rewards.sum(1), batch.group, scored_mask=batch.loss_mask.any(1))
    return torch.where(batch.completion_mask, per_rollout[:, None], 0.0)
