"""Lambda of generalized advantage estimation: one for all rows, one per row, or adapted to the length."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from mathppo.errors import BadSetting
from mathppo.ppo.arguments import require_per_row, require_range


def length_adaptive_lambda(lengths: Shaped[Tensor, " B"], alpha: float) -> Float[Tensor, " B"]:
    """Return `1 - 1 / (alpha * length)`, clipped to [0, 1]: lambda grows so that the outcome reaches the first token.

    Args:
        lengths: steps of each completion (True positions of its mask).
        alpha: share of the length that credit spans, above 0; VAPO uses 0.05.

    Returns:
        float64, one lambda per row; 0 for rows with `alpha * length <= 1`.

    Raises:
        BadSetting: alpha is not above 0.

    Source: Yue et al. 2025, "VAPO: Efficient and Reliable Reinforcement Learning for Advanced Reasoning Tasks"
    (https://arxiv.org/abs/2504.05118), length-adaptive GAE.

    >>> length_adaptive_lambda(torch.tensor([10, 100]), 0.1)
    tensor([0.0000, 0.9000], dtype=torch.float64)
    """
    if not alpha > 0.0:
        raise BadSetting(f"length_adaptive_lambda: expected alpha above 0, got {alpha!r}; VAPO uses 0.05")
    return 1.0 - 1.0 / (alpha * lengths.double()).clamp(min=1.0)


def lambda_per_row(lam: float | Float[Tensor, " B"], values: Float[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """Return lambda as float64 [B], one per row of `values`.

    Raises:
        BadInput: `lam` has another number of rows.
        BadSetting: lambda is outside [0, 1].
    """
    if not isinstance(lam, Tensor):
        require_range("gae", "lam", lam, 0.0, 1.0)
        return torch.full((len(values),), lam, dtype=torch.float64, device=values.device)
    if lam.dim() > 0:
        require_per_row("gae", len(values), lam=lam)
    if not bool(((lam >= 0.0) & (lam <= 1.0)).all()):
        raise BadSetting(f"gae: expected lam in [0, 1] for every row, got {lam.tolist()}; correct the setting")
    return lam.to(values.device, torch.float64).expand(len(values))
