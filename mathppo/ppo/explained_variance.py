"""Explained variance of a critic."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from mathppo.ppo.arguments import as_mask, keep, require_per_row, require_same_shape
from mathppo.ppo.losses import Stats
from mathppo.ppo.masked import masked_mean


def explained_variance(
    values: Float[Tensor, "B T"],
    outcomes: Float[Tensor, "B T"] | Float[Tensor, " B"],
    mask: Shaped[Tensor, "B T"],
) -> Float[Tensor, ""]:
    """Return the share of the outcomes' variance that the values explain: `1 - Var(outcome - V) / Var(outcome)`.

    Args:
        values: the critic's.
        outcomes: Monte Carlo outcomes, per rollout or per step; targets that contain V overstate the critic.
        mask: True = counts, each step once.

    Returns:
        At most 1; 0 for a constant critic, negative for one worse than a constant; 0 if the outcomes do not vary.

    Raises:
        BadInput: shapes differ.

    >>> explained_variance(torch.tensor([[0.5, 0.5], [0.0, 0.0]]), torch.tensor([1.0, 0.0]), torch.ones(2, 2))
    tensor(0.7500)
    """
    if outcomes.dim() == 1:
        require_per_row("explained_variance", len(values), outcomes=outcomes)
        outcomes = outcomes[:, None].expand_as(values)
    require_same_shape("explained_variance", values=values, outcomes=outcomes, mask=mask)
    mask = as_mask(mask)
    outcomes = keep(outcomes, mask)
    square_mean = masked_mean(outcomes.square(), mask)
    return _explained(_variance(outcomes - keep(values, mask), mask), _variance(outcomes, mask), 1e-10 * square_mean)


def explained_variance_from_moments(stats: Stats) -> Float[Tensor, ""]:
    """Return the explained variance of the returns from the summed statistics of `losses.value_loss`.

    Args:
        stats: with `return_mean`, `return_square_mean`, `residual_mean` and `residual_square_mean` over all tokens.
    """
    moment = {name: stat.double() for name, stat in stats.items()}
    unexplained = moment["residual_square_mean"] - moment["residual_mean"].square()
    total = moment["return_square_mean"] - moment["return_mean"].square()
    # A difference of float32 means is exact only up to their rounding error.
    return _explained(unexplained, total, 1e-6 * moment["return_square_mean"])


def _variance(x: Float[Tensor, "B T"], mask: Shaped[Tensor, "B T"]) -> Float[Tensor, ""]:
    return masked_mean((x - masked_mean(x, mask)).square(), mask)


def _explained(
    unexplained: Float[Tensor, ""], total: Float[Tensor, ""], rounding: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Return `1 - unexplained / total`, or 0 if the total is within the rounding error."""
    varies = total > rounding
    return torch.where(varies, 1.0 - unexplained / torch.where(varies, total, 1.0), 0.0)
