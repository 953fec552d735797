"""Truncated importance weights against values worked out by hand."""

import pytest
import torch

from mathppo.errors import BadInput, BadSetting
from mathppo.ppo.importance import sequence_importance_weights, token_importance_weights

NAN = float("nan")


def test_token_weights_are_the_capped_ratio_of_learner_to_sampler():
    old = torch.tensor([[0.3, 0.6, 0.2, NAN]]).log()
    behaviour = torch.tensor([[0.6, 0.1, 0.2, NAN]]).log()
    mask = torch.tensor([[True, True, True, False]])
    weights = token_importance_weights(old, behaviour, mask, cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([[0.5, 2.0, 1.0, 0.0]]))


def test_sequence_weights_multiply_ratios_before_the_cap():
    old = torch.tensor([[0.3, 0.6, NAN], [0.4, 0.1, NAN]]).log()
    behaviour = torch.tensor([[0.6, 0.2, NAN], [0.1, 0.1, NAN]]).log()
    mask = torch.tensor([[True, True, False], [True, True, False]])
    weights = sequence_importance_weights(old, behaviour, mask, cap=3.0)
    torch.testing.assert_close(weights, torch.tensor([[1.5, 1.5, 0.0], [3.0, 3.0, 0.0]]))
    far = sequence_importance_weights(torch.zeros(1, 1000), torch.full((1, 1000), -1.0), torch.ones(1, 1000), cap=5)
    assert (far == 5).all()


def test_errors_name_the_argument():
    x, row = torch.zeros(2, 3), torch.zeros(2)
    with pytest.raises(BadInput, match=r"token_importance_weights: expected mask of shape \[2, 3\]"):
        token_importance_weights(x, x, row)
    with pytest.raises(BadSetting, match="sequence_importance_weights: expected cap above 0, got 0"):
        sequence_importance_weights(x, x, x, cap=0)
