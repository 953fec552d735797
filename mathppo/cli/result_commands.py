"""Commands on results: `evaluate --benchmarks`, `compare`, `score` and `export`, and what they print."""

import argparse
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import msgspec
from rich.console import Console

from mathppo.config import Config
from mathppo.errors import BadSetting
from mathppo.evaluate.benchmarks import Benchmark, load_benchmark, parse_benchmarks
from mathppo.evaluate.compare import compare_results
from mathppo.evaluate.result import Result
from mathppo.evaluate.tables import percent
from mathppo.pipeline.benchmark_folder import read_results
from mathppo.pipeline.stages.evaluate import Policy, evaluate_benchmarks
from mathppo.pipeline.stages.export import export
from mathppo.pipeline.stages.generate import check_size
from mathppo.pipeline.stages.grade import open_pool
from mathppo.pipeline.stages.rescore import rescore
from mathppo.progress import Reporter
from mathppo.report import comparison_tables, terminal_tables
from mathppo.storage.files import write_record

NUM_LISTED = 10
"""Wins, losses and flips listed on the terminal; files list all."""


def print_table(run_dir: Path) -> None:
    """Print the before/after table of a run on standard output."""
    console = Console(width=None)
    for table in terminal_tables(run_dir, console.width):
        console.print(table)


def run_benchmarks(
    options: argparse.Namespace, config: Config, policies: Iterable[Callable[[], Policy]], reporter: Reporter
) -> int:
    """Evaluate each policy on the benchmarks, and print one line per set and prompt."""
    benchmarks = [
        (_head(load_benchmark(card, options.benchmark_dir, golds=options.golds), options.limit), samples)
        for card, samples in parse_benchmarks(options.benchmarks)
    ]
    for benchmark, samples in benchmarks:
        check_size(benchmark.card.name, len(benchmark.problems), samples)
    templates = (options.templates or config.problems.template).split(",")
    results: list[Result] = []
    with open_pool(config.grader) as pool:
        for load in policies:
            policy = load()
            with closing(policy.engine):
                for template in templates:
                    for result in evaluate_benchmarks(
                        policy, pool, benchmarks, template.strip(), config, options.out, system=options.system_prompt,
                        golds=options.golds, reporter=reporter,
                    ):  # fmt: skip
                        if result.first_prompt is not None and result.benchmark not in {r.benchmark for r in results}:
                            reporter.say(f"{result.benchmark}, first prompt:\n{result.first_prompt.text}")
                        print(describe_result(result))
                        results.append(result)
    if len({result.template for result in results}) > 1:
        print(describe_sensitivity(results))
    print(f"{options.out}/table.md and table.csv")
    return 0


def describe_result(result: Result) -> str:
    """Return one line with an accuracy, its interval, and the shares that explain it."""
    row = result.evaluation.overall
    parts = [
        f"{result.label} {result.model}: accuracy {percent(row.accuracy)} [{percent(row.low)}, {percent(row.high)}]",
        f"{row.num_problems} problems x {result.evaluation.samples_per_problem}",
    ]
    for name, by_k in (("pass", row.pass_at_k), ("maj", row.majority_at_k)):
        if by_k:
            parts.append(f"{name}@{max(by_k)} {percent(by_k[max(by_k)])}")
    parts += [
        f"truncated {percent(row.truncated_share)}",
        f"no answer {percent(row.no_answer_share)}",
        f"unparsable {percent(row.unparsable_share)}",
        f"over budget {percent(row.over_budget_share)}",
        f"grader error {percent(row.error_share)}",
        f"tokens {row.mean_length_tokens:.0f} (95 %: {row.p95_length_tokens:.0f})",
        f"of finished {percent(row.finished_accuracy)}",
    ]
    return ", ".join(parts)


def describe_sensitivity(results: Iterable[Result]) -> str:
    """Return how much each policy's accuracy on each set depends on the prompt."""
    by_set: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for result in results:
        accuracy = result.evaluation.overall.accuracy
        if accuracy is not None:
            by_set.setdefault((result.model, result.benchmark), []).append((accuracy, result.template))
    lines = []
    for (model, benchmark), found in by_set.items():
        (low, worst), (high, best) = min(found), max(found)
        lines.append(
            f"{model} on {benchmark}: {percent(low)} ({worst}) to {percent(high)} ({best}) over {len(found)} prompts, "
            f"{100 * (high - low):.1f} points apart"
        )
    return "\n".join(lines)


def compare(options: argparse.Namespace) -> int:
    """Compare the results of the first folder with those of each other one, and print the differences."""
    if len(options.folders) < 2:
        raise BadSetting(f"compare: expected at least two folders, got {len(options.folders)}")
    baseline, *others = [read_results(folder) for folder in options.folders]
    comparison = compare_results(baseline, others, force=options.force)
    console = Console(width=None)
    for table in comparison_tables(comparison, console.width):
        console.print(table)
    for one in comparison.sets:
        print(one.sentence)
        for name, ids in (("wins", one.wins), ("losses", one.losses)):
            more = f" and {len(ids) - NUM_LISTED} more" if len(ids) > NUM_LISTED else ""
            print(f"  {len(ids)} {name}: {', '.join(ids[:NUM_LISTED])}{more}" if ids else f"  no {name}")
        for note in one.notes:
            print(f"  forced: {note}")
    if options.out is not None:
        write_record(options.out, comparison)
        print(options.out)
    return 0


def score(options: argparse.Namespace) -> int:
    """Grade a log again and print the changes."""
    config: Config = options.config
    new = msgspec.structs.replace(config.grader, name=options.grader or config.grader.name)
    old = msgspec.structs.replace(new, name=options.against) if options.against else None
    report, results = rescore(options.log, new, old, reporter=Reporter())
    for result in results:
        print(describe_result(result))
    print(
        f"{report.num_samples} samples: {report.num_correct_before} right by {report.before}, "
        f"{report.num_correct_after} by {report.after}, {len(report.flips)} flips"
    )
    for kind, count in report.counts:
        print(f"  {count} {kind}")
    for flip in report.flips[:NUM_LISTED]:
        print(
            f"  {flip.problem_id} {flip.sample_index}: {flip.before} ({flip.answer_before!r}) to {flip.after} "
            f"({flip.answer_after!r}), right is {flip.reference!r}: {flip.detail}"
        )
    if len(report.flips) > NUM_LISTED:
        print(f"  and {len(report.flips) - NUM_LISTED} more")
    out: Path = options.log.parent if options.log.is_file() else options.log
    print(f"{out / 'rescored'}")
    return 0


def export_results(options: argparse.Namespace) -> int:
    """Write an evaluation in another harness's format, and print the files."""
    for path in export(options.folder, options.format, options.out, options.config.grader, when_s=time.time()):
        print(path)
    return 0


def _head(benchmark: Benchmark, limit: int) -> Benchmark:
    """Return the first problems of a set, under a name that includes their number."""
    if limit <= 0 or limit >= len(benchmark.problems):
        return benchmark
    card = msgspec.structs.replace(benchmark.card, name=f"{benchmark.card.name}-first{limit}")
    problems = benchmark.problems[:limit]
    kept = {problem.id for problem in problems}
    return Benchmark(card, problems, [name for name in benchmark.corrected if name in kept], benchmark.as_stated)
