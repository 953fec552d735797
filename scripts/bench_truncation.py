"""The four truncation settings under a tight token budget, with 3 seeds each: which ones learn to overrun?

Trains the main job's recipe under a budget that cuts off a third of the correct derivations, once per setting and seed,
with one warm start per seed, and prints truncated share, accuracy and length before and after. If the policy learns to
overrun, its truncated share grows, or falls less than with other settings, and its accuracy falls behind. `mask` does
not penalise overrunning; `bootstrap` leaves the penalty to the critic.

The benchmark can be interrupted and resumed. Results do not depend on the load of the machine. It takes about 20
minutes of one core.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import torch
from matplotlib import pyplot as plt

from mathppo.config import Config, load_config
from mathppo.evaluate.accuracy import EvaluationRow
from mathppo.learner.backend import models
from mathppo.metrics import read_rows
from mathppo.pipeline.run_directory import RunDirectory
from mathppo.pipeline.stages.evaluate import read_evaluations
from mathppo.pipeline.train import train
from mathppo.progress import Reporter

POLICIES = ("terminal", "bootstrap", "mask", "penalty")
COLOURS = {"terminal": "#2563eb", "bootstrap": "#9333ea", "mask": "#dc2626", "penalty": "#059669"}
SMOOTHING = 10
"""Number of iterations averaged per point of a curve."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One truncation setting with one seed.

    Args:
        policy: what the end of the budget means.
        seed: of the run.
        before: the warm start on held-out problems, sampled, under the same budget.
        after: the trained policy, likewise.
        curves: the log's numbers by iteration, by name.
    """

    policy: str
    seed: int
    before: EvaluationRow
    after: EvaluationRow
    curves: dict[str, list[float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the runs are kept")
    parser.add_argument("--budget", type=int, default=20, help="tokens; 67 %% of right derivations need no more [20]")
    parser.add_argument("--iterations", type=int, default=60, help="[60]")
    parser.add_argument("--seeds", type=int, default=3, help="[3]")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES, help="[all]")
    parser.add_argument("--figure", type=Path, help="write the curves to this .png or .svg file")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    models.quiet()
    outcomes = []
    # By seed first, so that partial results compare all settings.
    for seed in range(arguments.seeds):
        for policy in arguments.policies:
            print(f"== seed {seed}, {policy}", file=sys.stderr)
            outcomes.append(outcome_of(policy, seed, arguments))
    print(table(outcomes, arguments))
    if arguments.figure:
        draw(outcomes, arguments.figure)
    return 0


def outcome_of(policy: str, seed: int, arguments: argparse.Namespace) -> Outcome:
    """Run or resume one setting with one seed, and return its results."""
    config = configuration(policy, seed, arguments)
    run = train(config, arguments.folder / f"{policy}-{seed}", Reporter())
    rows = [row.metrics for row in read_rows(run.metrics)[1]]
    curves = {name: [number(row[name]) for row in rows] for name in ("truncated_share", "accuracy")}
    return Outcome(policy, seed, sampled(run, 0), sampled(run, arguments.iterations), curves)


def configuration(policy: str, seed: int, arguments: argparse.Namespace) -> Config:
    """Return the settings of the main job under the budget; the first run of a seed makes the warm start."""
    settings = {
        "run.seed": seed,
        "run.iterations": arguments.iterations,
        "generator.max_new_tokens": arguments.budget,
        "learner.truncation": policy,
        # The last fifth of the budget, as in DAPO.
        "reward.overlong_buffer_tokens": max(1, arguments.budget // 5),
        "evaluate.every": 0,
        "evaluate.num_problems_final": 1000,
    }
    if policy != arguments.policies[0]:
        settings["model.path"] = RunDirectory(arguments.folder / f"{arguments.policies[0]}-{seed}").warmstart
    return load_config(None, [(name, str(value)) for name, value in settings.items()])


def sampled(run: RunDirectory, step: int) -> EvaluationRow:
    return next(e.overall for e in read_evaluations(run.evaluation(step)) if e.mode == "sampled")


def number(value: float | list[float]) -> float:
    assert isinstance(value, float)
    return value


def table(outcomes: list[Outcome], arguments: argparse.Namespace) -> str:
    """Return the outcomes as a Markdown table with a row per run and a mean per setting."""
    lines = [
        f"Budget {arguments.budget} tokens, {arguments.iterations} iterations, held-out problems, sampled:",
        "",
        "| policy | seed | truncated | accuracy | accuracy of the finished | mean length |",
        "|---|---|---|---|---|---|",
    ]
    for policy in arguments.policies:
        own = [outcome for outcome in outcomes if outcome.policy == policy]
        cells = [numbers(outcome) for outcome in own]
        lines += [f"| {policy} | {o.seed} | {' | '.join(shown(c))} |" for o, c in zip(own, cells, strict=True)]
        means = [(mean([c[i][0] for c in cells]), mean([c[i][1] for c in cells])) for i in range(len(cells[0]))]
        lines.append(f"| **{policy}** | mean | {' | '.join(shown(means))} |")
    return "\n".join(lines)


def numbers(outcome: Outcome) -> list[tuple[float, float]]:
    """Return each column before and after."""
    rows = (outcome.before, outcome.after)
    names = ("truncated_share", "accuracy", "finished_accuracy", "mean_length_tokens")
    found = [[getattr(row, name) or 0.0 for row in rows] for name in names]
    return [(before, after) for before, after in found]


def shown(columns: list[tuple[float, float]]) -> list[str]:
    return [f"{a:.3f} → {b:.3f}" for a, b in columns[:3]] + [f"{a:.1f} → {b:.1f}" for a, b in columns[3:]]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def draw(outcomes: list[Outcome], file: Path) -> None:
    """Draw truncated share and accuracy of the training rollouts by iteration, a thin line per seed."""
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.6), dpi=160)
    titles = {"truncated_share": "truncated share of rollouts", "accuracy": "accuracy of rollouts"}
    for panel, (name, title) in zip(axes, titles.items(), strict=True):
        for outcome in outcomes:
            values = outcome.curves[name]
            window = min(SMOOTHING, len(values))
            smooth = [mean(values[end - window : end]) for end in range(window, len(values) + 1)]
            label = outcome.policy if outcome.seed == 0 else None
            xs = range(window, len(values) + 1)
            panel.plot(xs, smooth, color=COLOURS[outcome.policy], label=label, linewidth=1.1)
        panel.set(xlabel="iteration", title=title)
        panel.grid(alpha=0.25)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    axes[1].legend(frameon=False)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
