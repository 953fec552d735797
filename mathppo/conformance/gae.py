"""Checks of generalised advantage estimation."""

import torch
from torch import Tensor

from mathppo.conformance.check import NAN, Check, Function, expect, mask_of, row_of

_DEFINITION = "Schulman et al. 2016, eq. 16"


def _case(
    function: Function,
    bits: str,
    rewards: list[float],
    values: list[float],
    expected: list[float],
    *,
    bootstrap: float = 0.0,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> str:
    """Check one completion; `expected` are the advantages of the True steps."""
    mask = mask_of(bits)
    advantages = function(row_of(*rewards), row_of(*values), mask, torch.tensor([bootstrap]), gamma=gamma, lam=lam)
    return expect(advantages[mask], expected)


def _terminated(function: Function) -> str:
    return _case(function, "1110", [0, 0, 1, 0], [0.2, 0.3, 0.4, 0.7], [0.7365, 0.67, 0.60])


def _truncated(function: Function) -> str:
    values = [0.2, 0.3, 0.4]
    _case(function, "111", [0, 0, 0], values, [0.4, 0.3, 0.2], bootstrap=0.6, lam=1.0)
    return _case(function, "111", [0, 0, 0], values, [0.3755, 0.29, 0.20], bootstrap=0.6)


def _truncated_as_terminal(function: Function) -> str:
    return _case(function, "111", [0, 0, 0], [0.2, 0.3, 0.4], [-0.166, -0.28, -0.40])


def _tool_text(function: Function) -> str:
    expected = [0.4287, 0.4512, 0.475, 0.5]
    return _case(function, "1100011", [0, 0, 0, 0, 0, 0, 1], [0.5] * 7, expected)


def _reward_across_tool_text(function: Function) -> str:
    return _case(function, "110011", [0, 0, 0, 0, 0, 1], [0.0] * 6, [1, 1, 1, 1], lam=1.0)


def _values_after_the_stop(function: Function) -> str:
    for stray in (99.0, -99.0):
        _case(function, "11100", [0, 0, 1, 0, 0], [0.2, 0.3, 0.4, stray, stray], [0.7365, 0.67, 0.60])
    return "unchanged by V = ±99 after the stop token"


def _last_reward(function: Function) -> str:
    return _case(function, "1111", [0, 0, 0, 8], [0.0] * 4, [0.125, 0.5, 2, 8], gamma=0.5, lam=0.5)


def _masked_positions(function: Function) -> str:
    for stray in (NAN, float("inf")):
        _case(function, "01101", [stray, 0, 0, stray, 1], [stray, 0.2, 0.3, stray, 0.4], [0.7365, 0.67, 0.60])
    return "unchanged by NaN and infinity"


def _tutorial(function: Function) -> str:
    values = [0.20, 0.35, 0.55, 0.80]
    _case(function, "1111", [0, 0, 0, 1], values, [0.115, 0.145, 0.170, 0.200], gamma=0.9, lam=0.0)
    return _case(function, "1111", [0, 0, 0, 1], values, [0.3821776, 0.37108, 0.314, 0.2], gamma=0.9, lam=0.8)


def _batch(width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 3, width, generator=generator).unbind()
    return rewards, values, torch.ones(3, width, dtype=torch.bool), torch.tensor([0.0, 0.5, -0.5])


def _padding(function: Function) -> str:
    rewards, values, mask, bootstrap = _batch(37)
    plain = function(rewards, values, mask, bootstrap, gamma=0.99, lam=0.95)
    for left, right in ((0, 5), (5, 0), (3, 40)):
        pad = torch.nn.functional.pad
        around = (left, right)
        wide = pad(mask, around)
        padded = function(pad(rewards, around), pad(values, around, value=9.0), wide, bootstrap, gamma=0.99, lam=0.95)
        expect(padded[wide], plain[mask], of=f"{left} pads on the left, {right} on the right")
    return "unchanged by padding on the left, right and both sides"


def _row_order(function: Function) -> str:
    rewards, values, mask, bootstrap = _batch(9)
    mask[0, 5:] = mask[1, :2] = False
    plain = function(rewards, values, mask, bootstrap, gamma=1.0, lam=0.9)
    turned = function(rewards.flip(0), values.flip(0), mask.flip(0), bootstrap.flip(0), gamma=1.0, lam=0.9)
    expect(turned.flip(0)[mask], plain[mask])
    return "unchanged"


def _extremes_of_lambda(function: Function) -> str:
    rewards, values, mask, bootstrap = _batch(6)
    monte_carlo = rewards.flip(1).cumsum(1).flip(1) + bootstrap[:, None] - values
    expect(function(rewards, values, mask, bootstrap, gamma=1.0, lam=1.0), monte_carlo, of="lambda 1")
    after = torch.cat([values[:, 1:], bootstrap[:, None]], dim=1)
    expect(
        function(rewards, values, mask, bootstrap, gamma=0.9, lam=0.0), rewards + 0.9 * after - values, of="lambda 0"
    )
    return "Monte Carlo return minus value, and TD residual"


def _long_in_float32(function: Function) -> str:
    width = 65_536
    values = torch.full((1, width), 0.5)
    rewards = torch.zeros(1, width)
    rewards[0, -1] = 1.0
    mask, bootstrap = torch.ones(1, width, dtype=torch.bool), torch.zeros(1)
    expect(function(rewards, values, mask, bootstrap, gamma=1.0, lam=1.0), torch.full((1, width), 0.5), of="lambda 1")
    decay = 0.9999 ** torch.arange(width - 1, -1, -1, dtype=torch.float64)
    got = function(rewards, values, mask, bootstrap, gamma=1.0, lam=0.9999)
    expect(got[0], 0.5 * decay, of="lambda .9999")
    return "65,536 tokens to 1e-4"


def _empty_row(function: Function) -> str:
    zeros = torch.zeros(1, 3)
    advantages = function(zeros, zeros + 0.5, mask_of("000"), torch.zeros(1), gamma=1.0, lam=0.95)
    return expect(torch.isfinite(advantages).all().double(), 1.0, of="finite")


CHECKS = (
    Check("the reward is on the last sampled token, not on a pad", "huggingface/trl#3750", _terminated),
    Check("a truncated completion bootstraps from the value of its end", "huggingface/trl#1536", _truncated),
    Check("a completion without bootstrap ends at 0", "huggingface/trl#1536", _truncated_as_terminal),
    Check("tool text is not a step", "verl-project/verl#2337, radixark/miles#1827", _tool_text),
    Check("the reward propagates across tool text", "verl-project/verl#7280, #7300", _reward_across_tool_text),
    Check("values after the stop token are not read", "verl-project/verl#1850", _values_after_the_stop),
    Check("the last step receives the whole last reward", "deepspeedai/DeepSpeedExamples#672", _last_reward),
    Check("padding on any side changes nothing", "OpenRLHF/OpenRLHF#771", _padding),
    Check("masked positions are ignored", "OpenRLHF/OpenRLHF#771", _masked_positions),
    Check("a row without steps stays finite", "NVIDIA-NeMo/RL#158", _empty_row),
    Check("the order of rows changes nothing", _DEFINITION, _row_order),
    Check("lambda 1 is Monte Carlo, lambda 0 is the TD residual", _DEFINITION, _extremes_of_lambda),
    Check("gamma .9, lambda .8, calculated by hand", _DEFINITION, _tutorial),
    Check("64k tokens in float32", _DEFINITION, _long_in_float32),
)
