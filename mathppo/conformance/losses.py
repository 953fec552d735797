"""Checks of the clipped policy loss and of the clipped value loss."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mathppo.conformance.check import (
    EMPTY_MASK,
    NAN,
    UNEQUAL_PARTS,
    Check,
    Function,
    Mismatch,
    expect,
    gradient_of,
    mask_of,
    randn,
    row_of,
)

_MIN_AND_MAX = "takuseno/ppo#3, tensorforce/tensorforce#106, openai/baselines#1156"
_ACCUMULATION = "huggingface/trl#3231, #3021, #6024, modelscope/ms-swift#10116, #10117"
_DEFINITION = "Schulman et al. 2017, eq. 7"
_MAX_OF_ERRORS = "Engstrom et al. 2020, value function clipping: the larger error"
_CLIP = {"clip_low": 0.2, "clip_high": 0.2}


def _policy(function: Function, *tensors: Tensor, **options: Any) -> Tensor:
    return _loss_of(function(*tensors, **_CLIP, **options))


def _loss_of(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


def _at_ratio(ratio: float, advantage: float, expected: float, **options: float) -> Check:
    def examine(function: Function) -> str:
        loss = _policy(function, row_of(ratio).log(), row_of(0.0), row_of(advantage), mask_of("1"), **options)
        return expect(loss, expected)

    dual = f", dual clip {options['dual_clip']:g}" if options else ""
    return Check(f"ratio {ratio:g}, advantage {advantage:g}{dual}: loss {expected:g}", _MIN_AND_MAX, examine)


def _asymmetric(function: Function) -> str:
    logprobs, advantages = row_of(1.26, 1.5, 0.7).log(), row_of(1, 1, -1)
    result = function(logprobs, row_of(0, 0, 0), advantages, mask_of("111"), clip_low=0.1, clip_high=0.28)
    return expect(_loss_of(result), (-1.26 - 1.28 + 0.9) / 3)


def _tutorial(function: Function) -> str:
    return expect(_policy(function, row_of(0.26).log(), row_of(0.20).log(), row_of(1), mask_of("1")), -1.2)


def _unchanged(function: Function) -> str:
    old, advantages = -randn(0, 2, 5).abs(), randn(1, 2, 5)
    logprobs = old.clone().requires_grad_()
    loss = _policy(function, logprobs, old, advantages, torch.ones(2, 5, dtype=torch.bool))
    expect(loss, -advantages.mean())
    expect(gradient_of(loss, logprobs), -advantages / 10, of="gradient")
    return "the plain policy gradient"


def _policy_empty(function: Function) -> str:
    x = row_of(-1, -2).requires_grad_()
    loss = _policy(function, x, row_of(-1, -2), row_of(1, 1), mask_of("00"))
    expect(loss, 0.0)
    return expect(gradient_of(loss, x), [[0.0, 0.0]], of="gradient")


def _policy_masked(function: Function) -> str:
    for stray in (NAN, float("inf"), float("-inf")):
        logprobs = row_of(-1, stray).requires_grad_()
        loss = _policy(function, logprobs, row_of(-1, stray), row_of(1, stray), mask_of("10"))
        expect(loss, -1.0, of=str(stray))
        expect(gradient_of(loss, logprobs), [[-1.0, 0.0]], of=f"{stray}, gradient")
    return "loss and gradient unchanged"


def _large_ratio(function: Function) -> str:
    logprobs = row_of(100.0).requires_grad_()
    loss = _policy(function, logprobs, row_of(-100.0), row_of(1.0), mask_of("1"))
    expect(loss, -1.2)
    return expect(gradient_of(loss, logprobs), [[0.0]], of="gradient")


def _policy_parts(function: Function) -> str:
    loss = torch.zeros(())
    for length, advantage in ((100, -0.5), (900, -0.3)):
        zeros, mask = torch.zeros(1, length), mask_of("1" * length)
        loss = loss + _policy(function, zeros, zeros, torch.full_like(zeros, advantage), mask, denominator=1000)
    return expect(loss, 0.32)


def _token_weight(function: Function) -> str:
    for length in (10, 1000):
        old = torch.zeros(1, length)
        logprobs = old.clone().requires_grad_()
        loss = _policy(function, logprobs, old, torch.ones_like(old), mask_of("1" * length), denominator=1010)
        expect(1010 * gradient_of(loss, logprobs), -torch.ones_like(old), of=f"1010 x gradient, {length} tokens")
    return "1/1010 per token"


def _accumulate(start: Tensor, loss_of_rows: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Compare the gradient that accumulates over 4 rows with the gradient of all rows at once."""

    def gradient(size: int) -> Tensor:
        x = start.clone().requires_grad_()
        for rows in torch.arange(4).split(size):
            loss_of_rows(x[rows], rows).backward()
        assert x.grad is not None
        return x.grad

    expect(1000 * gradient(1), 1000 * gradient(4), of="1000 x gradient")
    return "the same gradient in 4 micro-batches as in 1"


def _policy_accumulation(function: Function) -> str:
    mask, old, advantages = _ragged_mask(), -randn(0, 4, 40).abs(), randn(1, 4, 40)
    return _accumulate(
        old + 0.3 * randn(2, 4, 40),
        lambda x, rows: _policy(function, x, old[rows], advantages[rows], mask[rows], denominator=mask.sum()),
    )


def _ragged_mask() -> Tensor:
    return torch.arange(40) < torch.tensor([[3], [40], [1], [17]])


def _masked_sample(function: Function) -> str:
    logprobs = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])
    advantages = torch.tensor([[1.0, 2.0], [5.0, 5.0]])
    return expect(_policy(function, logprobs, logprobs, advantages, mask_of("11", "00")), -1.5)


