"""The main job with several seeds, compared with RLOO, a random reward, and more supervised training.

All runs of a seed share one warm start: PPO as in the quickstart recipe; RLOO with as many rollouts; PPO with a coin
flip as reward; and supervised training for as long as PPO took, on the derivations of the warm start and on
derivations without mistakes (an answer key that PPO never sees). Prints a table, the time split of an iteration, and
whether each threshold is met; the exit code is 1 if one is not.
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")

import torch
from matplotlib import pyplot as plt

from mathppo.config import Config, load_config
from mathppo.evaluate.accuracy import Evaluation, Mode
from mathppo.generator.hf.hf_generator import HFGenerator
from mathppo.learner.backend import models
from mathppo.learner.supervised import make_optimizer, supervised_step
from mathppo.pipeline.run_directory import RunDirectory
from mathppo.pipeline.stages.evaluate import Policy, evaluate_held_out, read_evaluations
from mathppo.pipeline.stages.grade import open_pool
from mathppo.pipeline.stages.warmstart import draw_examples
from mathppo.pipeline.train import train
from mathppo.progress import Reporter
from mathppo.recipes import recipe_path
from mathppo.storage.store import PROBLEMS, read_artefact

MIN_GAIN = 0.35
MIN_FINAL = 0.90
MAX_WARMSTART = 0.55
MAX_OTHER_SHARE = 0.05
MAX_WALL_S = 360.0
VARIANTS = ("ppo", "rloo", "random reward", "supervised", "supervised without slips")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One training run from a warm start.

    Args:
        seed: of the run.
        variant: one of `VARIANTS`.
        before: held-out evaluations of the warm start, by mode.
        after: of the trained policy, by mode.
        train_s: seconds of training, without warm start and evaluations.
    """

    seed: int
    variant: str
    before: dict[str, Evaluation]
    after: dict[str, Evaluation]
    train_s: float


