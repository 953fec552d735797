"""`mathppo.ppo` compared with the loops in `oracles.py`, on random batches with NaN and infinity under the mask."""

import math

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mathppo.ppo import gae, kl, logprobs, losses, masked
from mathppo.ppo.advantages import rloo_advantages
from mathppo.ppo.explained_variance import explained_variance

STRAY = (float("nan"), float("inf"), float("-inf"), 1e30)

unit = st.floats(0.0, 1.0)
coefficients = st.one_of(st.sampled_from([0.0, 0.5, 0.95, 1.0]), unit)


class Drawn:
    """Random tensors with NaN, infinity or huge numbers at masked positions."""

    def __init__(self, seed: int, rows: int, width: int, density: float, contiguous: bool) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.rows, self.width = rows, width
        if contiguous:
            ends = torch.randint(width + 1, (2, rows, 1), generator=self.generator).sort(0).values
            step = torch.arange(width)
            self.mask = (step >= ends[0]) & (step < ends[1])
        else:
            self.mask = torch.rand(rows, width, generator=self.generator) < density

    def numbers(self, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        x = shift + scale * torch.randn(self.rows, self.width, generator=self.generator, dtype=torch.float64)
        stray = torch.tensor(STRAY, dtype=torch.float64)[torch.randint(4, x.shape, generator=self.generator)]
        return torch.where(self.mask, x, stray)

    def per_row(self) -> Tensor:
        return torch.randn(self.rows, generator=self.generator, dtype=torch.float64)


@st.composite
def batches(draw: st.DrawFn, max_width: int = 70) -> Drawn:
    return Drawn(
        draw(st.integers(0, 2**32 - 1)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, max_width)),
        draw(unit),
        draw(st.booleans()),
    )


def close(got: Tensor, expected: object, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance)


@given(batches(), coefficients, st.lists(coefficients, min_size=4, max_size=4), st.booleans())
def test_gae_is_the_discounted_sum_of_residuals(batch: Drawn, gamma: float, lams: list[float], per_row: bool):
    rewards, values, bootstrap = batch.numbers(), batch.numbers(), batch.per_row()
    row_lams = lams[: batch.rows] if per_row else [lams[0]] * batch.rows
    lam = torch.tensor(row_lams, dtype=torch.float64) if per_row else lams[0]
    got = gae.gae(rewards, values, batch.mask, bootstrap, gamma=gamma, lam=lam)
    rows = zip(rewards.tolist(), values.tolist(), batch.mask.tolist(), bootstrap.tolist(), row_lams, strict=True)
    close(got, [oracles.gae_row(r, v, m, b, gamma, row_lam) for r, v, m, b, row_lam in rows])


@given(batches(), coefficients)
def test_lambda_1_is_monte_carlo_minus_value_and_lambda_0_is_the_residual(batch: Drawn, gamma: float):
    rewards, values = batch.numbers(), batch.numbers()
    monte_carlo = gae.gae(rewards, values, batch.mask, torch.zeros(batch.rows), gamma=gamma, lam=1.0)
    rows = list(zip(rewards.tolist(), values.tolist(), batch.mask.tolist(), strict=True))
    returns = torch.tensor([oracles.discounted_returns_row(r, m, gamma) for r, _, m in rows], dtype=torch.float64)
    torch.testing.assert_close(monte_carlo[batch.mask], (returns - values)[batch.mask], rtol=1e-10, atol=1e-10)
    residuals = gae.gae(rewards, values, batch.mask, torch.zeros(batch.rows), gamma=gamma, lam=0.0)
    for got, (r, v, m) in zip(residuals.tolist(), rows, strict=True):
        steps = oracles.steps_of(m)
        for t, after in zip(steps, [*steps, None][1:], strict=True):
            assert math.isclose(got[t], r[t] + (gamma * v[after] if after is not None else 0.0) - v[t], abs_tol=1e-10)


