"""Evaluation: grading and statistics of a recorded log, error rates of comparisons, coverage of intervals.

`log` grades and summarises 100,000 recorded samples and fails above 60 s or 1 GiB. `nulls` compares equal policies and
fails if the rate of significant differences is not 5 % plus or minus 1 point. `coverage` fails if 95 % intervals cover
the true value in less than 93 % or more than 97 % of cases. `overhead` (with --model) evaluates GSM8K, or the set of
--benchmark, with the embedded engine, and fails if that takes more than 5 % longer than one generate call of the same
engine for the same prompts; raw generation and the whole command alternate, each in a separate process.
"""

import argparse
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from graders import GraderPool
from mathppo.config import Config, GraderSettings, load_config
from mathppo.evaluate.accuracy import Evaluation, Mode
from mathppo.evaluate.benchmarks import find_card, load_benchmark
from mathppo.evaluate.paired import difference_interval, mcnemar_p, sign_flip_p
from mathppo.evaluate.samples import SAMPLES, Sample
from mathppo.evaluate.statistics import accuracy_interval
from mathppo.generator.base import Request
from mathppo.generator.hf.hf_generator import HFGenerator
from mathppo.pipeline.benchmark_folder import answers_of, grade_samples
from mathppo.pipeline.stages.evaluate import tally
from mathppo.pipeline.stages.generate import sampling_of
from mathppo.prompts import encode_prompt
from mathppo.records import FinishReason, Problem
from mathppo.storage.store import open_log, read_log

MAX_S, MAX_BYTES = 60.0, 1 << 30
STEPS = ("We add the two numbers and get {}.", "Then we halve it, which gives {}.", "So x + {} = 12 and we move on.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["log", "nulls", "coverage"], help="log, nulls, coverage, overhead")
    parser.add_argument("--problems", type=int, default=5_000)
    parser.add_argument("--samples", type=int, default=20, help="of each problem")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2_000)
    parser.add_argument("--model", type=Path, help="overhead: Hugging Face folder")
    parser.add_argument("--benchmark", default="gsm8k", help="overhead: card")
    parser.add_argument("--benchmark-dir", type=Path, help="overhead: where the card's file lies; the hub otherwise")
    parser.add_argument("--limit", type=int, default=0, help="overhead: first problems only")
    parser.add_argument("--rounds", type=int, default=1, help="overhead: times that each side runs")
    parser.add_argument("--set", action="append", default=[], help="overhead: a setting, generator.max_new_tokens=256")
    options = parser.parse_args()
    if options.what == ["raw"]:
        return raw_generation(options)
    passed = True
    if "log" in options.what:
        passed &= bench_log(options.problems, options.samples, options.workers)
    if "nulls" in options.what:
        passed &= bench_nulls(options.repeats)
    if "coverage" in options.what:
        passed &= bench_coverage(options.repeats)
    if "overhead" in options.what:
        passed &= bench_overhead(options)
    return 0 if passed else 1


