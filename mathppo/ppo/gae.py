"""Generalised advantage estimation over completions, and where the reward is placed.

`values[t]` is V(prompt + completion[:t]), the state in which token t is chosen; the stop token is an action. A masked
position (padding, or text that the policy did not sample) is not an episode step: it neither discounts nor decays,
and what stands there is not read, even where it is NaN.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from mathppo.errors import BadSetting
from mathppo.ppo.arguments import as_float, as_mask, keep, require_per_row, require_range, require_same_shape

BLOCK_STEPS = 16
"""Steps that one multiplication by a matrix of powers covers; 16 was the fastest of 16, 32 and 64 on a CPU."""

CHUNK_STEPS = 2**19
"""Steps, padding included, that a CPU works on at one time: few enough to stay in its cache, and below the size at
which the C library hands freed memory back and pays for each page again. All at once takes twice the time."""


@torch.no_grad()
def gae(
    token_rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    completion_mask: Shaped[Tensor, "B T"],
    bootstrap_values: Float[Tensor, " B"],
    *,
    gamma: float = 1.0,
    lam: float | Float[Tensor, " B"] = 1.0,
) -> Float[Tensor, "B T"]:
    """Advantages, as an exponentially weighted sum of temporal-difference residuals over a row's True steps.

    `residual[t] = token_rewards[t] + gamma * V(next True step) - values[t]`, where the last True step's successor is
    worth `bootstrap_values`; `A[t] = residual[t] + gamma * lam * A[next True step]`.

    Args:
        token_rewards: reward on each step, from `token_rewards`.
        values: V before each token is emitted.
        completion_mask: True = a token that the behaviour policy sampled: an episode step.
        bootstrap_values: V after the whole completion where truncated and wanted, exactly 0 where terminated.
        gamma: discount per step, in [0, 1].
        lam: lambda in [0, 1], one for all rows or one per row; see `length_adaptive_lambda`.

    Returns:
        Advantages without gradient, at least float32, 0 at masked steps. Return targets are `advantages + values`.

    Raises:
        BadInput: shapes differ.
        BadSetting: gamma or lambda is outside [0, 1].

    Source: Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation",
    equation 16.

    >>> V = torch.tensor([[0.2, 0.3, 0.4]])
    >>> gae(torch.tensor([[0.0, 0.0, 1.0]]), V, torch.ones(1, 3, dtype=torch.bool), torch.zeros(1), lam=0.95)
    tensor([[0.7365, 0.6700, 0.6000]])
    """
    require_same_shape("gae", token_rewards=token_rewards, values=values, completion_mask=completion_mask)
    require_per_row("gae", len(values), bootstrap_values=bootstrap_values)
    require_range("gae", "gamma", gamma, 0.0, 1.0)
    _require_lambda(lam, len(values))
    mask = as_mask(completion_mask)
    rewards, values = as_float(token_rewards), as_float(values)
    dtype = torch.promote_types(rewards.dtype, values.dtype)
    rewards, values, bootstrap = rewards.to(dtype), values.to(dtype), bootstrap_values.to(dtype)
    lams = None
    if gamma != 1.0 or isinstance(lam, Tensor) or lam != 1.0:
        lams = torch.as_tensor(lam, dtype=torch.float64, device=values.device).expand(len(values))
    advantages, zero = torch.empty_like(values), values.new_zeros(())
    for rows in _row_chunks(values):
        some_lams = None if lams is None else lams[rows]
        unmasked = _gae_rows(rewards[rows], values[rows], mask[rows], bootstrap[rows], gamma, some_lams)
        torch.where(mask[rows], unmasked, zero, out=advantages[rows])
    return advantages


def token_rewards(
    outcome: Float[Tensor, " B"],
    completion_mask: Shaped[Tensor, "B T"],
    kl: Float[Tensor, "B T"] | None = None,
    *,
    kl_coef: float = 0.0,
) -> Float[Tensor, "B T"]:
    """The outcome on each row's last True step, minus `kl_coef * kl` on every True step.

    Args:
        outcome: one reward per rollout.
        completion_mask: True = a token that the behaviour policy sampled.
        kl: per-token estimate of KL(policy ‖ reference) in nats, normally k1; not read at masked steps.
        kl_coef: reward per nat, at least 0.

    Returns:
        At least float32, 0 at masked steps. A row without a True step has nowhere to put its outcome and stays 0.

    Raises:
        BadInput: shapes differ.
        BadSetting: `kl_coef` is negative, or is set while `kl` is not given.

    Source: Ziegler et al. 2019, "Fine-Tuning Language Models from Human Preferences", equation 2; InstructGPT
    (Ouyang et al. 2022), equation 2.

    >>> token_rewards(torch.tensor([1.0]), torch.tensor([[True, True, False]]))
    tensor([[0., 1., 0.]])
    """
    require_same_shape("token_rewards", completion_mask=completion_mask, kl=kl)
    require_per_row("token_rewards", len(completion_mask), outcome=outcome)
    require_range("token_rewards", "kl_coef", kl_coef, 0.0, float("inf"))
    if kl is None and kl_coef != 0.0:
        raise BadSetting(f"token_rewards: expected kl beside kl_coef={kl_coef!r}, got none; pass kl or set kl_coef=0")
    mask = as_mask(completion_mask)
    outcome = as_float(outcome)
    later_steps = mask.flip(1).cumsum(1).flip(1)
    rewards = keep(outcome[:, None].expand(mask.shape), mask & (later_steps == 1))
    return rewards if kl is None or kl_coef == 0.0 else rewards - kl_coef * keep(kl, mask)


def length_adaptive_lambda(lengths: Shaped[Tensor, " B"], alpha: float) -> Float[Tensor, " B"]:
    """Lambda that grows with the completion, so that the outcome reaches the first token of a long one.

    `1 - 1 / (alpha * length)`, clipped to [0, 1]: the weights of the residuals reach about `alpha * length` steps back.

    Args:
        lengths: steps of each completion (True positions of its mask).
        alpha: share of the length that the credit spans, above 0; VAPO uses 0.05.

    Returns:
        float64, one lambda per row; 0 for rows with `alpha * length <= 1`.

    Raises:
        BadSetting: alpha is not above 0.

    Source: Yue et al. 2025, "VAPO: Efficient and Reliable Reinforcement Learning for Advanced Reasoning Tasks",
    length-adaptive GAE.

    >>> length_adaptive_lambda(torch.tensor([10, 100]), 0.1)
    tensor([0.0000, 0.9000], dtype=torch.float64)
    """
    if not alpha > 0.0:
        raise BadSetting(f"length_adaptive_lambda: expected alpha above 0, got {alpha!r}; VAPO uses 0.05")
    span = (alpha * lengths.double()).clamp(min=1.0)
    return 1.0 - 1.0 / span


def suffix_sums(x: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """`sum(x[:, t:])` for every t."""
    return x.flip(1).cumsum(1).flip(1)


def discounted_suffix_sums(x: Float[Tensor, "B T"], decay: Float[Tensor, " B"]) -> Float[Tensor, "B T"]:
    """`y[t] = x[t] + decay * y[t + 1]`, by a blocked scan: no loop over steps.

    Each block of `BLOCK_STEPS` is one product with a triangular matrix of powers. The blocks' own heads are a sequence
    of the same kind with decay `decay ** BLOCK_STEPS`, so it calls itself on them, and each block then takes over its
    successor's head on its last step.

    Args:
        x: any finite numbers; it may be overwritten.
        decay: in [0, 1], one per row; float64, so that high powers stay exact.
    """
    rows, width = x.shape
    if width <= BLOCK_STEPS:
        return torch.matmul(x[:, None], _powers(decay, width).to(x.dtype))[:, 0]
    blocks = functional.pad(x, (0, -width % BLOCK_STEPS)) if width % BLOCK_STEPS else x.contiguous()
    blocks = blocks.view(rows, -1, BLOCK_STEPS)
    powers = _powers(decay, BLOCK_STEPS).to(x.dtype)
    heads = torch.matmul(blocks, powers[:, :, :1])[..., 0]
    heads = discounted_suffix_sums(heads, decay**BLOCK_STEPS)
    blocks[:, :-1, -1] += decay.to(x.dtype)[:, None] * heads[:, 1:]
    return torch.matmul(blocks, powers).view(rows, -1)[:, :width]


def _row_chunks(values: Float[Tensor, "B T"]) -> Iterator[slice]:
    """Slices of rows that together are all of them; a GPU takes all at once."""
    rows, width = values.shape
    size = max(1, CHUNK_STEPS // max(1, width)) if values.device.type == "cpu" else max(1, rows)
    return (slice(start, start + size) for start in range(0, rows, size))


def _gae_rows(
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    bootstrap: Float[Tensor, " B"],
    gamma: float,
    lams: Float[Tensor, " B"] | None,
) -> Float[Tensor, "B T"]:
    """GAE by the cheapest form that is exact; without `lams`, gamma and lambda are 1. Masked steps hold anything."""
    if lams is None or values.shape[1] == 0:
        # Residuals telescope to what is still to come minus V, which a plain sum gives.
        return suffix_sums(keep(rewards, mask)).add_(bootstrap[:, None]).sub_(values)
    ends = _run_ends(mask)
    if bool((ends[0].diff() == 0).any()):
        return _gae_with_gaps(rewards, values, mask, bootstrap, gamma, lams)
    return _gae_one_run(rewards, values, mask, bootstrap, gamma, lams, ends)


def _powers(decay: Float[Tensor, " B"], steps: int) -> Float[Tensor, "B steps steps"]:
    """`[b, i, t] = decay[b] ** (i - t)` where `i >= t`, else 0: `x @ powers` is the discounted suffix sum."""
    step = torch.arange(steps, device=decay.device)
    distance = step[:, None] - step[None, :]
    return torch.where(distance >= 0, decay[:, None, None] ** distance.clamp(min=0), 0.0)


def _run_ends(mask: Bool[Tensor, "B T"]) -> tuple[Int[Tensor, " N"], Int[Tensor, " N"]]:
    """Rows and columns of the True steps whose right neighbour is not True; a row seen twice has a gap."""
    ends = mask.clone()
    ends[:, :-1] &= ~mask[:, 1:]
    # One flat search: `nonzero` on two dims takes three times as long, a third of the whole function.
    flat = ends.flatten().nonzero()[:, 0]
    rows = torch.div(flat, mask.shape[1], rounding_mode="floor")
    return rows, flat - rows * mask.shape[1]


def _gae_one_run(
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    bootstrap: Float[Tensor, " B"],
    gamma: float,
    lams: Float[Tensor, " B"],
    ends: tuple[Int[Tensor, " N"], Int[Tensor, " N"]],
) -> Float[Tensor, "B T"]:
    """GAE where each row's True steps are one run; what the scan carries left of the run is for the caller to drop.

    Scans the lambda-return `G[t] = r[t] + gamma * ((1 - lam) * V[t + 1] + lam * G[t + 1])` and takes V off at the end:
    the same number as the sum of residuals, without their cancellation, whose rounding grows with T (note M-ppo-2).
    """
    values = keep(values, mask)
    gains = keep(rewards, mask)
    gains[:, :-1].addcmul_(values[:, 1:], (gamma * (1.0 - lams)).to(values.dtype)[:, None])
    gains[ends] += gamma * bootstrap[ends[0]]
    return discounted_suffix_sums(gains, gamma * lams).sub_(values)


def _gae_with_gaps(
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    bootstrap: Float[Tensor, " B"],
    gamma: float,
    lams: Float[Tensor, " B"],
) -> Float[Tensor, "B T"]:
    """GAE where a row's True steps are interrupted: close the gaps, estimate, put every step back in its place."""
    # Row by row, the k-th True of one mask is the k-th True of the other: no index of a step is ever formed.
    packed_mask = torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True)
    packed_rewards = torch.zeros_like(rewards).masked_scatter_(packed_mask, rewards.masked_select(mask))
    packed_values = torch.zeros_like(values).masked_scatter_(packed_mask, values.masked_select(mask))
    ends = _run_ends(packed_mask)
    packed = _gae_one_run(packed_rewards, packed_values, packed_mask, bootstrap, gamma, lams, ends)
    return torch.zeros_like(values).masked_scatter_(mask, packed.masked_select(packed_mask))


def _require_lambda(lam: float | Float[Tensor, " B"], rows: int) -> None:
    if not isinstance(lam, Tensor):
        require_range("gae", "lam", lam, 0.0, 1.0)
        return
    if lam.dim() > 0:
        require_per_row("gae", rows, lam=lam)
    if not bool(((lam >= 0.0) & (lam <= 1.0)).all()):
        raise BadSetting(f"gae: expected lam in [0, 1] for every row, got {lam.tolist()}; correct the setting")
