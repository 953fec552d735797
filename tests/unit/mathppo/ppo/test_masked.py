"""Masked means and whitening against values worked out by hand."""

import pytest
import torch

from mathppo.errors import BadInput
from mathppo.ppo.masked import masked_mean, whiten

NAN = float("nan")


def test_mean_ignores_masked_positions():
    mask = torch.tensor([True, True, True, False])
    assert masked_mean(torch.tensor([1.0, 2.0, 3.0, 100.0]), mask).item() == 2.0
    assert masked_mean(torch.tensor([1.0, 2.0, 3.0, NAN]), mask).item() == 2.0
    assert masked_mean(torch.tensor([1.0, 2.0, 3.0, 100.0]), mask.int()).item() == 2.0


@pytest.mark.parametrize("denominator", [None, 5, 0.0, torch.tensor(0)])
def test_empty_mask_gives_zero_and_zero_gradients(denominator: float | torch.Tensor | None):
    x = torch.tensor([[1.0, NAN], [float("inf"), 2.0]], requires_grad=True)
    mean = masked_mean(x, torch.zeros(2, 2, dtype=torch.bool), denominator=denominator)
    mean.backward()
    assert mean.item() == 0.0
    assert x.grad is not None
    assert torch.equal(x.grad, torch.zeros(2, 2))


def test_micro_batches_with_one_denominator_add_up():
    small, large = torch.full((1, 100), 0.5), torch.full((1, 900), 0.3)
    parts = [masked_mean(x, torch.ones_like(x, dtype=torch.bool), denominator=1000) for x in (small, large)]
    assert sum(part.item() for part in parts) == pytest.approx(0.32, abs=1e-6)


def test_zero_denominator_with_tokens_gives_infinity():
    assert masked_mean(torch.ones(2), torch.ones(2, dtype=torch.bool), denominator=0).isinf()


def test_whitening_divides_by_the_pool_deviation():
    x, mask = torch.tensor([[1.0, 2.0, 3.0, 100.0]]), torch.tensor([[True, True, True, False]])
    torch.testing.assert_close(whiten(x, mask), torch.tensor([[-1.224745, 0.0, 1.224745, 0.0]]))


def test_unshifted_whitening_keeps_the_mean():
    x, mask = torch.tensor([[1.0, 2.0, 6.0, NAN]]), torch.tensor([[True, True, True, False]])
    shift = whiten(x, mask, shift_mean=False) - whiten(x, mask)
    torch.testing.assert_close(shift, torch.tensor([[3.0, 3.0, 3.0, 0.0]]))


def test_whitening_rewards_once_or_twice_is_the_same():
    rewards, mask = torch.tensor([0.0, 1.0]), torch.ones(2, dtype=torch.bool)
    once = whiten(rewards, mask)
    torch.testing.assert_close(once, torch.tensor([-1.0, 1.0]))
    torch.testing.assert_close(whiten(once, mask), once)


def test_rows_with_the_same_group_label_are_one_pool():
    rewards, mask = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.ones(4, dtype=torch.bool)
    assert torch.equal(whiten(rewards, mask, group=torch.tensor([7, 7, 3, 3])), torch.zeros(4))
    torch.testing.assert_close(whiten(rewards, mask), torch.tensor([1.0, 1.0, -1.0, -1.0]))


def test_empty_or_constant_pools_whiten_to_zero():
    x = torch.tensor([[0.1, 0.1, 0.1], [NAN, NAN, NAN]])
    mask = torch.tensor([[True, True, True], [False, False, False]])
    group = torch.tensor([0, 1])
    assert torch.equal(whiten(x, mask, group=group), torch.zeros(2, 3))
    assert torch.equal(whiten(x, torch.zeros(2, 3, dtype=torch.bool)), torch.zeros(2, 3))


def test_errors_name_the_argument():
    with pytest.raises(BadInput, match=r"masked_mean: expected mask of shape \[2, 3\] like x, got \[2, 1\]"):
        masked_mean(torch.ones(2, 3), torch.ones(2, 1))
    with pytest.raises(BadInput, match=r"whiten: expected mask of shape \[2, 3\] like x"):
        whiten(torch.ones(2, 3), torch.ones(2, 1))
    with pytest.raises(BadInput, match=r"whiten: expected group of shape \[2\], one number per row, got \[3\]"):
        whiten(torch.ones(2, 3), torch.ones(2, 3), group=torch.zeros(3))
