"""GAE and reward placement against values worked out by hand."""

import pytest
import torch

from mathppo.errors import BadInput, BadSetting
from mathppo.ppo.gae import gae, token_rewards
from mathppo.ppo.gae_lambda import length_adaptive_lambda
from mathppo.ppo.losses import policy_loss
from mathppo.ppo.scan import discounted_suffix_sums

NAN = float("nan")


def row(*numbers: float) -> torch.Tensor:
    return torch.tensor([numbers], dtype=torch.float32)


def mask_row(bits: str) -> torch.Tensor:
    return torch.tensor([[bit == "1" for bit in bits]])


def test_worked_example_from_residuals_to_objective():
    rewards, values, mask = row(0, 0, 0, 1), row(0.20, 0.35, 0.55, 0.80), mask_row("1111")
    residuals = gae(rewards, values, mask, torch.zeros(1), gamma=0.9, lam=0.0)
    advantages = gae(rewards, values, mask, torch.zeros(1), gamma=0.9, lam=0.8)
    torch.testing.assert_close(residuals, row(0.115, 0.145, 0.170, 0.200))
    torch.testing.assert_close(advantages, row(0.382, 0.371, 0.314, 0.200), atol=5e-4, rtol=0)
    torch.testing.assert_close(advantages + values, row(0.582, 0.721, 0.864, 1.000), atol=5e-4, rtol=0)
    loss, stats = policy_loss(row(0.26).log(), row(0.20).log(), row(1.0), mask_row("1"), clip_low=0.2, clip_high=0.2)
    assert stats["ratio_max"].item() == pytest.approx(1.30, abs=1e-6)
    assert -loss.item() == pytest.approx(1.20, abs=1e-6)


@pytest.mark.parametrize("lam", [0.95, torch.tensor([0.95])])
def test_reward_and_episode_end_are_at_the_last_sampled_token(lam: float | torch.Tensor):
    mask = mask_row("1110")
    rewards = token_rewards(torch.tensor([1.0]), mask)
    torch.testing.assert_close(rewards, row(0, 0, 1, 0))
    advantages = gae(rewards, row(0.2, 0.3, 0.4, 0.7), mask, torch.zeros(1), lam=lam)
    torch.testing.assert_close(advantages, row(0.7365, 0.67, 0.60, 0.0))


@pytest.mark.parametrize(
    ("bootstrap", "lam", "expected"),
    [
        (0.6, 0.95, [0.3755, 0.29, 0.20]),
        (0.0, 0.95, [-0.166, -0.28, -0.40]),
        (0.6, 1.0, [0.4, 0.3, 0.2]),
    ],
)
def test_truncated_completion_is_worth_its_bootstrap_value(bootstrap: float, lam: float, expected: list[float]):
    advantages = gae(row(0, 0, 0), row(0.2, 0.3, 0.4), mask_row("111"), torch.tensor([bootstrap]), lam=lam)
    torch.testing.assert_close(advantages, row(*expected))


def test_masked_text_is_not_an_episode_step():
    rewards, values = row(0, 0, NAN, NAN, NAN, 0, 1), row(0.5, 0.5, NAN, -99, NAN, 0.5, 0.5)
    advantages = gae(rewards, values, mask_row("1100011"), torch.zeros(1), lam=0.95)
    torch.testing.assert_close(advantages, row(0.4287, 0.4512, 0, 0, 0, 0.475, 0.5), atol=5e-5, rtol=0)


@pytest.mark.parametrize("lam", [1.0, 0.95])
def test_numbers_after_the_stop_token_change_nothing(lam: float):
    mask, rewards = mask_row("11100"), row(0, 0, 1, 0, 0)
    clean = gae(rewards, row(0.2, 0.3, 0.4, 0, 0), mask, torch.zeros(1), lam=lam)
    for stray in (99.0, NAN, float("inf")):
        assert torch.equal(gae(rewards, row(0.2, 0.3, 0.4, stray, stray), mask, torch.zeros(1), lam=lam), clean)


