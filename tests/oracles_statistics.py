"""Slow and simple statistics, to compare the fast ones with. Imports neither package."""

import itertools
import math
import random


def wilson_by_bisection(num_correct: int, num_samples: int, z: float) -> tuple[float, float]:
    """Solve |p - q| = z * sqrt(q (1 - q) / n) for q on each side of p, as Wilson defined the bounds."""
    p = num_correct / num_samples

    def inside(q: float) -> bool:
        return abs(p - q) <= z * math.sqrt(q * (1 - q) / num_samples)

    def solve(outer: float) -> float:
        inner = p
        for _ in range(200):
            middle = (inner + outer) / 2
            if inside(middle):
                inner = middle
            else:
                outer = middle
        return inner

    return (0.0 if p == 0 else solve(0.0)), (1.0 if p == 1 else solve(1.0))


def pass_at_k_by_counting(num_correct: int, num_samples: int, k: int) -> float:
    """Return the fraction of all subsets of k samples that contain a correct one."""
    samples = [True] * num_correct + [False] * (num_samples - num_correct)
    choices = list(itertools.combinations(samples, k))
    return sum(any(choice) for choice in choices) / len(choices)


def bootstrap_shares(num_correct: list[int], num_samples: list[int], num_resamples: int, seed: int) -> list[float]:
    """Resample problems one index at a time and return the sorted accuracies."""
    source = random.Random(seed)
    shares = []
    for _ in range(num_resamples):
        chosen = [source.randrange(len(num_correct)) for _ in num_correct]
        shares.append(sum(num_correct[i] for i in chosen) / sum(num_samples[i] for i in chosen))
    return sorted(shares)


def share_of_choices(num_correct: int, num_samples: int, k: int, needed: int) -> float:
    """Return the fraction of all subsets of k samples that contain at least `needed` correct ones."""
    samples = [True] * num_correct + [False] * (num_samples - num_correct)
    choices = list(itertools.combinations(samples, k))
    return sum(sum(choice) >= needed for choice in choices) / len(choices)


def sign_flip_by_enumeration(differences: list[float]) -> float:
    """Return the p value over all ways to swap the two sides per problem; ties have half weight."""
    observed = abs(math.fsum(differences))
    sums = [math.fsum(d * s for d, s in zip(differences, signs, strict=True))
            for signs in itertools.product((1, -1), repeat=len(differences))]  # fmt: skip
    if observed < 1e-9:
        return 1.0
    larger = sum(abs(total) > observed + 1e-9 for total in sums)
    ties = sum(abs(abs(total) - observed) <= 1e-9 for total in sums)
    return (larger + ties / 2) / len(sums)
