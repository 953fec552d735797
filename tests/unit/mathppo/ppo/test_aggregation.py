"""Weights and denominators of loss aggregations against values worked out by hand."""

import pytest
import torch

from mathppo.errors import BadSetting
from mathppo.ppo.aggregation import Aggregation, loss_weights
from mathppo.ppo.losses import policy_loss

NAN = float("nan")


@pytest.mark.parametrize(
    ("aggregation", "of_first", "of_second"), [("token_mean", 0.01, 0.99), ("sequence_mean", 0.5, 0.5)]
)
def test_share_of_the_loss_per_completion(aggregation: Aggregation, of_first: float, of_second: float):
    mask = torch.arange(99)[None] < torch.tensor([[1], [99], [0]])
    weights, denominator = loss_weights(mask, aggregation)
    shares = (weights / denominator).sum(1).tolist()
    assert shares == [pytest.approx(of_first), pytest.approx(of_second), 0.0]


def test_constant_length_is_independent_of_the_batch():
    mask = torch.tensor([[True, False], [True, True], [False, False]])
    weights, denominator = loss_weights(mask, "constant_length", max_completion_tokens=10)
    assert torch.equal(weights, mask.float())
    assert denominator.item() == 20


def test_sequence_mean_in_a_policy_loss():
    mask = torch.tensor([[True, False], [True, True]])
    weights, denominator = loss_weights(mask, "sequence_mean")
    advantages = torch.tensor([[1.0, NAN], [2.0, 4.0]])
    loss, _ = policy_loss(
        torch.zeros(2, 2), torch.zeros(2, 2), advantages, mask, weights=weights, denominator=denominator
    )
    assert loss.item() == pytest.approx(-(1.0 + 3.0) / 2)


def test_errors_name_the_argument():
    x = torch.zeros(2, 3)
    with pytest.raises(BadSetting, match="expected max_completion_tokens of at least 1 for constant_length, got None"):
        loss_weights(x, "constant_length")
    with pytest.raises(BadSetting, match="token_mean, sequence_mean, constant_length, got 'mean'"):
        loss_weights(x, "mean")  # pyright: ignore[reportArgumentType]
