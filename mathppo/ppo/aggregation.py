"""Loss aggregation: the mean over rollouts that a sum over tokens becomes."""

from typing import Literal, get_args

from jaxtyping import Float, Shaped
from torch import Tensor

from mathppo.errors import BadSetting
from mathppo.ppo.arguments import as_mask

Aggregation = Literal["token_mean", "sequence_mean", "constant_length"]


def loss_weights(
    loss_mask: Shaped[Tensor, "B T"], aggregation: Aggregation, *, max_completion_tokens: int | None = None
) -> tuple[Float[Tensor, "B T"], Float[Tensor, ""]]:
    """Return per-token weights and a denominator that turn a sum of token losses into the named mean.

    | aggregation | token weight | denominator |
    |---|---|---|
    | token_mean | 1: long completions weigh more | number of tokens |
    | sequence_mean | 1 / completion length: each completion weighs the same | number of completions |
    | constant_length | 1, independent of the batch's lengths | number of completions times `max_completion_tokens` |

    Call it once on all rows of an optimizer step, slice the weights by micro-batch, and use the same denominator for
    every micro-batch (summed over ranks). A completion without a True step is not counted.

    Args:
        loss_mask: True = this step is trained on.
        aggregation: one of the three names.
        max_completion_tokens: the generator's budget; only for constant_length.

    Returns:
        `(weights, denominator)`, float32, for `losses.policy_loss(..., weights=, denominator=)`.

    Raises:
        BadSetting: an unknown aggregation, or constant_length without a budget of at least 1.

    Source: token_mean: Yu et al. 2025, "DAPO" (https://arxiv.org/abs/2503.14476), section 3.3; sequence_mean: Shao et
    al. 2024, "DeepSeekMath" (https://arxiv.org/abs/2402.03300), eq. 3; constant_length: Liu et al. 2025, "Understanding
    R1-Zero-Like Training" (https://arxiv.org/abs/2503.20783), section 3.

    >>> import torch
    >>> weights, denominator = loss_weights(torch.tensor([[1, 0], [1, 1]]), "sequence_mean")
    >>> weights / denominator
    tensor([[0.5000, 0.0000],
            [0.2500, 0.2500]])
    """
    mask = as_mask(loss_mask)
    lengths = mask.sum(1, keepdim=True).float()
    num_completions = (lengths > 0).sum().float()
    ones = mask.float()
    if aggregation == "token_mean":
        return ones, lengths.sum()
    if aggregation == "sequence_mean":
        return ones / lengths.clamp(min=1.0), num_completions
    if aggregation == "constant_length":
        if max_completion_tokens is None or max_completion_tokens < 1:
            raise BadSetting(
                f"loss_weights: expected max_completion_tokens of at least 1 for constant_length, "
                f"got {max_completion_tokens!r}; pass the generator's budget"
            )
        return ones, num_completions * max_completion_tokens
    raise BadSetting(
        f"loss_weights: expected aggregation to be one of {', '.join(get_args(Aggregation))}, got {aggregation!r}"
    )