def test_last_reward_reaches_the_last_step_undiscounted():
    mask, values = mask_row("1111"), row(0.1, 0.2, 0.3, 0.4)
    without = gae(row(0, 0, 0, 0), values, mask, torch.zeros(1), gamma=0.5, lam=0.5)
    change = gae(row(0, 0, 0, 8), values, mask, torch.zeros(1), gamma=0.5, lam=0.5) - without
    torch.testing.assert_close(change, row(8 / 64, 8 / 16, 8 / 4, 8))


@pytest.mark.parametrize("pads", ["{}000", "000{}", "00{}00", "0" * 40 + "{}" + "0" * 23])
@pytest.mark.parametrize("lam", [1.0, 0.95, 0.0])
def test_padding_on_any_side_changes_nothing(pads: str, lam: float):
    torch.manual_seed(0)
    width = 37
    inner = torch.randn(2, width, dtype=torch.float64)
    mask = mask_row(pads.format("1" * width))
    padded = torch.full((2, mask.shape[1]), NAN, dtype=torch.float64)
    padded[mask.expand(2, -1)] = inner.flatten()
    bootstrap = torch.tensor([0.3], dtype=torch.float64)
    plain = gae(inner[:1], inner[1:], mask_row("1" * width), bootstrap, gamma=0.99 if lam < 1 else 1.0, lam=lam)
    result = gae(padded[:1], padded[1:], mask, bootstrap, gamma=0.99 if lam < 1 else 1.0, lam=lam)
    torch.testing.assert_close(result[mask], plain[0], atol=1e-14, rtol=0)
    assert (result[~mask] == 0).all()


def test_row_without_steps_gives_zeros_even_with_a_nan_bootstrap():
    mask = torch.tensor([[False, False, False], [True, True, False]])
    values = torch.tensor([[NAN, NAN, NAN], [0.5, 0.5, NAN]])
    rewards = torch.tensor([[NAN, NAN, NAN], [0.0, 1.0, NAN]])
    for lam in (1.0, 0.5):
        advantages = gae(rewards, values, mask, torch.tensor([NAN, 0.0]), lam=lam)
        torch.testing.assert_close(advantages, torch.tensor([[0.0, 0, 0], [0.5 * lam, 0.5, 0]]))
        assert gae(rewards[:, :0], values[:, :0], mask[:, :0], torch.zeros(2), lam=lam).shape == (2, 0)


def test_each_row_may_have_its_own_lambda():
    torch.manual_seed(0)
    rewards, values = torch.randn(3, 50), torch.randn(3, 50)
    mask = torch.ones(3, 50, dtype=torch.bool)
    mask[1, 20:30] = False
    bootstrap, lams = torch.randn(3), [0.0, 0.7, 1.0]
    together = gae(rewards, values, mask, bootstrap, lam=torch.tensor(lams))
    for i, lam in enumerate(lams):
        one = slice(i, i + 1)
        alone = gae(rewards[one], values[one], mask[one], bootstrap[one], lam=lam)
        torch.testing.assert_close(together[one], alone, atol=1e-5, rtol=0)


def test_integer_masks_are_accepted_and_bfloat16_is_computed_in_float32():
    rewards, values = row(0, 0, 1).bfloat16(), row(0.25, 0.5, 0.75).bfloat16()
    advantages = gae(rewards, values, torch.tensor([[1, 1, 1]]), torch.zeros(1), lam=0.95)
    assert advantages.dtype == torch.float32
    torch.testing.assert_close(advantages, row(0.713125, 0.4875, 0.25))