def _token_mean(function: Function) -> str:
    mask = torch.arange(99) < torch.tensor([[1], [99]])
    zeros = torch.zeros(2, 99)
    advantages = torch.tensor([[1.0], [0.0]]).expand(2, 99)
    return expect(_policy(function, zeros, zeros, advantages, mask), -0.01)


def _weights(function: Function) -> str:
    logprobs = row_of(1.5, 0.9).log()
    loss = _policy(function, logprobs, row_of(0, 0), row_of(1, 1), mask_of("11"), weights=row_of(2.0, 0.5))
    return expect(loss, -(2.0 * 1.2 + 0.5 * 0.9) / 2)


def _anchors_are_constants(function: Function) -> str:
    logprobs, old, advantages = (row_of(x).requires_grad_() for x in (-1.0, -1.1, 1.0))
    loss = _policy(function, logprobs, old, advantages, mask_of("1"))
    gradients = torch.autograd.grad(loss, (old, advantages), allow_unused=True) if loss.requires_grad else (None,)
    if any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients):
        raise Mismatch("expected no gradient with respect to old_logprobs and advantages, got one")
    return "no gradient"


def _value(function: Function, *tensors: Tensor, **options: Any) -> Tensor:
    """Return the loss without the optional factor ½ of the squared error."""
    unit = _loss_of(function(row_of(2.0), row_of(2.0), row_of(0.0), mask_of("1"))).item()
    if min(abs(unit - 2.0), abs(unit - 4.0)) > 1e-4:
        raise Mismatch(f"expected 4, or 2 with a factor ½, for an error of 2, got {unit:.4g}")
    return _loss_of(function(*tensors, **options)) * (4.0 / unit)


def _value_at(value: float, old: float, expected: float) -> Check:
    def examine(function: Function) -> str:
        return expect(_value(function, row_of(value), row_of(old), row_of(1.0), mask_of("1"), clip=0.2), expected)

    return Check(
        f"old value {old:g}, value {value:g}, return 1, clip .2: squared error {expected:g}", _MAX_OF_ERRORS, examine
    )


def _value_empty(function: Function) -> str:
    values = row_of(1, 2).requires_grad_()
    loss = _value(function, values, row_of(1, 2), row_of(0, 0), mask_of("00"))
    expect(loss, 0.0)
    return expect(gradient_of(loss, values), [[0.0, 0.0]], of="gradient")


def _value_masked(function: Function) -> str:
    for stray in (NAN, float("inf")):
        values = row_of(2, stray).requires_grad_()
        loss = _value(function, values, row_of(2, stray), row_of(0, stray), mask_of("10"), clip=0.2)
        expect(loss, 4.0, of=str(stray))
        expect(gradient_of(loss, values), [[4.0, 0.0]], of=f"{stray}, gradient")
    return "loss and gradient unchanged"


def _value_accumulation(function: Function) -> str:
    mask, returns = _ragged_mask(), randn(1, 4, 40)
    return _accumulate(
        randn(0, 4, 40),
        lambda x, rows: _value(
            function, x, x.detach() + 0.1, returns[rows], mask[rows], clip=0.2, denominator=mask.sum()
        ),
    )


def _value_parts(function: Function) -> str:
    loss = torch.zeros(())
    for length, square in ((100, 0.5), (900, 0.3)):
        values = torch.full((1, length), square**0.5)
        loss = loss + _value(function, values, values, 0 * values, mask_of("1" * length), denominator=1000)
    return expect(loss, 0.32)


POLICY_CHECKS = (
    _at_ratio(1.5, 1.0, -1.2),
    _at_ratio(0.5, 1.0, -0.5),
    _at_ratio(1.5, -1.0, 1.5),
    _at_ratio(0.5, -1.0, 0.8),
    _at_ratio(10.0, -1.0, 10.0),
    _at_ratio(10.0, -1.0, 3.0, dual_clip=3.0),
    Check("separate lower and upper clip bounds", "Yu et al. 2025, DAPO, section 3.1", _asymmetric),
    Check("ratio .26 / .20, advantage 1: objective 1.2", _DEFINITION, _tutorial),
    Check("an unchanged policy has ratio 1", "huggingface/trl#454, verl-project/verl#2088, #3119, #6280", _unchanged),
    Check("an empty mask gives 0 and zero gradients", EMPTY_MASK, _policy_empty),
    Check("masked positions are ignored", EMPTY_MASK, _policy_masked),
    Check("a very large ratio has a finite gradient", _DEFINITION, _large_ratio),
    Check("unequal micro-batches sum to the batch mean", UNEQUAL_PARTS, _policy_parts),
    Check("gradient accumulation is exact", _ACCUMULATION, _policy_accumulation),
    Check("every token has the same weight on every rank", "PrimeIntellect-ai/prime-rl#2562, #2358", _token_weight),
    Check("a masked completion leaves the denominator", "huggingface/trl#6369", _masked_sample),
    Check("completions of 1 and 99 tokens have weights .01 and .99", "allenai/open-instruct#1137", _token_mean),
    Check("importance weights scale their tokens", "Yao et al. 2025, truncated importance sampling", _weights),
    Check("old log-probabilities and advantages are constants", _DEFINITION, _anchors_are_constants),
)

VALUE_CHECKS = (
    _value_at(0.9, 0.0, 0.64),
    _value_at(0.1, 0.0, 0.81),
    _value_at(-0.9, 0.0, 3.61),
    _value_at(1.5, 0.0, 0.64),
    Check("an empty mask gives 0 and zero gradients", EMPTY_MASK, _value_empty),
    Check("masked positions are ignored", EMPTY_MASK, _value_masked),
    Check("unequal micro-batches sum to the batch mean", "verl-project/verl#7110", _value_parts),
    Check("gradient accumulation is exact", "verl-project/verl#7110", _value_accumulation),
)
