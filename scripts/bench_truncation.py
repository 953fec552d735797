"""What the end of a tight token budget should mean: the four truncation policies, 3 seeds each, does any overrun?

Trains the main job's recipe under a budget that cuts off part of the right derivations, once per policy and seed, and
prints for each the truncated share and the held-out accuracy before and after. A policy that learns to overrun shows
as a truncated share that grows while the reward falls. `mask` pays nothing for overrunning and takes nothing, so that
it is the one to watch; `bootstrap` leaves it to the critic.

Touches: argv, stdout, run directories under the folder that is given.
"""

import argparse
import sys
from pathlib import Path

import torch

from mathppo.config import load_config
from mathppo.metrics import read_rows
from mathppo.pipeline import train
from mathppo.pipeline.evaluate import read_evaluations
from mathppo.progress import Reporter

POLICIES = ("terminal", "bootstrap", "mask", "penalty")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", type=Path, help="where the runs are kept; a run that is there already is not repeated"
    )
    parser.add_argument("--budget", type=int, default=16, help="tokens; a right derivation takes 18 in the mean")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"budget {arguments.budget} tokens, {arguments.iterations} iterations")
    print(f"{'policy':<12}{'seed':>5}{'truncated':>22}{'sampled accuracy':>22}{'mean length':>18}")
    for policy in POLICIES:
        for seed in range(arguments.seeds):
            print(line(policy, seed, arguments), flush=True)
    return 0


def line(policy: str, seed: int, arguments: argparse.Namespace) -> str:
    """Run one policy with one seed, and give its row of the table: first and last of each number."""
    config = load_config(
        None,
        [
            ("run.seed", str(seed)),
            ("run.iterations", str(arguments.iterations)),
            ("generator.max_new_tokens", str(arguments.budget)),
            ("learner.truncation", policy),
            ("evaluate.every", "0"),
            ("evaluate.num_problems_final", "500"),
        ],
    )
    run = train(config, arguments.folder / f"{policy}-{seed}", Reporter())
    rows = [row.metrics for row in read_rows(run.metrics)[1]]
    accuracies = [
        next(e.overall.accuracy or 0.0 for e in read_evaluations(run.evaluation(step)) if e.mode == "sampled")
        for step in (0, arguments.iterations)
    ]
    truncated = [mean([float(row["truncated_share"]) for row in part]) for part in (rows[:5], rows[-5:])]  # type: ignore[arg-type]
    lengths = [mean([float(row["length_mean_tokens"]) for row in part]) for part in (rows[:5], rows[-5:])]  # type: ignore[arg-type]
    return (
        f"{policy:<12}{seed:>5}{truncated[0]:>12.1%} to {truncated[1]:>6.1%}"
        f"{accuracies[0]:>12.1%} to {accuracies[1]:>6.1%}{lengths[0]:>10.1f} to {lengths[1]:>4.1f}"
    )


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


if __name__ == "__main__":
    sys.exit(main())
