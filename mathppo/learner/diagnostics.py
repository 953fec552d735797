"""Metrics of an iteration, under the names of the table in `mathppo.metrics`.

A metric without a value (an explained variance of constant outcomes, a mean over no token) is left out.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from graders.verdict import Status
from mathppo.batch import Batch
from mathppo.config import LearnerSettings, RewardSettings
from mathppo.learner.experience import Experience, OldPolicy
from mathppo.learner.objective import importance_weights
from mathppo.metrics import NUM_POSITIONS, MetricRow
from mathppo.ppo import kl, losses
from mathppo.ppo.explained_variance import explained_variance
from mathppo.records import ScoredRollout
from mathppo.reward import penalties_of


def rollout_metrics(
    scored: Sequence[ScoredRollout], settings: RewardSettings | None = None, *, overlong_budget_tokens: int = 0
) -> MetricRow:
    """Measure rewards, penalties, verdicts and lengths of an iteration's rollouts.

    Args:
        scored: at least one rollout.
        settings: of the reward, for its penalties; None = leave the penalties out.
        overlong_budget_tokens: as in `reward_of`.
    """
    rewards = [item.reward for item in scored if item.reward is not None]
    graded = [item for item in scored if item.verdict.status is not Status.ERROR]
    lengths = torch.tensor([float(len(item.rollout.completion_ids)) for item in scored])
    terminated = torch.tensor([item.rollout.terminated for item in scored])
    correct = torch.tensor([item.verdict.correct for item in scored])

    def share(status: Status) -> float:
        return sum(item.verdict.status is status for item in scored) / len(scored)

    row = {
        "reward_mean": _mean(rewards),
        "accuracy": _mean([float(item.verdict.correct) for item in graded]),
        "truncated_share": 1.0 - terminated.float().mean().item(),
        "no_answer_share": share(Status.NO_ANSWER),
        "unparsable_share": share(Status.UNPARSABLE),
        "over_budget_share": share(Status.OVER_BUDGET),
        "grader_error_share": share(Status.ERROR),
        "length_mean_tokens": lengths.mean().item(),
        "length_terminated_mean_tokens": lengths[terminated].mean().item(),
        "length_correct_mean_tokens": lengths[correct].mean().item(),
        "length_incorrect_mean_tokens": lengths[~correct].mean().item(),
        "length_p95_tokens": lengths.quantile(0.95, interpolation="higher").item(),
        "num_tokens": lengths.sum().item(),
        "num_rollouts_dropped": float(len(scored) - len(rewards)),
    }
    if settings is not None and graded:
        penalties = [
            penalties_of(item.verdict, item.rollout, settings, overlong_budget_tokens=overlong_budget_tokens)
            for item in graded
        ]
        row |= {f"{name}_mean": _mean([terms[name] for terms in penalties]) for name in penalties[0]}
    return _with_a_value(row)


def experience_metrics(
    experience: Experience, old: OldPolicy, settings: LearnerSettings, *, kl_coef: float
) -> MetricRow:
    """Measure the state before the first optimizer step: sampler mismatch, advantages, values, entropy, reference KL.

    Args:
        experience: of the iteration.
        old: the policy before the update, on the whole batch.
        settings: of the learner.
        kl_coef: the current weight of the reference KL.
    """
    mask = experience.batch.loss_mask
    log_ratio = (old.logprobs - experience.batch.behaviour_logprobs)[mask]
    advantages = experience.raw_advantages[mask]
    row: dict[str, float | list[float]] = {
        # k3 of samples from the behaviour policy: an estimate of KL(behaviour || old policy).
        "behaviour_kl": kl.exp_excess(log_ratio).mean().item(),
        "behaviour_logratio_mean": log_ratio.abs().mean().item(),
        "behaviour_logratio_max": log_ratio.abs().max().item() if len(log_ratio) else math.nan,
        "behaviour_ess_share": _ess_share(log_ratio),
        "behaviour_logratio_by_size": by_size(log_ratio),
        "stale_share": (experience.batch.policy_step < experience.step).float().mean().item(),
        "entropy": old.entropies[mask].mean().item(),
        "advantage_mean": advantages.mean().item(),
        "advantage_std": advantages.std(correction=0).item(),
        "return_mean": experience.returns[mask].mean().item(),
        "return_std": experience.returns[mask].std(correction=0).item(),
        "advantage_by_position": by_position(experience.raw_advantages, mask),
    }
    if settings.importance != "off":
        row |= _weight_metrics(old, experience, settings)
    if experience.ref_logprobs is not None:
        difference = (old.logprobs - experience.ref_logprobs)[mask]
        row |= {"ref_kl": kl.exp_excess(-difference).mean().item(), "kl_coef": kl_coef}
    if settings.has_critic:
        row |= {
            "value_mean": experience.values[mask].mean().item(),
            "value_by_position": by_position(experience.values, mask),
            "explained_variance_outcome": _outcome_variance(experience.values, experience.batch),
            "explained_variance_target": explained_variance(experience.values, experience.returns, mask).item(),
        }
    return _with_a_value(row)


def update_metrics(
    parts: Sequence[losses.Stats], *, num_skipped: int, stopped_early: bool, lr: Mapping[str, float]
) -> MetricRow:
    """Average the statistics of the optimizer steps; keys that end in `_max` by maximum."""
    names = [
        "policy_loss", "positive_nll", "value_loss", "approx_kl", "clip_share_high", "clip_share_low",
        "clip_share_dual", "value_clip_share", "ratio_max", "policy_grad_norm", "critic_grad_norm",
    ]  # fmt: skip
    row = {"num_updates_skipped": float(num_skipped), "stopped_early": float(stopped_early), **lr}
    for name in names:
        found = torch.stack([part[name] for part in parts]) if parts and name in parts[0] else None
        if found is not None:
            row[name] = (found.max() if name.endswith("_max") else found.mean()).item()
    return _with_a_value(row)


def critic_metrics(parts: Sequence[losses.Stats], values: Float[Tensor, "B T"], held_out: Batch) -> MetricRow:
    """Measure an epoch of critic pretraining: its mean loss, and the explained variance of held-out outcomes."""
    row = {
        name: torch.stack([part[name] for part in parts]).mean().item() if parts else math.nan
        for name in ("value_loss", "critic_grad_norm")
    }
    return _with_a_value(row | {"explained_variance_outcome": _outcome_variance(values, held_out)})


def by_position(x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> list[float]:
    """Return the mean of `x` in each tenth of the completions, first to last; an empty tenth repeats the previous."""
    steps = mask.cumsum(1) - 1
    tenth = (steps * NUM_POSITIONS // mask.sum(1, keepdim=True).clamp(min=1))[mask]
    sums = torch.zeros(NUM_POSITIONS).index_add(0, tenth, x[mask].float())
    counts = torch.zeros(NUM_POSITIONS).index_add(0, tenth, torch.ones_like(x[mask], dtype=torch.float32))
    means: list[float] = []
    for total, count in zip(sums.tolist(), counts.tolist(), strict=True):
        means.append(total / count if count else (means[-1] if means else 0.0))
    return means


def by_size(log_ratio: Float[Tensor, " N"]) -> list[float]:
    """Return the share of numbers per decade of magnitude: below 1e-7, 1e-7 to 1e-6, ..., 10 and above."""
    edges = 10.0 ** torch.arange(-7.0, 2.0, dtype=torch.float64)
    decade = torch.bucketize(log_ratio.abs().double().cpu(), edges, right=True)
    return (torch.bincount(decade, minlength=NUM_POSITIONS) / max(1, len(log_ratio))).tolist()


def _ess_share(log_ratio: Float[Tensor, " N"]) -> float:
    """Return Kish's effective sample size of the ratios divided by their number: (sum w)^2 / (N sum w^2)."""
    weights = (log_ratio.double() - log_ratio.double().amax()).exp() if len(log_ratio) else log_ratio
    return (weights.sum() ** 2 / (len(weights) * (weights**2).sum())).item() if len(weights) else math.nan


def _weight_metrics(old: OldPolicy, experience: Experience, settings: LearnerSettings) -> dict[str, float]:
    batch, mask = experience.batch, experience.batch.loss_mask
    _, weights = importance_weights(old.logprobs, batch, settings, step=experience.step)
    log_ratio = torch.where(mask, old.logprobs - batch.behaviour_logprobs, 0.0)
    if settings.importance == "sequence":
        log_ratio = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
    return {
        "importance_weight_mean": weights[mask].mean().item(),
        "importance_weight_capped_share": (log_ratio[mask].exp() > settings.importance_cap).float().mean().item(),
    }


def _outcome_variance(values: Float[Tensor, "B T"], batch: Batch) -> float:
    outcomes = batch.outcome[:, None].expand_as(values)
    return explained_variance(values, outcomes, batch.loss_mask).item()


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else math.nan


def _with_a_value(row: Mapping[str, float | list[float]]) -> MetricRow:
    return {name: value for name, value in row.items() if isinstance(value, list) or math.isfinite(value)}