def test_advantages_carry_no_gradient():
    values = row(0.2, 0.3).requires_grad_()
    assert not gae(row(0, 1), values, mask_row("11"), torch.zeros(1), lam=0.9).requires_grad


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.9999), (0.99999, 1.0), (1.0, 0.95)])
def test_float32_holds_over_64k_tokens(gamma: float, lam: float):
    torch.manual_seed(0)
    width = 65_536
    rewards, values = 0.01 * torch.randn(2, width), torch.rand(2, width)
    rewards[:, -1] += 1.0
    mask, bootstrap = torch.ones(2, width, dtype=torch.bool), torch.tensor([0.0, 0.7])
    exact = gae(rewards.double(), values.double(), mask, bootstrap.double(), gamma=gamma, lam=lam)
    error = (gae(rewards, values, mask, bootstrap, gamma=gamma, lam=lam).double() - exact).abs().max().item()
    assert error < 2e-5 * exact.abs().max().item()


def test_discounted_suffix_sums_at_block_boundaries():
    for width in (1, 15, 16, 17, 255, 256, 257, 4097):
        ones = torch.ones(1, width, dtype=torch.float64)
        remaining = torch.arange(width, 0, -1, dtype=torch.float64)[None]
        for decay in (0.0, 0.5, 1.0):
            expected = remaining if decay == 1.0 else (1 - decay**remaining) / (1 - decay)
            result = discounted_suffix_sums(ones.clone(), torch.tensor([decay], dtype=torch.float64))
            torch.testing.assert_close(result, expected, rtol=1e-13, atol=0)


def test_token_rewards_subtract_the_kl_once_per_step():
    mask = mask_row("0110")
    rewards = token_rewards(torch.tensor([1.0]), mask, row(NAN, 0.5, 0.25, NAN), kl_coef=0.1)
    torch.testing.assert_close(rewards, row(0, -0.05, 0.975, 0))
    assert torch.equal(token_rewards(torch.tensor([1.0]), mask, row(9, 9, 9, 9)), row(0, 0, 1, 0))
    assert torch.equal(token_rewards(torch.tensor([1.0]), mask_row("000")), row(0, 0, 0))


def test_length_adaptive_lambda_reaches_a_share_of_the_completion():
    lams = length_adaptive_lambda(torch.tensor([1, 20, 100, 10_000]), 0.05)
    torch.testing.assert_close(lams, torch.tensor([0.0, 0.0, 0.8, 0.998], dtype=torch.float64))


def test_errors_name_the_argument():
    x, mask, b = row(0, 1), mask_row("11"), torch.zeros(1)
    with pytest.raises(BadInput, match=r"gae: expected values of shape \[1, 2\] like token_rewards, got \[1, 1\]"):
        gae(x, x[:, :1], mask, b)
    with pytest.raises(BadInput, match=r"bootstrap_values of shape \[1\], one number per row, got \[1, 1\]"):
        gae(x, x, mask, b[:, None])
    with pytest.raises(BadSetting, match=r"expected gamma in \[0, 1\], got 1.5"):
        gae(x, x, mask, b, gamma=1.5)
    with pytest.raises(BadSetting, match=r"expected lam in \[0, 1\], got nan"):
        gae(x, x, mask, b, lam=NAN)
    with pytest.raises(BadSetting, match=r"lam in \[0, 1\] for every row, got \[2.0\]"):
        gae(x, x, mask, b, lam=torch.tensor([2.0]))
    with pytest.raises(BadInput, match=r"expected lam of shape \[1\]"):
        gae(x, x, mask, b, lam=torch.tensor([0.5, 0.5]))
    with pytest.raises(BadSetting, match=r"expected kl with kl_coef=0.1, got none"):
        token_rewards(b, mask, kl_coef=0.1)
    with pytest.raises(BadSetting, match=r"expected kl_coef in \[0, inf\], got -1.0"):
        token_rewards(b, mask, x, kl_coef=-1.0)
    with pytest.raises(BadInput, match=r"expected outcome of shape \[1\]"):
        token_rewards(torch.zeros(2), mask)
    with pytest.raises(BadSetting, match=r"expected alpha above 0, got 0\.0"):
        length_adaptive_lambda(torch.tensor([3]), 0.0)
