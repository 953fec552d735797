"""KL estimates against values worked out by hand, and the gradients of each kind."""

from fractions import Fraction
from math import factorial

import pytest
import torch

from mathppo.errors import BadInput, BadSetting
from mathppo.ppo.kl import adapt_coef, exp_excess, kl_estimate


@pytest.mark.parametrize(("kind", "expected"), [("k1", 0.5), ("k2", 0.125), ("k3", 0.10653)])
def test_estimates_of_one_token(kind: str, expected: float):
    assert kl_estimate(torch.tensor(-1.0), torch.tensor(-1.5), kind).item() == pytest.approx(expected, abs=1e-5)


def kl_of_three_tokens(logits: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    logprobs = logits.log_softmax(-1)
    return (logprobs.exp() * (logprobs - ref)).sum()


def expected_gradient(kind: str, logits: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """Return the exact expected gradient of the estimate used as a loss, over the three possible tokens."""
    logprobs = logits.log_softmax(-1)
    return torch.autograd.grad((logprobs.exp().detach() * kl_estimate(logprobs, ref, kind)).sum(), logits)[0]


def test_expected_gradients_match_the_table():
    logits = torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([-0.3, 0.8, 0.1], dtype=torch.float64).log_softmax(-1)
    forward = torch.autograd.grad(kl_of_three_tokens(logits, ref), logits)[0]
    reverse = logits.detach().softmax(-1) - ref.exp()
    torch.testing.assert_close(expected_gradient("k1", logits, ref), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(expected_gradient("k2", logits, ref), forward)
    torch.testing.assert_close(expected_gradient("k3", logits, ref), reverse)


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_descending_the_kl_moves_the_policy_towards_the_reference(kind: str):
    logits = torch.tensor([1.0, -0.5, 0.2], requires_grad=True)
    ref = torch.tensor([-0.3, 0.8, 0.1]).log_softmax(-1)
    moved = logits - 0.1 * expected_gradient(kind, logits, ref)
    assert kl_of_three_tokens(moved, ref) < kl_of_three_tokens(logits, ref)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(kind: str):
    logprobs = torch.tensor([0.5, 0.3, 0.2]).log()
    ref = torch.tensor([0.2, 0.3, 0.5]).log()
    mean = (logprobs.exp() * kl_estimate(logprobs, ref, kind)).sum()
    torch.testing.assert_close(mean, (logprobs.exp() * (logprobs - ref)).sum())


def test_exp_excess_is_precise_and_never_negative():
    x = torch.cat([torch.logspace(-8, 1, 200, dtype=torch.float64), torch.tensor([0.0], dtype=torch.float64)])
    x = torch.cat([x, -x])
    for points in (x, x.float()):
        result = exp_excess(points)
        assert (result >= 0).all()
        halves = (points.double() / 2).sinh().square() * 2 + (points.double().sinh() - points.double())
        torch.testing.assert_close(result[points.abs() > 1e-2].double(), halves[points.abs() > 1e-2], rtol=2e-5, atol=0)
        tiny = points.abs() < 1e-5
        torch.testing.assert_close(result[tiny].double(), points[tiny].double().square() / 2, rtol=1e-5, atol=0)


@pytest.mark.parametrize("x", [0.0099, -0.0099, 1e-3, -1e-3, 0.0101, -0.0101])
def test_exp_excess_equals_exact_arithmetic_on_both_sides_of_the_switch(x: float):
    exact = sum(Fraction(x) ** k / factorial(k) for k in range(2, 12))
    assert exp_excess(torch.tensor(x, dtype=torch.float64)).item() == pytest.approx(float(exact), rel=1e-12)


def test_extreme_gaps_stay_finite_with_finite_gradients():
    logprobs = torch.tensor([-300.0, 0.0], requires_grad=True)
    estimate = kl_estimate(logprobs, torch.tensor([0.0, -300.0]), "k3")
    estimate.sum().backward()
    assert logprobs.grad is not None
    assert estimate.isfinite().all()
    assert logprobs.grad.isfinite().all()


def test_reference_logprobs_get_no_gradient():
    ref = torch.tensor([-1.0], requires_grad=True)
    assert not kl_estimate(torch.tensor([-1.0]), ref, "k2").requires_grad


@pytest.mark.parametrize(
    ("observed", "expected"), [(6.0, 0.1), (6.6, 0.1001), (60.0, 0.1002), (0.0, 0.0998), (-1.0, 0.0998)]
)
def test_coefficient_follows_the_observed_kl_in_bounded_steps(observed: float, expected: float):
    coef = adapt_coef(0.1, observed, target=6.0, num_rollouts=100, horizon=10_000)
    assert coef == pytest.approx(expected, rel=1e-9)


def test_errors_name_the_argument():
    with pytest.raises(BadInput, match="kl_estimate: expected ref_logprobs of shape"):
        kl_estimate(torch.zeros(2), torch.zeros(1), "k1")
    with pytest.raises(BadSetting, match="expected kind k1, k2 or k3, got 'k4'"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")
    with pytest.raises(BadSetting, match="expected target above 0, got 0"):
        adapt_coef(0.1, 1.0, target=0, num_rollouts=1, horizon=10)
    with pytest.raises(BadSetting, match="expected a finite observed_kl, got nan"):
        adapt_coef(0.1, float("nan"), target=1.0, num_rollouts=1, horizon=10)
    with pytest.raises(BadSetting, match=r"expected num_rollouts in \[0, 10\], got 11"):
        adapt_coef(0.1, 1.0, target=1.0, num_rollouts=11, horizon=10)
    with pytest.raises(BadSetting, match=r"expected coef in \[0, inf\], got -1"):
        adapt_coef(-1, 1.0, target=1.0, num_rollouts=1, horizon=10)
