"""GAE on long completions: blocked scan against a per-step loop, time and float32 error.

Prints one line per setting. Exits with 1 if [64, 32768] takes more than 10 ms or less than 20 times the loop's speed.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from mathppo.ppo.gae import gae

MAX_MS = 10.0
MIN_SPEEDUP = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--width", type=int, default=32_768, help="completion width in tokens")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1, help="more are faster on free cores [1]")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    batch = draw(arguments.rows, arguments.width)
    rewards, values, mask, bootstrap = batch
    print(f"GAE on [{arguments.rows}, {arguments.width}], {arguments.threads} threads, torch {torch.__version__}")

    loop_ms, loop_median_ms = best_and_median_ms(lambda: per_step_loop(*batch, 1.0, 0.95), 3)
    print(f"{'':<44}{'best':>12}{'median':>12}")
    print(f"{'per-step loop, [B, T], lambda .95':<44}{loop_ms:9.1f} ms{loop_median_ms:9.1f} ms")
    gaps = mask.clone()
    gaps[:, arguments.width // 3 : arguments.width // 2] = False
    row_lams = torch.linspace(0.9, 0.9999, arguments.rows)
    settings: dict[str, Callable[[], Tensor]] = {
        "lambda .95": lambda: gae(*batch, lam=0.95),
        "lambda 1, gamma 1": lambda: gae(*batch),
        "gamma .999, lambda .99": lambda: gae(*batch, gamma=0.999, lam=0.99),
        "one lambda per row": lambda: gae(*batch, lam=row_lams),
        "lambda .95, masked text in between": lambda: gae(rewards, values, gaps, bootstrap, lam=0.95),
    }
    best = {}
    for name, run in settings.items():
        best[name], median = best_and_median_ms(run, arguments.repeats)
        print(f"{name:<44}{best[name]:9.1f} ms{median:9.1f} ms   {loop_ms / best[name]:6.0f} times the loop")
    error = largest_error(batch, 0.95)
    print(f"{'largest float32 error, lambda .95':<44}{error:9.1e}")
    met = best["lambda .95"] < MAX_MS and loop_ms / best["lambda .95"] >= MIN_SPEEDUP
    print(f"bar: under {MAX_MS:g} ms and at least {MIN_SPEEDUP:g} times the loop: {'met' if met else 'MISSED'}")
    return 0 if met else 1


def draw(rows: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw completions of half to all of the width, with a reward of 0 or 1 at the end."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(width // 2, width + 1, (rows, 1), generator=generator)
    mask = torch.arange(width) < lengths
    rewards = torch.zeros(rows, width).scatter_(
        1, lengths - 1, torch.randint(2, (rows, 1), generator=generator).float()
    )
    values = torch.rand(rows, width, generator=generator)
    return rewards, values, mask, torch.zeros(rows)


def per_step_loop(rewards: Tensor, values: Tensor, mask: Tensor, bootstrap: Tensor, gamma: float, lam: float) -> Tensor:
    """Compute GAE by the usual recursion, one column at a time."""
    advantages = torch.zeros_like(values)
    next_value, next_advantage = bootstrap, torch.zeros_like(bootstrap)
    for t in range(values.shape[1] - 1, -1, -1):
        residual = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = residual + gamma * lam * next_advantage
        next_advantage = torch.where(mask[:, t], advantage, next_advantage)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        advantages[:, t] = torch.where(mask[:, t], advantage, 0.0)
    return advantages


def best_and_median_ms(run: Callable[[], Tensor], repeats: int) -> tuple[float, float]:
    """Return the best and the median time; the best is least affected by other load."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times), statistics.median(times)


def largest_error(batch: tuple[Tensor, Tensor, Tensor, Tensor], lam: float) -> float:
    rewards, values, mask, bootstrap = batch
    exact = gae(rewards.double(), values.double(), mask, bootstrap.double(), lam=lam)
    return (gae(*batch, lam=lam) - exact).abs().max().item()


if __name__ == "__main__":
    sys.exit(main())
