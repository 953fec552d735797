"""Slow float64 loops that the tests of `mathppo.ppo` compare with. Imports neither package.

Every function takes plain lists (rows of numbers, rows of booleans) and returns plain lists or floats.
"""

import math

Row = list[float]
Flags = list[bool]


def steps_of(mask: Flags) -> list[int]:
    return [t for t, is_step in enumerate(mask) if is_step]


def gae_row(rewards: Row, values: Row, mask: Flags, bootstrap: float, gamma: float, lam: float) -> Row:
    """By the definition: A[k] = sum over j >= k of (gamma lam)^(j - k) residual[j], over the True steps only."""
    steps = steps_of(mask)
    step_values = [values[t] for t in steps] + [bootstrap]
    residuals = [rewards[t] + gamma * step_values[k + 1] - step_values[k] for k, t in enumerate(steps)]
    advantages = [0.0] * len(mask)
    for k, t in enumerate(steps):
        advantages[t] = math.fsum((gamma * lam) ** (j - k) * residuals[j] for j in range(k, len(steps)))
    return advantages


def gae_row_recursive(rewards: Row, values: Row, mask: Flags, bootstrap: float, gamma: float, lam: float) -> Row:
    """The same by the backward recursion, for completions too long for the double loop."""
    advantages, next_value, next_advantage = [0.0] * len(mask), bootstrap, 0.0
    for t in reversed(steps_of(mask)):
        residual = rewards[t] + gamma * next_value - values[t]
        next_advantage = residual + gamma * lam * next_advantage
        advantages[t], next_value = next_advantage, values[t]
    return advantages


def token_rewards_row(outcome: float, mask: Flags, kl: Row, kl_coef: float) -> Row:
    steps = steps_of(mask)
    return [
        (outcome if t == steps[-1] else 0.0) - kl_coef * kl[t] if is_step else 0.0 for t, is_step in enumerate(mask)
    ]


def discounted_returns_row(rewards: Row, mask: Flags, gamma: float) -> Row:
    steps = steps_of(mask)
    returns = [0.0] * len(mask)
    for k, t in enumerate(steps):
        returns[t] = math.fsum(gamma**j * rewards[later] for j, later in enumerate(steps[k:]))
    return returns


def pick(rows: list[Row], mask: list[Flags]) -> Row:
    return [x for row, flags in zip(rows, mask, strict=True) for x, keep in zip(row, flags, strict=True) if keep]


def mean(numbers: Row) -> float:
    return math.fsum(numbers) / len(numbers) if numbers else 0.0


def variance(numbers: Row) -> float:
    center = mean(numbers)
    return mean([(x - center) ** 2 for x in numbers])


def whiten(rows: list[Row], mask: list[Flags], pools: list[int], shift_mean: bool) -> list[Row]:
    whitened = [[0.0] * len(row) for row in rows]
    for pool in set(pools):
        members = [i for i, label in enumerate(pools) if label == pool]
        numbers = pick([rows[i] for i in members], [mask[i] for i in members])
        center, spread = mean(numbers), math.sqrt(variance(numbers) + 1e-8)
        for i in members:
            for t in steps_of(mask[i]):
                whitened[i][t] = (rows[i][t] - center) / spread + (0.0 if shift_mean else center)
    return whitened


def policy_loss_token(
    logprob: float, old_logprob: float, advantage: float, clip_low: float, clip_high: float, dual_clip: float | None
) -> float:
    """PPO's loss by cases instead of by min and clip."""
    ratio = math.exp(logprob - old_logprob)
    if advantage >= 0:
        return -advantage * (1 + clip_high if ratio > 1 + clip_high else ratio)
    effective = 1 - clip_low if ratio < 1 - clip_low else ratio
    if dual_clip is not None and effective > dual_clip:
        effective = dual_clip
    return -advantage * effective


def value_loss_token(value: float, old_value: float, target: float, clip: float | None) -> float:
    plain = (value - target) ** 2
    if clip is None:
        return plain / 2
    near = min(max(value, old_value - clip), old_value + clip)
    return max(plain, (near - target) ** 2) / 2


def kl_token(logprob: float, ref_logprob: float, kind: str) -> float:
    difference = logprob - ref_logprob
    if kind == "k1":
        return difference
    if kind == "k2":
        return difference * difference / 2
    return math.exp(-difference) - 1 + difference


def softmax(logits: Row, temperature: float) -> Row:
    scaled = [x / temperature for x in logits]
    top = max(scaled)
    weights = [math.exp(x - top) for x in scaled]
    return [w / math.fsum(weights) for w in weights]


def logprob(logits: Row, index: int, temperature: float) -> float:
    scaled = [x / temperature for x in logits]
    top = max(scaled)
    return scaled[index] - top - math.log(math.fsum(math.exp(x - top) for x in scaled))


def entropy(logits: Row, temperature: float) -> float:
    return -math.fsum(p * math.log(p) for p in softmax(logits, temperature) if p > 0)


def leave_one_out(rewards: Row, pools: list[int]) -> Row:
    advantages = []
    for i, reward in enumerate(rewards):
        others = [r for j, r in enumerate(rewards) if j != i and pools[j] == pools[i]]
        advantages.append(reward - mean(others) if others else 0.0)
    return advantages


def explained_variance(values: Row, targets: Row) -> float:
    if variance(targets) == 0:
        return 0.0
    return 1 - variance([target - value for target, value in zip(targets, values, strict=True)]) / variance(targets)
