"""Rewards, advantages and return targets of whole batches, compared with the definitions row by row."""

import math
from itertools import product

import oracles
import pytest
import torch
from tiny_runs import scored_rollout
from torch import Tensor

from mathppo.batch import Batch, collate
from mathppo.config import LearnerSettings
from mathppo.learner.experience import Experience, OldPolicy, build_experience
from mathppo.learner.objective import importance_weights

COEF = 0.3
"""A current coefficient that differs from the one in the settings."""

GAMMA = 0.9


def some_batch() -> Batch:
    """Two problems with four samples each, some truncated; one sample of each without a reward."""
    lengths = [3, 5, 1, 4, 2, 6, 3, 2]
    return collate(
        [
            scored_rollout(
                problem_id=f"p{i // 4}",
                sample_index=i % 4,
                completion_ids=[5] * length,
                reward=None if i % 4 == 2 else 0.25 * ((7 * i) % 5),
                truncated=i in (1, 4, 5),
            )
            for i, length in enumerate(lengths)
        ],
        pad_id=0,
    )


def normal(batch: Batch, seed: int) -> Tensor:
    return torch.randn(batch.loss_mask.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def built(batch: Batch, settings: LearnerSettings) -> Experience:
    logprobs, zeros = -normal(batch, 1).abs(), torch.zeros_like(normal(batch, 1))
    return build_experience(
        batch,
        step=0,
        old=OldPolicy(logprobs, zeros),
        values=normal(batch, 2),
        final_values=normal(batch, 3)[:, 0],
        ref_logprobs=None if settings.kl_place == "none" else logprobs + 0.4 * normal(batch, 4),
        kl_coef=COEF,
        settings=settings,
    )


def rewards_by_hand(experience: Experience, settings: LearnerSettings) -> list[list[float]]:
    batch, found = experience.batch, []
    for i, mask in enumerate(batch.completion_mask.tolist()):
        kl = [0.0] * len(mask)
        if settings.kl_place == "reward":
            assert isinstance(experience.old, OldPolicy)
            assert experience.ref_logprobs is not None
            pairs = zip(experience.old.logprobs[i].tolist(), experience.ref_logprobs[i].tolist(), strict=True)
            kl = [oracles.kl_token(own, ref, settings.kl_kind) for own, ref in pairs]
        found.append(oracles.token_rewards_row(batch.outcome[i].item(), mask, kl, COEF))
    return found


def assert_rows(found: Tensor, expected: list[list[float]], mask: Tensor) -> None:
    assert oracles.pick(found.tolist(), mask.tolist()) == pytest.approx(
        oracles.pick(expected, mask.tolist()), abs=1e-6, rel=1e-6
    )


@pytest.mark.parametrize(
    ("truncation", "kl", "lam_alpha", "critic_lam", "whiten"),
    list(
        product(
            ("terminal", "bootstrap"),
            (("none", "k3"), ("reward", "k1"), ("reward", "k2")),
            (None, 0.4),
            (0.8, 0.5),
            (True, False),
        )
    ),
)
def test_advantages_and_targets_of_a_critic(
    truncation: str, kl: tuple[str, str], lam_alpha: float | None, critic_lam: float, whiten: bool
) -> None:
    settings = LearnerSettings(
        truncation=truncation, kl_place=kl[0], kl_kind=kl[1], kl_coef=0.05, gamma=GAMMA, lam=0.8,  # type: ignore[arg-type]
        lam_alpha=lam_alpha, critic_lam=critic_lam, whiten=whiten,
    )  # fmt: skip
    batch = some_batch()
    experience = built(batch, settings)
    rewards, values = rewards_by_hand(experience, settings), experience.values.tolist()
    raw, returns = [], []
    for i, mask in enumerate(batch.completion_mask.tolist()):
        is_bootstrapped = bool(batch.truncated[i]) and truncation == "bootstrap"
        after = normal(batch, 3)[i, 0].item() if is_bootstrapped else 0.0
        lam = 0.8 if lam_alpha is None else max(0.0, 1 - 1 / (lam_alpha * sum(mask)))
        raw.append(oracles.gae_row(rewards[i], values[i], mask, after, GAMMA, lam))
        of_critic = oracles.gae_row(rewards[i], values[i], mask, after, GAMMA, critic_lam)
        returns.append([a + v for a, v in zip(of_critic, values[i], strict=True)])
    assert_rows(experience.raw_advantages, raw, batch.completion_mask)
    assert_rows(experience.returns, returns, batch.completion_mask)
    used = oracles.whiten(raw, batch.loss_mask.tolist(), [0] * 8, True) if whiten else raw
    assert_rows(experience.advantages, used, batch.loss_mask)


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "reinforce++"])
@pytest.mark.parametrize("kl", [("none", "k3"), ("reward", "k1")])
def test_advantages_and_returns_without_a_critic(algorithm: str, kl: tuple[str, str]) -> None:
    settings = LearnerSettings(algorithm=algorithm, kl_place=kl[0], kl_kind=kl[1], kl_coef=0.05, gamma=GAMMA)  # type: ignore[arg-type]
    batch = some_batch()
    experience = built(batch, settings)
    rewards = rewards_by_hand(experience, settings)
    returns = [
        oracles.discounted_returns_row(row, mask, GAMMA)
        for row, mask in zip(rewards, batch.completion_mask.tolist(), strict=True)
    ]
    assert_rows(experience.returns, returns, batch.completion_mask)
    width, graded = batch.completion_width, [i for i in range(8) if i % 4 != 2]
    if algorithm == "reinforce++":
        expected = oracles.whiten(returns, batch.loss_mask.tolist(), [0] * 8, True)
    else:
        totals = [math.fsum(rewards[i]) for i in graded]
        pools = [i // 4 for i in graded]
        if algorithm == "rloo":
            scores = oracles.leave_one_out(totals, pools)
        else:
            rows = oracles.whiten([[x] for x in totals], [[True]] * len(totals), pools, True)
            scores = [row[0] for row in rows]
        by_row = dict(zip(graded, scores, strict=True))
        expected = [[by_row.get(i, 0.0)] * width for i in range(8)]
    assert_rows(experience.advantages, expected, batch.loss_mask)
    assert torch.equal(experience.advantages, experience.raw_advantages)


@pytest.mark.parametrize("importance", ["token", "sequence", "off"])
@pytest.mark.parametrize("stale_anchor", ["behaviour", "old"])
def test_anchor_and_importance_weights_by_row(importance: str, stale_anchor: str) -> None:
    settings = LearnerSettings(importance=importance, stale_anchor=stale_anchor, importance_cap=1.4)  # type: ignore[arg-type]
    steps = [0, 1, 2, 2]
    scored = [scored_rollout(completion_ids=[5] * (i + 1), policy_step=step) for i, step in enumerate(steps)]
    batch = collate(scored, pad_id=0)
    own = batch.behaviour_logprobs + 0.5 * normal(batch, 1).float()
    found_anchor, found_weights = importance_weights(own, batch, settings, step=2)
    for i, step in enumerate(steps):
        length = i + 1
        old, behaviour = own[i, :length].tolist(), batch.behaviour_logprobs[i, :length].tolist()
        gaps = [o - b for o, b in zip(old, behaviour, strict=True)]
        weights = {"token": gaps, "sequence": [math.fsum(gaps)] * length, "off": [0.0] * length}[importance]
        expected, anchor = [min(math.exp(x), 1.4) if importance != "off" else 1.0 for x in weights], old
        if step < 2 and stale_anchor == "behaviour":
            expected, anchor = [1.0] * length, behaviour
        assert found_weights[i, :length].tolist() == pytest.approx(expected, rel=1e-5)
        assert found_anchor[i, :length].tolist() == pytest.approx(anchor)
