"""Masked mean and whitening. Numbers at masked positions are not read, even if they are NaN or infinite."""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from mathppo.ppo.arguments import as_float, as_mask, keep, require_per_row, require_same_shape

WHITEN_EPS = 1e-8
"""Added to the variance, in squared units of `x`; a pool of equal numbers whitens to 0 instead of 0 / 0."""


def masked_mean(
    x: Float[Tensor, "*dims"], mask: Shaped[Tensor, "*dims"], *, denominator: float | Tensor | None = None
) -> Float[Tensor, ""]:
    """Return the sum of `x` over True positions, divided by their number or by a given denominator.

    `sum(x[mask]) / denominator`. With the same denominator for all micro-batches and ranks, the results add up to the
    mean over all of them; a mean of their means would not.

    Args:
        x: any shape.
        mask: same shape; True = counts.
        denominator: positive, the number of True positions in all micro-batches; None = in this mask.

    Returns:
        A scalar in at least float32, differentiable in `x`. An empty mask gives 0 and a gradient of exact zeros.

    Raises:
        BadInput: the shapes differ.

    >>> masked_mean(torch.tensor([1.0, 2.0, 3.0, 100.0]), torch.tensor([True, True, True, False]))
    tensor(2.)
    """
    require_same_shape("masked_mean", x=x, mask=mask)
    mask = as_mask(mask)
    count = mask.sum()
    # Only an empty mask skips the division: a denominator of 0 with real tokens still gives infinity.
    divisor = torch.where(count == 0, 1.0, (count if denominator is None else denominator))
    return keep(x, mask).sum() / divisor


def whiten(
    x: Float[Tensor, "B *dims"],
    mask: Shaped[Tensor, "B *dims"],
    *,
    shift_mean: bool = True,
    group: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, "B *dims"]:
    """Return `x` shifted to mean 0 and scaled to variance 1 over the True positions of each pool.

    `(x - mean) / sqrt(var + WHITEN_EPS)`, plus `mean` if `shift_mean` is False. The variance divides by n, not n - 1
    (note M-ppo-1), so the rewards 0 and 1 become -1 and 1.

    Args:
        x: any shape with rows first.
        mask: same shape; True = counts.
        shift_mean: False keeps the pool's mean: the result differs from the shifted one by exactly that mean.
        group: pool label per row; rows with the same label are whitened together. None = all rows are one pool.

    Returns:
        The shape of `x`, at least float32, 0 at masked positions. A pool of equal numbers gives 0 (plus its mean).

    Raises:
        BadInput: the shapes differ.

    Source: Andrychowicz et al. 2021, "What Matters for On-Policy Deep Actor-Critic Methods?"
    (https://arxiv.org/abs/2006.05990), choice C67 (advantage normalization); `shift_mean`: Ziegler et al. 2019,
    "Fine-Tuning Language Models from Human Preferences" (https://arxiv.org/abs/1909.08593).

    >>> whiten(torch.tensor([0.0, 1.0, 9.0]), torch.tensor([True, True, False]))
    tensor([-1.,  1.,  0.])
    """
    require_same_shape("whiten", x=x, mask=mask)
    require_per_row("whiten", x.shape[0], group=group)
    mask, x = as_mask(mask), as_float(x)
    mean = pool_mean(x, mask, group)
    centred = keep(x - mean, mask)
    variance = pool_mean(centred.square(), mask, group)
    whitened = centred * torch.rsqrt(variance + WHITEN_EPS)
    return whitened if shift_mean else keep(whitened + mean, mask)


def pool_mean(
    x: Float[Tensor, "B *dims"], mask: Shaped[Tensor, "B *dims"], group: Int[Tensor, " B"] | None = None
) -> Float[Tensor, "B *ones"]:
    """Return each row's pool mean over True positions, with trailing dims of 1 that broadcast with `x`.

    Args:
        x: any shape with rows first.
        mask: same shape; True = counts.
        group: rows with the same label are one pool. None = all rows are one pool.

    Returns:
        `[B, 1, ...]`; 0 for a pool without a True position.
    """
    mask = as_mask(mask)
    return pool_sum(x, mask, group) / pool_sum(torch.ones_like(x), mask, group).clamp(min=1.0)


def pool_sum(
    x: Float[Tensor, "B *dims"], mask: Shaped[Tensor, "B *dims"], group: Int[Tensor, " B"] | None = None
) -> Float[Tensor, "B *ones"]:
    """Return each row's pool sum over True positions; arguments and shape as in `pool_mean`."""
    rows = x.shape[0]
    row_sums = keep(x, as_mask(mask)).reshape(rows, -1).sum(1)
    if group is None:
        sums = row_sums.sum().expand(rows)
    else:
        labels, pool = torch.unique(group, return_inverse=True)
        sums = row_sums.new_zeros(len(labels)).index_add(0, pool, row_sums)[pool]
    return sums.reshape(rows, *(1,) * (x.dim() - 1))