@given(st.integers(0, 2**32 - 1), st.integers(1000, 3000), st.sampled_from([0.9, 0.99, 0.999, 1.0]), coefficients)
def test_long_completions_in_float32(seed: int, width: int, gamma: float, lam: float):
    batch = Drawn(seed, 1, width, 0.9, contiguous=seed % 2 == 0)
    rewards, values, bootstrap = batch.numbers(0.1).float(), batch.numbers().float(), batch.per_row().float()
    got = gae.gae(rewards, values, batch.mask, bootstrap, gamma=gamma, lam=lam)
    expected = oracles.gae_row_recursive(
        rewards[0].tolist(), values[0].tolist(), batch.mask[0].tolist(), bootstrap.item(), gamma, lam
    )
    scale = max(1.0, *(abs(a) for a in expected))
    torch.testing.assert_close(got[0].double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-5 * scale)


@given(batches(), coefficients, coefficients, st.integers(0, 40), st.integers(0, 40))
def test_padding_and_row_order_change_nothing(batch: Drawn, gamma: float, lam: float, left: int, right: int):
    rewards, values, bootstrap = batch.numbers(), batch.numbers(), batch.per_row()
    order = torch.randperm(batch.rows, generator=batch.generator)

    def moved(x: Tensor, filler: float) -> Tensor:
        return torch.nn.functional.pad(x[order], (left, right), value=filler)

    plain = gae.gae(rewards, values, batch.mask, bootstrap, gamma=gamma, lam=lam)
    nan = float("nan")
    padded = gae.gae(
        moved(rewards, nan), moved(values, nan), moved(batch.mask, False), bootstrap[order], gamma=gamma, lam=lam
    )
    torch.testing.assert_close(padded, moved(plain, 0.0), rtol=1e-12, atol=1e-12)


@given(batches(), unit)
def test_token_rewards_equal_the_loop(batch: Drawn, kl_coef: float):
    outcome, token_kl = batch.per_row(), batch.numbers()
    got = gae.token_rewards(outcome, batch.mask, token_kl, kl_coef=kl_coef)
    rows = zip(outcome.tolist(), batch.mask.tolist(), token_kl.tolist(), strict=True)
    close(got, [oracles.token_rewards_row(o, m, k, kl_coef) for o, m, k in rows])


@given(batches(), st.lists(st.integers(0, 2), min_size=4, max_size=4), st.booleans(), st.floats(-5, 5))
def test_whitening_is_per_pool(batch: Drawn, labels: list[int], shift_mean: bool, shift: float):
    x, pools = batch.numbers(2.0, shift), labels[: batch.rows]
    got = masked.whiten(x, batch.mask, shift_mean=shift_mean, group=torch.tensor(pools))
    close(got, oracles.whiten(x.tolist(), batch.mask.tolist(), pools, shift_mean), 1e-8)
    numbers = masked.whiten(x, batch.mask)[batch.mask].tolist()
    if len(numbers) > 1:
        assert abs(oracles.mean(numbers)) < 1e-8
        spread = oracles.variance(oracles.pick(x.tolist(), batch.mask.tolist()))
        assert math.isclose(oracles.variance(numbers), spread / (spread + 1e-8), rel_tol=1e-8)


@given(batches())
def test_masked_mean_is_the_mean_of_unmasked_numbers(batch: Drawn):
    x = batch.numbers()
    close(masked.masked_mean(x, batch.mask), oracles.mean(oracles.pick(x.tolist(), batch.mask.tolist())))


