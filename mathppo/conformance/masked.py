"""Checks of masked means and whitening."""

import torch

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


def _mean_of_three(function: Function) -> str:
    return expect(function(row_of(1, 2, 3, 100), mask_of("1110")), 2.0)


def _mean_with_masked_nan(function: Function) -> str:
    x = row_of(1, 2, 3, NAN).requires_grad_()
    mean = function(x, mask_of("1110"))
    expect(mean, 2.0)
    return expect(gradient_of(mean, x), [[1 / 3, 1 / 3, 1 / 3, 0.0]], of="gradient")


def _mean_of_empty_mask(function: Function) -> str:
    x = row_of(1, 2).requires_grad_()
    mean = function(x, mask_of("00"))
    expect(mean, 0.0)
    return expect(gradient_of(mean, x), [[0.0, 0.0]], of="gradient")


def _mean_in_parts(function: Function) -> str:
    parts = [function(torch.full((1, n), x), mask_of("1" * n), denominator=1000) for n, x in ((100, 0.5), (900, 0.3))]
    return expect(parts[0] + parts[1], 0.32)


def _whitened_three(function: Function) -> str:
    got = torch.as_tensor(function(row_of(1, 2, 3, 100), mask_of("1110")))[0, :3]
    for deviation, name in ((1.224745, "divides by n"), (1.0, "divides by n - 1")):
        if torch.allclose(got, torch.tensor([-deviation, 0.0, deviation]), atol=1e-3):
            return f"±{deviation:.4g}: {name}"
    raise Mismatch(f"expected ±1.2247 (divides by n) or ±1 (by n - 1), got {got.tolist()}")


def _unshifted(function: Function) -> str:
    x, mask = row_of(1, 2, 6, 100), mask_of("1110")
    shift = function(x, mask, shift_mean=False) - function(x, mask)
    return expect(shift[mask], [3.0, 3.0, 3.0], 1e-3)


def _twice(function: Function) -> str:
    rewards, mask = torch.tensor([[0.0], [1.0]]), torch.ones(2, 1, dtype=torch.bool)
    once = function(rewards, mask)
    if not abs(once).min() > 0.5:
        raise Mismatch(f"expected rewards 0 and 1 to become negative and positive, got {once.flatten().tolist()}")
    return expect(function(once, mask), once, 1e-3)


def _pools(function: Function) -> str:
    rewards, mask = torch.tensor([[1.0], [1.0], [0.0], [0.0]]), torch.ones(4, 1, dtype=torch.bool)
    expect(function(rewards, mask, group=torch.tensor([0, 0, 1, 1])), torch.zeros(4, 1), 1e-3, of="by group")
    batch = function(rewards, mask)
    if not (batch[:2] > 0.8).all() or not (batch[2:] < -0.8).all():
        raise Mismatch(f"expected about ±1 over the whole batch, got {batch.flatten().tolist()}")
    return "0 by group, about ±1 by batch"


def _finite_pools(function: Function) -> str:
    expect(function(row_of(0.1, 0.1, 0.1), mask_of("111")), [[0.0] * 3], 1e-2, of="equal numbers")
    got = function(row_of(1.0, 2.0), mask_of("00"))
    return expect(torch.isfinite(got).all().double(), 1.0, of="empty mask, finite")


def _strays(function: Function) -> str:
    mask = mask_of("1110")
    expect(function(row_of(1, 2, 6, NAN), mask)[mask], function(row_of(1, 2, 6, 0), mask)[mask])
    return "unchanged by NaN"


def _affine(function: Function) -> str:
    x, mask = randn(0, 4, 8), randn(1, 4, 8) > 0
    expect(function(5.0 * x - 3.0, mask)[mask], function(x, mask)[mask], 1e-3)
    return "unchanged by 5 x - 3"


MEAN_CHECKS = (
    Check("only True positions count", "NovaSky-AI/SkyRL#1782, #1305", _mean_of_three),
    Check("masked positions are ignored", "NovaSky-AI/SkyRL#1782", _mean_with_masked_nan),
    Check("an empty mask gives 0 and zero gradients", EMPTY_MASK, _mean_of_empty_mask),
    Check("unequal micro-batches sum to the batch mean", UNEQUAL_PARTS, _mean_in_parts),
)

WHITEN_CHECKS = (
    Check("mean and standard deviation of True positions only", "NovaSky-AI/SkyRL#1782, #1305", _whitened_three),
    Check("shift_mean=False keeps the mean", "THUDM/slime#1369", _unshifted),
    Check("whitening is idempotent and not the identity", "OpenRLHF/OpenRLHF#693", _twice),
    Check("statistics are per group, or over the batch without a group", "NVIDIA-NeMo/RL#3766", _pools),
    Check("empty and constant groups stay finite", EMPTY_MASK, _finite_pools),
    Check("masked positions are ignored", "NovaSky-AI/SkyRL#1782", _strays),
    Check("scale and offset of the input are removed", "definition", _affine),
)
