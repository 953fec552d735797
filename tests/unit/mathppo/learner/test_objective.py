"""Policy loss compared with a loop over tokens: numbers, gradients, statistics."""

import math
from dataclasses import replace
from itertools import product

import oracles
import pytest
import torch
from tiny_runs import scored_rollout, tiny_rollouts
from torch import Tensor

from mathppo.batch import Batch, collate
from mathppo.config import LearnerSettings
from mathppo.errors import BrokenInvariant
from mathppo.learner import objective
from mathppo.learner.experience import Experience, OldPolicy
from mathppo.ppo.losses import Stats, add_stats

BUDGET, KL_COEF = 12, 0.3
"""Token budget, and a current coefficient that differs from the one in the settings."""

SETTINGS = {"clip_low": 0.1, "clip_high": 0.3, "entropy_coef": 0.2, "positive_nll_coef": 0.4}


def some_batch() -> Batch:
    """Correct and incorrect rollouts of many lengths; one without a reward, one correct but truncated and masked."""
    scored = [
        *tiny_rollouts(6, seed=2),
        scored_rollout(reward=None, problem_id="broken", completion_ids=[4, 5, 6]),
        scored_rollout(reward=1.0, problem_id="cut", completion_ids=[4, 5, 6], truncated=True),
    ]
    return collate(scored, pad_id=0, drop_truncated=True)


