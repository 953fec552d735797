"""Policy and value losses against values worked out by hand."""

import pytest
import torch

from mathppo.errors import BadInput, BadSetting
from mathppo.ppo.losses import add_stats, likelihood_loss, policy_loss, value_loss

NAN = float("nan")


def one(number: float) -> torch.Tensor:
    return torch.tensor([[number]])


def loss_at(ratio: float, advantage: float, dual_clip: float | None = None) -> tuple[float, dict[str, float]]:
    mask = torch.ones(1, 1, dtype=torch.bool)
    loss, stats = policy_loss(one(ratio).log(), one(0.0), one(advantage), mask, dual_clip=dual_clip)
    return loss.item(), {name: stat.item() for name, stat in stats.items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "expected"),
    [
        (1.5, 1.0, None, -1.2),
        (0.5, 1.0, None, -0.5),
        (1.5, -1.0, None, 1.5),
        (0.5, -1.0, None, 0.8),
        (10.0, -1.0, None, 10.0),
        (10.0, -1.0, 3.0, 3.0),
        (10.0, 1.0, 3.0, -1.2),
        (2.0, -1.0, 3.0, 2.0),
    ],
)
def test_clipped_objective_is_the_minimum(ratio: float, advantage: float, dual_clip: float | None, expected: float):
    assert loss_at(ratio, advantage, dual_clip)[0] == pytest.approx(expected, rel=1e-5)


def test_clip_shares_count_the_tokens_whose_gradient_is_cut():
    assert loss_at(1.5, 1.0)[1]["clip_share_high"] == 1.0
    assert loss_at(1.5, -1.0)[1]["clip_share_high"] == 0.0
    assert loss_at(0.5, -1.0)[1]["clip_share_low"] == 1.0
    assert loss_at(0.5, 1.0)[1]["clip_share_low"] == 0.0
    assert loss_at(10.0, -1.0, 3.0)[1]["clip_share_dual"] == 1.0
    assert loss_at(10.0, -1.0)[1]["clip_share_dual"] == 0.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "gradient"),
    [
        (1.1, 1.0, None, -1.1),
        (1.5, 1.0, None, 0.0),
        (0.5, -1.0, None, 0.0),
        (1.5, -1.0, None, 1.5),
        (10.0, -1.0, 3.0, 0.0),
    ],
)
def test_gradient_vanishes_exactly_where_a_bound_cuts(
    ratio: float, advantage: float, dual_clip: float | None, gradient: float
):
    logprobs = one(ratio).log().requires_grad_()
    loss, _ = policy_loss(logprobs, one(0.0), one(advantage), torch.ones(1, 1), dual_clip=dual_clip)
    loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(gradient, rel=1e-5)


def test_asymmetric_bounds():
    loss, stats = policy_loss(
        torch.tensor([[1.26, 1.5, 0.7]]).log(),
        torch.zeros(1, 3),
        torch.tensor([[1.0, 1.0, -1.0]]),
        torch.ones(1, 3),
        clip_low=0.1,
        clip_high=0.28,
    )
    assert loss.item() == pytest.approx((-1.26 - 1.28 + 0.9) / 3, rel=1e-5)
    assert stats["clip_share_high"].item() == pytest.approx(1 / 3)
    assert stats["clip_share_low"].item() == pytest.approx(1 / 3)


def test_unchanged_policy_has_ratio_one_and_the_unclipped_gradient():
    torch.manual_seed(0)
    logprobs = -torch.rand(3, 5)
    logprobs.requires_grad_()
    advantages = torch.randn(3, 5)
    loss, stats = policy_loss(logprobs, logprobs.detach(), advantages, torch.ones(3, 5))
    loss.backward()
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, -advantages / 15)
    expected = {"ratio_mean": 1.0, "ratio_max": 1.0}
    assert {name: stat.item() for name, stat in stats.items()} == {name: expected.get(name, 0.0) for name in stats}


def test_approximate_kl_is_k3_of_the_log_ratio():
    _, stats = policy_loss(one(-1.5), one(-1.0), one(1.0), torch.ones(1, 1))
    assert stats["approx_kl"].item() == pytest.approx(0.10653, abs=1e-5)
    assert stats["log_ratio_abs_max"].item() == pytest.approx(0.5)