def main() -> int:
    """Run the missing runs, print the table, and return 0 if each threshold is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2", help="run seeds, comma-separated [0,1,2]")
    parser.add_argument("--out", type=Path, default=Path("runs/bench_quickstart"), help="[runs/bench_quickstart]")
    parser.add_argument("--figure", type=Path, help="write the learning curves to this .png or .svg file")
    parser.add_argument("--only-ppo", action="store_true", help="leave the three others out")
    options = parser.parse_args()
    models.quiet()
    outcomes = []
    for seed in (int(text) for text in options.seeds.split(",")):
        outcomes += run_seed(seed, options.out, only_ppo=options.only_ppo)
    print_outcomes(outcomes)
    if options.figure:
        draw(options.out, outcomes, options.figure)
    return 0 if check_bars(options.out, outcomes) else 1


def configuration(seed: int, **overrides: str) -> Config:
    settings = [(key.replace("__", "."), value) for key, value in overrides.items()]
    return load_config(recipe_path("quickstart"), [("run.seed", str(seed)), *settings])


def run_seed(seed: int, out: Path, *, only_ppo: bool) -> list[Outcome]:
    ppo = run_variant(seed, "ppo", out, configuration(seed))
    if only_ppo:
        return [ppo]
    warmstart = str(run_folder(out, seed, "ppo").warmstart)
    rloo = configuration(
        seed,
        model__path=warmstart,
        learner__algorithm="rloo",
        generator__prompts_per_iteration="32",
        generator__samples_per_prompt="4",
    )
    coin = configuration(seed, model__path=warmstart, reward__kind="random")
    return [
        ppo,
        run_variant(seed, "rloo", out, rloo),
        run_variant(seed, "random reward", out, coin),
        supervise(seed, "supervised", out, configuration(seed), ppo),
        supervise(seed, "supervised without slips", out, configuration(seed, warmstart__slip_rate="0"), ppo),
    ]


def run_folder(out: Path, seed: int, variant: str) -> RunDirectory:
    return RunDirectory(out / f"seed{seed}-{variant.replace(' ', '-')}")


def run_variant(seed: int, variant: str, out: Path, config: Config) -> Outcome:
    print(f"== seed {seed}, {variant}", file=sys.stderr)
    run = train(config, run_folder(out, seed, variant).root, Reporter())
    seconds = json.loads(run.summary.read_text())["wall_s"]
    stages = ("critic_pretraining", "generate", "grade", "learn", "other", "checkpoint")
    return Outcome(
        seed,
        variant,
        before=by_mode(read_evaluations(run.evaluation(0))),
        after=by_mode(read_evaluations(run.evaluation(config.run.iterations))),
        train_s=sum(seconds.get(stage, 0.0) for stage in stages),
    )


def supervise(seed: int, variant: str, out: Path, config: Config, ppo: Outcome) -> Outcome:
    """Continue supervised training for as long as PPO took, with a learning rate that decays to a tenth."""
    budget_s = ppo.train_s
    print(f"== seed {seed}, {variant} for {budget_s:.0f} s", file=sys.stderr)
    run, folder = run_folder(out, seed, "ppo"), run_folder(out, seed, variant).root
    if not all((folder / f"{mode}.json").is_file() for mode in Mode):
        warm = run.warmstart / "policy"
        policy, tokenizer = models.load_policy(warm), models.load_tokenizer(warm)
        problems, optimizer = read_artefact(run.train_problems, PROBLEMS), make_optimizer(policy)
        started, step = time.monotonic(), config.warmstart.steps
        while (spent := time.monotonic() - started) < budget_s:
            rate = config.warmstart.lr / 3 * (1.0 - 0.9 * spent / budget_s)
            supervised_step(policy, optimizer, draw_examples(problems, tokenizer, config, step), lr=rate)
            step += 1
        engine = HFGenerator(policy, tokenizer, max_batch_size=config.generator.max_batch_size)
        held_out = read_artefact(run.held_out_problems, PROBLEMS)
        with open_pool(config.grader) as pool:
            policy = Policy(engine, tokenizer, "step 0", weights=str(step), step=0)
            for mode in Mode:
                evaluate_held_out(policy, pool, held_out, config, folder, mode)
    return Outcome(seed, variant, ppo.before, by_mode(read_evaluations(folder)), budget_s)


def by_mode(evaluations: list[Evaluation]) -> dict[str, Evaluation]:
    return {str(evaluation.mode): evaluation for evaluation in evaluations}


def accuracy(evaluation: Evaluation) -> float:
    return evaluation.overall.accuracy or 0.0


def print_outcomes(outcomes: list[Outcome]) -> None:
    print("| seed | training | greedy before | greedy after | sampled before | sampled after | training s |")
    print("|---|---|---|---|---|---|---|")
    for outcome in outcomes:
        cells = [
            f"{accuracy(e):.3f} [{e.overall.low:.3f}, {e.overall.high:.3f}]"
            for mode in Mode
            for e in (outcome.before[mode], outcome.after[mode])
        ]
        print(f"| {outcome.seed} | {outcome.variant} | {' | '.join(cells)} | {outcome.train_s:.0f} |")


def check_bars(out: Path, outcomes: list[Outcome]) -> bool:
    met = True

    def bar(text: str, holds: bool) -> None:
        nonlocal met
        met &= holds
        print(f"{'met ' if holds else 'MISS'}  {text}")

    print(f"\n{torch.get_num_threads()} threads, torch {torch.__version__}")
    for outcome in (outcome for outcome in outcomes if outcome.variant == "ppo"):
        before, after = accuracy(outcome.before["greedy"]), accuracy(outcome.after["greedy"])
        run = run_folder(out, outcome.seed, "ppo")
        wall = json.loads(run.summary.read_text())["wall_s"]
        parts = {name: wall.get(name, 0.0) for name in ("generate", "grade", "learn")}
        rest = wall.get("other", 0.0) + wall.get("checkpoint", 0.0)
        total = sum(parts.values()) + rest
        split = ", ".join(f"{name} {seconds / total:.1%}" for name, seconds in {**parts, "other": rest}.items())
        name = f"seed {outcome.seed}"
        bar(
            f"{name}: greedy {before:.3f} to {after:.3f}, gain {after - before:+.3f} >= {MIN_GAIN}",
            after - before >= MIN_GAIN,
        )
        bar(f"{name}: final greedy {after:.3f} >= {MIN_FINAL}", after >= MIN_FINAL)
        bar(f"{name}: warm start {before:.3f} < {MAX_WARMSTART}", before < MAX_WARMSTART)
        bar(f"{name}: an iteration is {split}; other < {MAX_OTHER_SHARE:.0%}", rest / total < MAX_OTHER_SHARE)
        bar(f"{name}: whole job {wall['total']:.0f} s < {MAX_WALL_S:.0f} s", wall["total"] < MAX_WALL_S)
    return met


def draw(out: Path, outcomes: list[Outcome], file: Path) -> None:
    """Draw held-out greedy accuracy over training of PPO, RLOO and random reward, one line per seed."""
    colours: dict[str, Any] = {"ppo": "#2563eb", "rloo": "#9333ea", "random reward": "#dc2626"}
    figure, axes = plt.subplots(figsize=(7.2, 4.0), dpi=160)
    for outcome in outcomes:
        if outcome.variant not in colours:
            continue
        run, points = run_folder(out, outcome.seed, outcome.variant), []
        for folder in sorted((run.root / "evaluations").iterdir()):
            row = by_mode(read_evaluations(folder))["greedy"].overall
            points.append((int(folder.name) * 128, row.accuracy or 0.0, row.low, row.high))
        rollouts, values, low, high = zip(*points, strict=True)
        label = outcome.variant if outcome.seed == outcomes[0].seed else None
        axes.plot(rollouts, values, color=colours[outcome.variant], label=label, marker="o", markersize=3)
        axes.fill_between(rollouts, low, high, color=colours[outcome.variant], alpha=0.12, linewidth=0)
    supervised = [accuracy(outcome.after["greedy"]) for outcome in outcomes if outcome.variant == "supervised"]
    for index, value in enumerate(supervised):
        label = "supervised, same wall time" if index == 0 else None
        axes.axhline(value, color="#6b7280", linestyle=":", linewidth=1.2, label=label)
    axes.set(xlabel="graded rollouts", ylabel="held-out greedy accuracy", ylim=(0, 1))
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="center right")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
