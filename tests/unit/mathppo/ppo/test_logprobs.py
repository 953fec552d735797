"""Log-probabilities and entropies against values worked out by hand."""

import math

import pytest
import torch

from mathppo.errors import BadSetting
from mathppo.ppo.logprobs import entropy, token_logprobs


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, -0.01815), (1.0, -0.12693)])
def test_temperature_divides_the_logits(temperature: float, expected: float):
    logprob = token_logprobs(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), temperature=temperature)
    assert logprob.item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_probabilities_over_the_vocabulary_sum_to_one(temperature: float):
    torch.manual_seed(0)
    logits = (5 * torch.randn(1, 11)).expand(11, 11)
    logprobs = token_logprobs(logits, torch.arange(11), temperature=temperature)
    assert logprobs.exp().sum().item() == pytest.approx(1.0, abs=1e-6)


def test_bfloat16_logits_are_normalized_in_float32():
    logits = torch.randn(3, 1000).bfloat16()
    logprobs = token_logprobs(logits, torch.tensor([0, 1, 2]))
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs, logits.float().log_softmax(-1)[torch.arange(3), torch.arange(3)])


def test_entropy_is_between_zero_and_log_vocabulary():
    assert entropy(torch.zeros(7)).item() == pytest.approx(math.log(7), abs=1e-6)
    assert entropy(torch.tensor([100.0, 0.0])).item() == pytest.approx(0.0, abs=1e-6)
    assert entropy(torch.tensor([2.0, 0.0]), temperature=1e6).item() == pytest.approx(math.log(2), abs=1e-6)


def test_minus_infinite_logits_leave_the_entropy_finite():
    logits = torch.tensor([1.0, 1.0, -torch.inf], requires_grad=True)
    result = entropy(logits)
    result.backward()
    assert result.item() == pytest.approx(math.log(2), abs=1e-6)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_temperature_zero_raises(temperature: float):
    with pytest.raises(BadSetting, match="expected a finite temperature above 0"):
        token_logprobs(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), temperature=temperature)
    with pytest.raises(BadSetting, match="expected a finite temperature above 0"):
        entropy(torch.zeros(1, 2), temperature=temperature)