def test_importance_weights_scale_the_loss_and_not_the_clip_shares():
    weights = torch.tensor([[2.0, 0.5, NAN]], requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    logprobs = torch.tensor([[1.5, 0.9, NAN]]).log().requires_grad_()
    loss, stats = policy_loss(logprobs, torch.zeros(1, 3), torch.ones(1, 3), mask, weights=weights)
    assert loss.item() == pytest.approx(-(2.0 * 1.2 + 0.5 * 0.9) / 2, rel=1e-6)
    assert stats["clip_share_high"].item() == 0.5
    loss.backward()
    assert weights.grad is None


@pytest.mark.parametrize("stray", [NAN, float("inf"), -float("inf")])
def test_masked_positions_reach_neither_loss_nor_gradient(stray: float):
    mask = torch.tensor([[True, False]])
    logprobs = torch.tensor([[-1.0, stray]], requires_grad=True)
    others = torch.tensor([[-1.0, stray]])
    loss, stats = policy_loss(logprobs, others, others, mask, weights=others)
    value = torch.tensor([[0.5, stray]], requires_grad=True)
    critic_loss, critic_stats = value_loss(value, others, others, mask, clip=0.2)
    (loss + critic_loss).backward()
    assert logprobs.grad is not None
    assert value.grad is not None
    assert loss.item() == pytest.approx(-1.0)
    assert logprobs.grad.tolist() == [[pytest.approx(-1.0), 0.0]]
    assert value.grad[0, 1].item() == 0.0
    assert all(stat.isfinite() for stat in (stats | critic_stats).values())


def test_empty_mask_gives_zero_losses_and_gradients():
    x = torch.tensor([[1.0, NAN]], requires_grad=True)
    empty = torch.zeros(1, 2, dtype=torch.bool)
    loss, stats = policy_loss(x, x.detach(), x.detach(), empty, weights=x.detach(), dual_clip=3.0)
    critic_loss, critic_stats = value_loss(x, x.detach(), x.detach(), empty, clip=0.1)
    total = loss + critic_loss + likelihood_loss(x, empty)
    total.backward()
    assert total.item() == 0.0
    assert x.grad is not None
    assert torch.equal(x.grad, torch.zeros(1, 2))
    assert all(stat.item() == 0.0 for stat in (stats | critic_stats).values())
    nothing = torch.zeros(0, 3)
    assert policy_loss(nothing, nothing, nothing, nothing)[1]["ratio_max"].item() == 0.0


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [200.0, -200.0])
def test_large_ratios_stay_finite(advantage: float, log_ratio: float):
    logprobs = one(log_ratio).requires_grad_()
    loss, stats = policy_loss(logprobs, one(0.0), one(advantage), torch.ones(1, 1))
    loss.backward()
    assert logprobs.grad is not None
    assert loss.isfinite()
    assert logprobs.grad.isfinite().all()
    assert all(stat.isfinite() for stat in stats.values())
    assert stats["log_ratio_abs_max"].item() == 200.0


def test_bfloat16_logprobs_are_subtracted_in_float32():
    logprobs, old = one(-1.0078125).bfloat16(), one(-7.0).bfloat16()
    _, stats = policy_loss(logprobs, old, one(1.0), torch.ones(1, 1))
    assert stats["log_ratio_abs_max"].item() == 5.9921875


def test_nan_logprobs_inside_the_mask_reach_the_loss():
    loss, _ = policy_loss(one(NAN), one(0.0), one(1.0), torch.ones(1, 1))
    assert loss.isnan()


@pytest.mark.parametrize("lengths", [(1, 99), (100, 900), (10, 1000)])
def test_micro_batches_of_unequal_lengths_add_up_exactly(lengths: tuple[int, int]):
    torch.manual_seed(0)
    width = max(lengths)
    mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    old, advantages, returns = -torch.rand(2, width), torch.randn(2, width), torch.randn(2, width)
    whole = {}
    for rows in ([slice(0, 2)], [slice(0, 1), slice(1, 2)]):
        moved = (old + 0.3 * torch.sin(torch.arange(2.0 * width)).reshape(2, width)).requires_grad_()
        parts = []
        for i in rows:
            loss, stats = policy_loss(moved[i], old[i], advantages[i], mask[i], denominator=sum(lengths))
            critic_loss, critic_stats = value_loss(
                moved[i], old[i], returns[i], mask[i], clip=0.1, denominator=sum(lengths)
            )
            (loss + critic_loss).backward()
            parts.append(stats | critic_stats | {"loss": loss.detach()})
        assert moved.grad is not None
        whole[len(rows)] = (moved.grad, add_stats(parts))
    torch.testing.assert_close(whole[1][0], whole[2][0], atol=1e-6, rtol=0)
    torch.testing.assert_close(whole[1][1], whole[2][1], atol=1e-5, rtol=1e-5)
    assert 0 < whole[1][1]["clip_share_high"].item() < 1