def normal(batch: Batch, seed: int) -> Tensor:
    return torch.randn(batch.loss_mask.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def some_rows(batch: Batch) -> Experience:
    """Fresh rows, whose clip is anchored at the old policy, and two stale rows, anchored at the behaviour policy."""
    zeros, advantages = torch.zeros_like(normal(batch, 0)), normal(batch, 1)
    old = -normal(batch, 2).abs()
    policy_step = torch.ones_like(batch.policy_step)
    policy_step[[1, 4]] = 0
    return Experience(
        batch=replace(batch, behaviour_logprobs=old + 0.4 * normal(batch, 3), policy_step=policy_step),
        step=1,
        old=OldPolicy(old, zeros),
        values=zeros,
        bootstrap_values=zeros[:, 0],
        ref_logprobs=old + 0.3 * normal(batch, 4),
        raw_advantages=advantages,
        advantages=advantages,
        returns=zeros,
    )


def old_of(rows: Experience) -> Tensor:
    assert isinstance(rows.old, OldPolicy)
    return rows.old.logprobs


def anchor_of(rows: Experience) -> Tensor:
    is_stale = rows.batch.policy_step[:, None] == 0
    return torch.where(is_stale, rows.batch.behaviour_logprobs, old_of(rows))


def loss_by_hand(
    rows: Experience, logprobs: list[list[float]], entropies: list[list[float]], settings: LearnerSettings
) -> float:
    assert rows.ref_logprobs is not None
    batch, old, behaviour = rows.batch, old_of(rows).tolist(), rows.batch.behaviour_logprobs.tolist()
    advantages, ref_logprobs = rows.advantages.tolist(), rows.ref_logprobs.tolist()
    trained = [oracles.steps_of(mask) for mask in batch.loss_mask.tolist()]
    num_rows, num_tokens = sum(bool(steps) for steps in trained), sum(map(len, trained))
    terms, imitated = [], []
    for i, steps in enumerate(trained):
        share = {
            "token_mean": 1 / num_tokens,
            "sequence_mean": 1 / (num_rows * max(len(steps), 1)),
            "constant_length": 1 / (num_rows * BUDGET),
        }[settings.aggregation]
        is_stale = batch.policy_step[i] == 0
        for t in steps:
            anchor = behaviour[i][t] if is_stale else old[i][t]
            weight = 1.0 if is_stale else min(math.exp(old[i][t] - behaviour[i][t]), settings.importance_cap)
            surrogate = oracles.policy_loss_token(
                logprobs[i][t], anchor, advantages[i][t],
                settings.clip_low, settings.clip_high, settings.dual_clip,
            )  # fmt: skip
            term = weight * surrogate - settings.entropy_coef * entropies[i][t]
            if settings.kl_place == "loss":
                term += KL_COEF * oracles.kl_token(logprobs[i][t], ref_logprobs[i][t], settings.kl_kind)
            terms.append(share * term)
            imitated += [-logprobs[i][t]] if batch.correct[i] else []
    return math.fsum(terms) + settings.positive_nll_coef * oracles.mean(imitated)


def policy_at(rows: Experience) -> tuple[Tensor, Tensor]:
    """Log-probabilities far enough from the anchor for each bound to cut some tokens, and entropies."""
    logprobs = anchor_of(rows) + 0.7 * normal(rows.batch, 5)
    return logprobs.requires_grad_(), normal(rows.batch, 6).abs().requires_grad_()


def objective_of(
    rows: Experience,
    index: Tensor,
    logprobs: Tensor,
    entropies: Tensor,
    counts: objective.StepCounts,
    settings: LearnerSettings,
) -> tuple[Tensor, Stats]:
    part = rows.rows(index)
    return objective.policy_objective(
        part,
        old_of(part),
        logprobs[index],
        entropies[index],
        counts.token_weights[index],
        counts,
        settings,
        kl_coef=KL_COEF,
    )


@pytest.mark.parametrize(
    ("aggregation", "kl", "dual_clip"),
    list(
        product(
            ("token_mean", "sequence_mean", "constant_length"),
            (("none", "k3"), ("loss", "k1"), ("loss", "k2"), ("loss", "k3")),
            (None, 1.3),
        )
    ),
)
def test_loss_and_gradient_equal_the_formulas(aggregation: str, kl: tuple[str, str], dual_clip: float | None) -> None:
    chosen = {"aggregation": aggregation, "kl_place": kl[0], "kl_kind": kl[1], "kl_coef": 0.05, "dual_clip": dual_clip}
    settings = LearnerSettings(**{**SETTINGS, **chosen})  # type: ignore[arg-type]
    rows = some_rows(some_batch())
    counts = objective.count_step(rows.batch, settings, max_completion_tokens=BUDGET)
    logprobs, entropies = policy_at(rows)
    losses = []
    for index in torch.arange(rows.batch.num_rows).split(3):
        losses.append(objective_of(rows, index, logprobs, entropies, counts, settings)[0])
    torch.stack(losses).sum().backward()
    numbers, spread = logprobs.tolist(), entropies.tolist()
    assert sum(loss.item() for loss in losses) == pytest.approx(loss_by_hand(rows, numbers, spread, settings), rel=1e-6)
    for x, gradient in ((numbers, logprobs.grad), (spread, entropies.grad)):
        assert gradient is not None
        for i, t in product(range(rows.batch.num_rows), range(rows.batch.completion_width)):
            at, step, found = x[i][t], 1e-6, []
            for sign in (1, -1):
                x[i][t] = at + sign * step
                found.append(loss_by_hand(rows, numbers, spread, settings))
            x[i][t] = at
            assert gradient[i, t].item() == pytest.approx((found[0] - found[1]) / (2 * step), abs=1e-6)


def test_statistics_are_means_over_trained_tokens_for_any_aggregation() -> None:
    settings = LearnerSettings(aggregation="sequence_mean", dual_clip=1.3, **SETTINGS)  # type: ignore[arg-type]
    rows = some_rows(some_batch())
    counts = objective.count_step(rows.batch, settings)
    logprobs, entropies = policy_at(rows)
    parts = []
    for index in torch.arange(rows.batch.num_rows).split(3):
        parts.append(objective_of(rows, index, logprobs, entropies, counts, settings)[1])
    stats = {name: stat.item() for name, stat in add_stats(parts).items()}
    mask = rows.batch.loss_mask.tolist()
    gaps = oracles.pick((logprobs - anchor_of(rows)).tolist(), mask)
    pairs = list(zip([math.exp(x) for x in gaps], oracles.pick(rows.advantages.tolist(), mask), strict=True))
    assert stats["approx_kl"] == pytest.approx(oracles.mean([math.exp(x) - 1 - x for x in gaps]))
    assert stats["ratio_max"] == pytest.approx(max(ratio for ratio, _ in pairs))
    expected = {
        "clip_share_high": [r > 1.3 and a > 0 for r, a in pairs],
        "clip_share_low": [r < 0.9 and a < 0 for r, a in pairs],
        "clip_share_dual": [r > 1.3 and a < 0 for r, a in pairs],
    }
    for name, cut in expected.items():
        assert 0 < stats[name] == pytest.approx(sum(cut) / len(cut))


def test_require_unchanged_ignores_steps_that_are_not_trained_on() -> None:
    batch = some_batch()
    old = normal(batch, 0).float()
    elsewhere = torch.where(batch.loss_mask, old, math.nan)
    objective.require_unchanged(elsewhere, old, batch, torch.float32)
    for gap, dtype in ((2e-3, torch.float32), (0.3, torch.bfloat16), (math.nan, torch.float32)):
        changed = elsewhere.clone()
        changed[0, 0] += gap
        with pytest.raises(BrokenInvariant, match=r"expected logprobs = old_logprobs before the first step"):
            objective.require_unchanged(changed, old, batch, dtype)
    objective.require_unchanged(old + 0.2, old, batch, torch.bfloat16)
    nothing = batch.rows(torch.tensor([6]))
    objective.require_unchanged(old[:1] + 9, old[:1], nothing, torch.float32)
