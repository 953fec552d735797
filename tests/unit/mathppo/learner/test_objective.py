"""The policy's whole loss against a loop over tokens from the formulas: numbers, gradients, statistics."""

import math
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
from mathppo.learner.experience import Experience, PolicyView
from mathppo.ppo.losses import add_stats

BUDGET, KL_COEF = 12, 0.3
"""Token budget, and a coefficient of the moment that is not that of the settings."""

SETTINGS = {"clip_low": 0.1, "clip_high": 0.3, "entropy_coef": 0.2, "positive_nll_coef": 0.4}


def some_batch() -> Batch:
    """Right and wrong rollouts of many lengths; one without a reward, and a right one that was cut and is masked."""
    scored = [
        *tiny_rollouts(6, seed=2),
        scored_rollout(reward=None, problem_id="broken", completion_ids=[4, 5, 6]),
        scored_rollout(reward=1.0, problem_id="cut", completion_ids=[4, 5, 6], truncated=True),
    ]
    return collate(scored, pad_id=0, drop_truncated=True)


def normal(batch: Batch, seed: int) -> Tensor:
    return torch.randn(batch.loss_mask.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def some_rows(batch: Batch) -> Experience:
    zeros, advantages = torch.zeros_like(normal(batch, 0)), normal(batch, 1)
    anchor = -normal(batch, 2).abs()
    return Experience(
        batch=batch,
        step=0,
        old=PolicyView(anchor - 0.05, zeros, anchor, normal(batch, 3).abs()),
        values=zeros,
        bootstrap_values=zeros[:, 0],
        ref_logprobs=anchor + 0.3 * normal(batch, 4),
        raw_advantages=advantages,
        advantages=advantages,
        returns=zeros,
    )


def loss_by_hand(
    rows: Experience, logprobs: list[list[float]], entropies: list[list[float]], settings: LearnerSettings
) -> float:
    assert rows.old is not None
    assert rows.ref_logprobs is not None
    batch, anchor, weights = rows.batch, rows.old.anchor.tolist(), rows.old.weights.tolist()
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
        for t in steps:
            surrogate = oracles.policy_loss_token(
                logprobs[i][t], anchor[i][t], advantages[i][t],
                settings.clip_low, settings.clip_high, settings.dual_clip,
            )  # fmt: skip
            term = weights[i][t] * surrogate - settings.entropy_coef * entropies[i][t]
            if settings.kl_place == "loss":
                term += KL_COEF * oracles.kl_token(logprobs[i][t], ref_logprobs[i][t], settings.kl_kind)
            terms.append(share * term)
            imitated += [-logprobs[i][t]] if batch.correct[i] else []
    return math.fsum(terms) + settings.positive_nll_coef * oracles.mean(imitated)


def policy_at(rows: Experience) -> tuple[Tensor, Tensor]:
    """Log-probabilities far enough from the anchor that every clip cuts somewhere, and entropies."""
    assert rows.old is not None
    logprobs = rows.old.anchor + 0.7 * normal(rows.batch, 5)
    return logprobs.requires_grad_(), normal(rows.batch, 6).abs().requires_grad_()


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
def test_the_loss_and_its_gradient_are_those_of_the_formulas(
    aggregation: str, kl: tuple[str, str], dual_clip: float | None
) -> None:
    chosen = {"aggregation": aggregation, "kl_place": kl[0], "kl_kind": kl[1], "kl_coef": 0.05, "dual_clip": dual_clip}
    settings = LearnerSettings(**{**SETTINGS, **chosen})  # type: ignore[arg-type]
    rows = some_rows(some_batch())
    counts = objective.count(rows.batch, settings, max_completion_tokens=BUDGET)
    logprobs, entropies = policy_at(rows)
    losses = []
    for index in torch.arange(rows.batch.num_rows).split(3):
        part = rows.rows(index)
        assert part.old is not None
        loss, _ = objective.policy_objective(
            part, part.old, logprobs[index], entropies[index], counts, settings, kl_coef=KL_COEF
        )
        losses.append(loss)
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


def test_statistics_are_means_over_trained_tokens_whatever_the_loss_is_a_mean_over() -> None:
    settings = LearnerSettings(aggregation="sequence_mean", dual_clip=1.3, **SETTINGS)  # type: ignore[arg-type]
    rows = some_rows(some_batch())
    assert rows.old is not None
    counts = objective.count(rows.batch, settings)
    logprobs, entropies = policy_at(rows)
    parts = []
    for index in torch.arange(rows.batch.num_rows).split(3):
        part = rows.rows(index)
        assert part.old is not None
        parts.append(
            objective.policy_objective(
                part, part.old, logprobs[index], entropies[index], counts, settings, kl_coef=KL_COEF
            )[1]
        )
    stats = {name: stat.item() for name, stat in add_stats(parts).items()}
    mask = rows.batch.loss_mask.tolist()
    gaps = oracles.pick((logprobs - rows.old.anchor).tolist(), mask)
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


def test_an_unchanged_policy_passes_whatever_stands_on_steps_that_are_not_trained_on() -> None:
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