def bench_log(num_problems: int, num_samples: int, num_workers: int) -> bool:
    """Record a log, then read, grade and summarise it."""
    source = random.Random(0)
    problems = [
        Problem(id=f"p{i}", question=f"Problem {i}?", reference=str(i % 97), level=i % 5 + 1)
        for i in range(num_problems)
    ]
    settings = GraderSettings(num_workers=num_workers)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "samples.jsonl"
        with open_log(log) as out:
            for problem in problems:
                out.append(SAMPLES.encode(recorded(problem, index, source)) for index in range(num_samples))
        size = log.stat().st_size
        started = time.monotonic()
        samples = list(read_log(log, SAMPLES))
        with GraderPool(num_workers=num_workers) as pool:
            by_id = {problem.id: problem for problem in problems}
            graded = grade_samples(pool, settings, samples, by_id, Path(folder) / "verdicts.jsonl", template="plain")
            at_graded = time.monotonic()
            answers = answers_of(samples, graded)
            evaluation: Evaluation = tally("bench", 0, Mode.SAMPLED, problems, answers, pool).evaluation
        finished = time.monotonic()
    row = evaluation.overall
    own, workers = (resource.getrusage(who).ru_maxrss << 10 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    took = finished - started
    print(
        f"log: {len(samples):,} samples, {size >> 20} MiB: graded in {at_graded - started:.1f} s, summarised in "
        f"{finished - at_graded:.1f} s, {took:.1f} s in all; memory {own >> 20} MiB, largest worker "
        f"{workers >> 20} MiB; "
        f"accuracy {row.accuracy or 0:.3f}, pass@{num_samples} {row.pass_at_k[num_samples]:.3f}, "
        f"maj@{num_samples} {row.majority_at_k[num_samples]:.3f}"
    )
    return took < MAX_S and own < MAX_BYTES


def recorded(problem: Problem, index: int, source: random.Random) -> Sample:
    """Return a synthetic sample of about 400 characters; half are correct, wrong answers have a few values."""
    right = source.random() < 0.5
    answer = problem.reference if right else str(source.choice([101, 102, "1/3", "x+1"]))
    text = " ".join(source.choice(STEPS).format(source.randrange(1000)) for _ in range(11))
    return Sample(
        key=f"{problem.id} {index}", identity="bench", benchmark="bench", problem_id=problem.id, sample_index=index,
        completion=f"{text} \\boxed{{{answer}}}", num_tokens=100, finish_reason=FinishReason.STOP, policy_step=0,
        seed=index,
    )  # fmt: skip


def bench_nulls(repeats: int) -> bool:
    """Compare two equally good policies on the same problems, which differ in difficulty."""
    passed = True
    for num_problems, num_samples in ((200, 1), (1319, 1), (200, 4), (30, 32)):
        source = np.random.default_rng(num_problems + num_samples)
        rejected = 0
        for _ in range(repeats):
            skill = source.beta(0.7, 0.7, size=num_problems)
            a, b = (source.binomial(num_samples, skill) for _ in range(2))
            if num_samples == 1:
                p = mcnemar_p(int((a > b).sum()), int((b > a).sum()))
            else:
                p = sign_flip_p((b - a) / num_samples, source, num_flips=1_000)
            rejected += p < 0.05
        rate = rejected / repeats
        passed &= 0.04 <= rate <= 0.06
        test = "mid-p McNemar" if num_samples == 1 else "mid-p permutation"
        print(f"nulls: {num_problems} problems x {num_samples}, {test}: told apart {rate:.1%} of {repeats} times")
    return passed


def bench_coverage(repeats: int) -> bool:
    """Draw problem sets and count how often the intervals cover the true value."""
    passed = True
    for num_problems, num_samples, alpha, beta in (
        (100, 1, 1, 1), (500, 1, 4, 1), (100, 4, 1, 1), (500, 4, 0.5, 0.5), (100, 16, 2, 1), (500, 8, 6, 1),
    ):  # fmt: skip
        source = np.random.default_rng(num_problems * num_samples)
        truth, counts = alpha / (alpha + beta), {"accuracy": 0, "difference": 0}
        for _ in range(repeats):
            skill = source.beta(alpha, beta, size=num_problems)
            a, b = (source.binomial(num_samples, skill) for _ in range(2))
            counts["accuracy"] += holds(accuracy_interval(a, np.full(num_problems, num_samples), source), truth)
            found = difference_interval((b - a) / num_samples, source, num_resamples=2_000)
            counts["difference"] += holds(found, 0.0)
        for name, count in counts.items():
            passed &= 0.93 <= count / repeats <= 0.97
            print(f"coverage: {name}, {num_problems} problems x {num_samples}, mean {truth:.2f}: {count / repeats:.1%}")
    return passed


def overhead_config(options: argparse.Namespace) -> Config:
    parts = (setting.partition("=") for setting in ("problems.template=chat_boxed", *options.set))
    return load_config(None, [(key, value) for key, _, value in parts])


def raw_generation(options: argparse.Namespace) -> int:
    """Generate for all prompts in one call, and print the seconds of that alone, the completions and their tokens."""
    config = overhead_config(options)
    if config.run.num_threads:
        torch.set_num_threads(config.run.num_threads)
    problems = load_benchmark(find_card(options.benchmark), options.benchmark_dir).problems
    problems = problems[: options.limit or None]
    with HFGenerator.from_pretrained(options.model, max_batch_size=config.generator.max_batch_size) as engine:
        sampling = sampling_of(config, engine.tokenizer, temperature=0.0)
        requests = [
            Request(problem_id=p.id, sample_index=0, seed=0, prompt_ids=tuple(
                encode_prompt(p, engine.tokenizer, template=config.problems.template)))
            for p in problems
        ]  # fmt: skip
        started = time.monotonic()
        lengths = [len(rollout.completion_ids) for rollout in engine.generate(requests, sampling)]
        print(time.monotonic() - started, len(lengths), sum(lengths))
    return 0


def bench_overhead(options: argparse.Namespace) -> bool:
    """Alternate raw generation and the whole of `mathppo evaluate`."""
    if options.model is None:
        raise SystemExit("overhead: expected --model FOLDER, for instance what `mathppo import-gguf` wrote")
    where = [f"--limit={options.limit}", *([f"--benchmark-dir={options.benchmark_dir}"] * bool(options.benchmark_dir))]
    raw_s, command_s = [], []
    for _ in range(options.rounds):
        raw = [sys.executable, __file__, "raw", f"--model={options.model}", f"--benchmark={options.benchmark}", *where]
        raw += [f"--set={setting}" for setting in options.set]
        seconds, count, tokens = subprocess.run(raw, check=True, capture_output=True, text=True).stdout.split()
        raw_s.append(float(seconds))
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, "-m", "mathppo.cli", "evaluate", str(options.model), f"--out={out}", *where]
            command += [f"--benchmarks={options.benchmark}", "--problems.template=chat_boxed"]
            command += [f"--{setting}" for setting in options.set]
            started = time.monotonic()
            subprocess.run(command, check=True, capture_output=True)
            command_s.append(time.monotonic() - started)
            logged = sum(sample.num_tokens for sample in read_log(Path(out) / "samples.jsonl", SAMPLES))
        print(
            f"overhead: {count} completions, raw generation {raw_s[-1]:.1f} s ({tokens} tokens), evaluate "
            f"{command_s[-1]:.1f} s ({logged} tokens), {command_s[-1] / raw_s[-1] - 1:+.1%}",
            flush=True,
        )
    ratio = statistics.median(command_s) / statistics.median(raw_s)
    print(f"overhead: evaluate takes {ratio - 1:+.1%} (medians of {options.rounds}); the bar is +5 %")
    return ratio <= 1.05


def holds(bounds: tuple[float, float], value: float) -> bool:
    return bounds[0] <= value <= bounds[1]


if __name__ == "__main__":
    sys.exit(main())