def test_token_weight_is_independent_of_the_micro_batch():
    for length in (10, 1000):
        logprobs = torch.zeros(1, length, requires_grad=True)
        loss, _ = policy_loss(
            logprobs, torch.zeros(1, length), torch.ones(1, length), torch.ones(1, length), denominator=1010
        )
        loss.backward()
        assert logprobs.grad is not None
        torch.testing.assert_close(logprobs.grad, torch.full((1, length), -1 / 1010))


def test_masked_completion_is_not_in_the_denominator():
    logprobs, advantages = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]), torch.tensor([[1.0, 2.0], [5.0, 5.0]])
    mask = torch.tensor([[True, True], [False, False]])
    both, _ = policy_loss(logprobs, logprobs, advantages, mask)
    alone, _ = policy_loss(logprobs[:1], logprobs[:1], advantages[:1], mask[:1])
    assert both.item() == alone.item() == -1.5


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "expected", "gradient"),
    [
        (0.9, 0.0, 1.0, None, 0.005, -0.1),
        (0.9, 0.0, 1.0, 0.2, 0.32, 0.0),
        (0.1, 0.0, 1.0, 0.2, 0.405, -0.9),
        (-0.9, 0.0, 1.0, 0.2, 1.805, -1.9),
        (1.5, 0.0, 1.0, 0.2, 0.32, 0.0),
    ],
)
def test_value_loss_takes_the_larger_error(
    value: float, old: float, target: float, clip: float | None, expected: float, gradient: float
):
    values = one(value).requires_grad_()
    loss, stats = value_loss(values, one(old), one(target), torch.ones(1, 1), clip=clip)
    loss.backward()
    assert values.grad is not None
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert values.grad.item() == pytest.approx(gradient, rel=1e-5)
    assert stats["value_clip_share"].item() == float(gradient == 0.0)
    assert stats["residual_mean"].item() == pytest.approx(target - value)


def test_num_tokens_normalizes_statistics_separately_from_the_loss():
    x = torch.tensor([[1.5, 1.0]]).log()
    loss, stats = policy_loss(x, torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2), denominator=1, num_tokens=2)
    assert loss.item() == pytest.approx(-2.2)
    assert stats["clip_share_high"].item() == 0.5
    _, critic_stats = value_loss(x, x, x, torch.ones(1, 2), denominator=1, num_tokens=2)
    assert critic_stats["value_mean"].item() == pytest.approx(x.mean().item())


def test_descending_the_loss_raises_the_rewarded_token():
    logits = torch.zeros(1, 3, requires_grad=True)
    logprobs = logits.log_softmax(-1)[:, :1]
    loss, _ = policy_loss(logprobs, logprobs.detach(), torch.ones(1, 1), torch.ones(1, 1))
    loss.backward()
    assert logits.grad is not None
    assert (logits - logits.grad).softmax(-1)[0, 0].item() > 1 / 3


def test_likelihood_loss_is_negative_mean_logprob():
    assert likelihood_loss(torch.tensor([[-1.0, -3.0, NAN]]), torch.tensor([[1, 1, 0]])).item() == 2.0


def test_errors_name_the_argument():
    x = torch.zeros(1, 2)
    with pytest.raises(BadInput, match=r"policy_loss: expected weights of shape \[1, 2\] like logprobs, got \[1, 1\]"):
        policy_loss(x, x, x, x, weights=x[:, :1])
    with pytest.raises(BadInput, match=r"value_loss: expected returns of shape \[1, 2\]"):
        value_loss(x, x, x[:, :1], x)
    with pytest.raises(BadInput, match=r"likelihood_loss: expected loss_mask"):
        likelihood_loss(x, x[:, :1])
    with pytest.raises(BadSetting, match=r"expected clip_low in \[0, 1\], got 1.5"):
        policy_loss(x, x, x, x, clip_low=1.5)
    with pytest.raises(BadSetting, match=r"expected clip_high in \[0, inf\], got -0.1"):
        policy_loss(x, x, x, x, clip_high=-0.1)
    with pytest.raises(BadSetting, match=r"expected dual_clip above 1 or None, got 1\.0"):
        policy_loss(x, x, x, x, dual_clip=1.0)
    with pytest.raises(BadSetting, match=r"expected clip in \[0, inf\], got -1"):
        value_loss(x, x, x, x, clip=-1)
    with pytest.raises(BadInput, match="expected at least one part, all with the same keys"):
        add_stats([{"a": x.sum()}, {"b": x.sum()}])