@given(batches(), st.floats(0, 1), st.floats(0, 2), st.one_of(st.none(), st.floats(1.01, 5)), st.floats(0.01, 3))
def test_policy_loss_equals_the_loop_by_cases(
    batch: Drawn, clip_low: float, clip_high: float, dual_clip: float | None, spread: float
):
    new, old, advantages = batch.numbers(spread), batch.numbers(spread), batch.numbers()
    got, _ = losses.policy_loss(
        new, old, advantages, batch.mask, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    picked = zip(*(oracles.pick(x.tolist(), batch.mask.tolist()) for x in (new, old, advantages)), strict=True)
    tokens = [oracles.policy_loss_token(n, o, a, clip_low, clip_high, dual_clip) for n, o, a in picked]
    close(got, oracles.mean(tokens), 1e-8)


@given(batches(), st.one_of(st.none(), st.floats(0, 2)))
def test_value_loss_equals_the_loop_by_cases(batch: Drawn, clip: float | None):
    values, old, returns = batch.numbers(), batch.numbers(), batch.numbers()
    got, _ = losses.value_loss(values, old, returns, batch.mask, clip=clip)
    picked = zip(*(oracles.pick(x.tolist(), batch.mask.tolist()) for x in (values, old, returns)), strict=True)
    close(got, oracles.mean([oracles.value_loss_token(v, o, r, clip) for v, o, r in picked]))


@given(batches(), st.integers(1, 3))
def test_micro_batches_and_padding_change_no_gradient_or_statistic(batch: Drawn, split: int):
    old, advantages, weights = batch.numbers(), batch.numbers(), batch.numbers().abs()
    start = old + torch.where(batch.mask, 0.5 * batch.numbers(), 0.0)
    count = batch.mask.sum().clamp(min=1)

    def update(size: int, pad: int) -> tuple[Tensor, losses.Stats]:
        new = start.clone().requires_grad_()
        stats = []
        for rows in torch.arange(batch.rows).split(size):
            part = (torch.nn.functional.pad(x[rows], (0, pad)) for x in (new, old, advantages, batch.mask, weights))
            new_part, old_part, advantage_part, mask_part, weight_part = part
            loss, found = losses.policy_loss(
                new_part, old_part, advantage_part, mask_part, dual_clip=2.0, weights=weight_part, denominator=count
            )
            loss.backward()
            stats.append(found | {"loss": loss.detach()})
        assert new.grad is not None
        return new.grad, losses.add_stats(stats)

    whole, parts = update(batch.rows, 0), update(split, 3)
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-12)
    assert (whole[0][~batch.mask] == 0).all()


@given(batches(20), st.sampled_from(["k1", "k2", "k3"]))
def test_kl_estimates_equal_the_formulas(batch: Drawn, kind: str):
    batch.mask[:] = True
    new, ref = batch.numbers(3.0), batch.numbers(3.0)
    rows = zip(new.tolist(), ref.tolist(), strict=True)
    close(
        kl.kl_estimate(new, ref, kind),
        [[oracles.kl_token(n, r, kind) for n, r in zip(a, b, strict=True)] for a, b in rows],
    )


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=8), st.integers(0, 7), st.sampled_from([0.3, 0.7, 1.0, 2.0]))
def test_logprobs_and_entropy_equal_the_formulas(logits: list[float], index: int, temperature: float):
    index %= len(logits)
    x = torch.tensor(logits, dtype=torch.float64)
    got = logprobs.token_logprobs(x, torch.tensor(index), temperature=temperature)
    close(got, oracles.logprob(logits, index, temperature))
    close(logprobs.entropy(x, temperature=temperature), oracles.entropy(logits, temperature))
    states, head = torch.ones(1, 1, dtype=torch.float64), x[:, None]
    chunked = logprobs.chunked_token_logprobs(states, head, torch.tensor([index]), temperature=temperature)
    close(chunked[0][0], oracles.logprob(logits, index, temperature))
    close(chunked[1][0], oracles.entropy(logits, temperature))


@given(st.lists(st.tuples(st.floats(-3, 3), st.integers(0, 2)), min_size=1, max_size=9))
def test_rloo_equals_the_loop(rollouts: list[tuple[float, int]]):
    rewards, pools = [r for r, _ in rollouts], [g for _, g in rollouts]
    got = rloo_advantages(torch.tensor(rewards, dtype=torch.float64), torch.tensor(pools))
    close(got, oracles.leave_one_out(rewards, pools))


@given(batches())
def test_explained_variance_equals_the_formula(batch: Drawn):
    values, targets = batch.numbers(), batch.numbers()
    picked = [oracles.pick(x.tolist(), batch.mask.tolist()) for x in (values, targets)]
    got = explained_variance(values, targets, batch.mask)
    assert got.item() == pytest.approx(oracles.explained_variance(*picked) if len(picked[0]) > 1 else 0.0, rel=1e-6)
