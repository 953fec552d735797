"""Explained variance of known critics."""

import pytest
import torch

from mathppo.errors import BadInput
from mathppo.ppo.explained_variance import explained_variance, explained_variance_from_moments
from mathppo.ppo.losses import add_stats, value_loss

NAN = float("nan")


def test_explained_variance_of_known_critics():
    outcomes, mask = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.ones(4, 3)
    right = outcomes[:, None].expand(4, 3)
    assert explained_variance(right, outcomes, mask).item() == 1.0
    assert explained_variance(torch.full((4, 3), 0.7), outcomes, mask).item() == pytest.approx(0.0, abs=1e-6)
    assert explained_variance(right / 2, outcomes, mask).item() == pytest.approx(0.75)
    assert explained_variance(-right, right, mask).item() == pytest.approx(-3.0)
    assert explained_variance(right, torch.full((4,), 0.1), mask).item() == 0.0
    assert explained_variance(right, outcomes, torch.zeros(4, 3)).item() == 0.0


def test_explained_variance_ignores_masked_positions():
    values, outcomes = torch.tensor([[0.5, NAN], [0.0, NAN]]), torch.tensor([[1.0, NAN], [0.0, NAN]])
    mask = torch.tensor([[True, False], [True, False]])
    assert explained_variance(values, outcomes, mask).item() == pytest.approx(0.75)


def test_explained_variance_from_summed_micro_batch_statistics():
    torch.manual_seed(0)
    values, returns = torch.randn(6, 5), torch.randn(6, 5)
    mask = torch.rand(6, 5) < 0.7
    count = mask.sum()
    parts = [
        value_loss(values[i], values[i], returns[i], mask[i], denominator=7, num_tokens=count)[1]
        for i in (slice(0, 1), slice(1, 6))
    ]
    result = explained_variance_from_moments(add_stats(parts)).item()
    assert result == pytest.approx(explained_variance(values, returns, mask).item(), abs=1e-5)
    constant = value_loss(values, values, torch.full((6, 5), 0.1), mask)[1]
    assert explained_variance_from_moments(constant).item() == 0.0


def test_errors_name_the_argument():
    x = torch.zeros(2, 3)
    with pytest.raises(BadInput, match=r"explained_variance: expected outcomes of shape \[2\]"):
        explained_variance(x, torch.zeros(3), x)
