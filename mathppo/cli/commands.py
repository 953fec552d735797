"""What each verb of `mathppo` does: read artefacts, call a stage, say what came out."""

import argparse
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch
from rich.console import Console

from mathppo.cli import doctor, result_commands
from mathppo.config import Config
from mathppo.errors import BadArtefact, BadInput
from mathppo.evaluate.accuracy import Evaluation, Mode
from mathppo.generator.base import Generator
from mathppo.generator.engines import open_engine
from mathppo.generator.server.server_generator import ServerGenerator
from mathppo.importers.import_gguf import import_gguf
from mathppo.learner import diagnostics
from mathppo.learner.backend import checkpoint, models
from mathppo.learner.backend.micro_batches import choose_device
from mathppo.learner.backend.sharding import DistContext, join
from mathppo.metrics import TRAINING_METRICS, Iteration, append_row
from mathppo.pipeline.preflight import check_device
from mathppo.pipeline.stages.evaluate import Policy, evaluate_held_out
from mathppo.pipeline.stages.generate import choose_problems, generate, make_requests, sampling_of
from mathppo.pipeline.stages.grade import BackgroundGrader, grade, open_pool
from mathppo.pipeline.stages.learn import learn, open_learner, pretrain_critic, require_known_steps
from mathppo.pipeline.stages.prepare import held_out_problems, prepare
from mathppo.pipeline.stages.warmstart import warmstart
from mathppo.pipeline.train import train
from mathppo.progress import SILENT, Reporter
from mathppo.records import Problem
from mathppo.report import terminal_tables, write_report
from mathppo.report.trackers import track
from mathppo.seeds import derive_seed
from mathppo.storage import files, store

LEARNT = (
    *("policy_loss", "value_loss", "explained_variance_outcome", "entropy", "approx_kl", "ref_kl"),
    *("clip_share_high", "clip_share_low", "behaviour_kl", "stale_share", "policy_grad_norm", "critic_grad_norm"),
    *("num_tokens", "num_rollouts_dropped", "num_updates_skipped"),
)
"""Metrics that `learn` prints; its log has all."""


def _train(options: argparse.Namespace) -> int:
    with join(choose_device(options.config.learner).type) as ranks:
        run = train(_configured(options), options.run_dir, _reporter_of(ranks), ranks)
        if ranks.rank == 0:
            print_table(run.root)
            print(f"report: {run.root / 'report.html'}")
    return 0


def _prepare(options: argparse.Namespace) -> int:
    prepare(options.config, options.out, Reporter())
    print(f"{options.out}/train and {options.out}/held_out")
    return 0


def _warmstart(options: argparse.Namespace) -> int:
    problems = store.read_artefact(options.problems, store.PROBLEMS)
    warmstart(_configured(options), problems, options.out, Reporter())
    print(options.out)
    return 0


def _generate(options: argparse.Namespace) -> int:
    config = _configured(options)
    engine, step = _engine(options.checkpoint, config)
    with closing(engine):
        return _generate_with(engine, step, options, config)


def _generate_with(engine: Generator, step: int, options: argparse.Namespace, config: Config) -> int:
    problems = choose_problems(
        store.read_artefact(options.problems, store.PROBLEMS),
        step,
        config.generator.prompts_per_iteration,
        derive_seed(config.run.seed, "train"),
    )
    requests = make_requests(
        problems,
        engine.tokenizer,
        config,
        samples=config.generator.samples_per_prompt,
        purpose=("train", step),
    )
    sampling = sampling_of(config, engine.tokenizer)
    made_from = store.fingerprint(
        weights=checkpoint.weights_id(options.checkpoint), requests=requests, sampling=sampling
    )
    rollouts = generate(engine, requests, sampling, options.out, made_from=made_from, reporter=Reporter())
    truncated = sum(rollout.truncated for rollout in rollouts) / len(rollouts)
    print(f"{options.out}: {len(rollouts)} rollouts of step {step}, {truncated:.1%} truncated")
    return 0


def _grade(options: argparse.Namespace) -> int:
    config: Config = options.config
    rollouts = store.read_artefact(options.rollouts, store.ROLLOUTS)
    if not rollouts:
        raise BadArtefact(f"{options.rollouts}: expected at least one rollout, found none; redo its stage")
    problems = store.read_artefact(options.problems, store.PROBLEMS)
    made_from = store.fingerprint(
        rollouts=store.read_header(options.rollouts, store.ROLLOUTS).sha256,
        problems=store.read_header(options.problems, store.PROBLEMS).sha256,
        settings=[config.grader, config.reward, config.learner.truncation, config.generator.max_new_tokens],
        template=config.problems.template,
    )
    by_id = {problem.id: problem for problem in problems}
    with open_pool(config.grader) as pool:
        grader = BackgroundGrader(pool, by_id, config.problems.template)
        scored = grade(
            grader, rollouts, config, options.out, source=options.rollouts, made_from=made_from, reporter=Reporter()
        )
    row = diagnostics.rollout_metrics(scored)
    print(f"{options.out}: {len(scored)} verdicts, accuracy {row.get('accuracy', 0.0):.3f}")
    return 0


def _learn(options: argparse.Namespace) -> int:
    with join(choose_device(options.config.learner).type) as ranks:
        return _learn_on(ranks, options, _configured(options))


def _learn_on(ranks: DistContext, options: argparse.Namespace, config: Config) -> int:
    """Learn on every process that torchrun started, or on this one; the first one writes and prints."""
    if (options.out / checkpoint.HEADER).is_file():
        raise BadArtefact(f"{options.out}: expected no checkpoint yet, found one; choose another --out")
    files.check_free(options.out)
    scored = store.read_scored(options.scored)
    learner = open_learner(config, options.checkpoint, ranks)
    tokenizer = models.load_tokenizer(options.checkpoint / "policy")
    require_known_steps(learner, scored)  # before the critic's pretraining takes its time
    log = options.out.with_name(f"{options.out.name}.metrics.jsonl")
    if options.critic_rollouts is not None:
        rollouts = store.read_scored(options.critic_rollouts)
        pretrain_critic(learner, rollouts, config, tokenizer, log, _reporter_of(ranks))
    metrics = learn(learner, scored, config, tokenizer)
    if ranks.rank == 0:
        append_row(log, Iteration(iteration=learner.step, metrics=metrics))
    learner.save(options.out, tokenizer)
    if ranks.rank == 0:
        for name in LEARNT:
            if name in metrics:
                unit = TRAINING_METRICS[name].unit.removeprefix("1")  # a pure number has none
                print(f"{name:<28}{metrics[name]:>12.4g} {unit}".rstrip())
        print(f"{options.out}: step {learner.step}; all metrics in {log}")
    return 0


def _reporter_of(ranks: DistContext) -> Reporter:
    """Give what shows progress: the first process does for all."""
    return Reporter() if ranks.rank == 0 else SILENT


def _evaluate(options: argparse.Namespace) -> int:
    config, reporter = _configured(options), Reporter()
    if options.limit < 0:
        raise BadInput(f"--limit: expected a number of problems, or 0 for all, got {options.limit}")
    if options.benchmarks:
        policies = [partial(_policy, path, config) for path in options.checkpoint]
        return result_commands.run_benchmarks(options, config, policies, reporter)
    (path,) = options.checkpoint[:1]
    if len(options.checkpoint) > 1:
        raise BadInput(f"evaluate: expected one checkpoint without --benchmarks, got {len(options.checkpoint)}")
    if options.templates or options.system_prompt:
        raise BadInput(
            "evaluate: expected --templates and --system-prompt beside --benchmarks only; else set problems.template"
        )
    problems = _held_out(options, config)
    problems = problems[: options.limit or config.evaluate.num_problems_final or None]
    engine, step = _engine(path, config)
    with closing(engine), open_pool(config.grader) as pool:
        policy = Policy(engine, engine.tokenizer, f"step {step}", checkpoint.weights_id(path), step)
        for mode in Mode:
            print(describe(evaluate_held_out(policy, pool, problems, config, options.out, mode, reporter=reporter)))
    return 0


def _compare(options: argparse.Namespace) -> int:
    return result_commands.compare(options)


def _score(options: argparse.Namespace) -> int:
    return result_commands.score(options, options.config, Reporter())


def _export(options: argparse.Namespace) -> int:
    return result_commands.export_results(options, options.config)


def _report(options: argparse.Namespace) -> int:
    for folder in (options.run_dir, *options.control):
        if not (folder / "config.toml").is_file():
            raise BadInput(f"{folder}: expected a run directory, found no config.toml there; give train's --run-dir")
    if options.terminal:
        print_table(options.run_dir)
    else:
        print(write_report(options.run_dir, controls=options.control))
    return 0


def _track(options: argparse.Namespace) -> int:
    print(f"{options.to}: {track(options.run_dir, options.to, follow=options.follow)} iterations")
    return 0


def _conformance(options: argparse.Namespace) -> int:
    from mathppo import conformance

    rows = conformance.run(options.kind, options.spec)
    for row in rows:
        print(f"{'pass' if row.passed else 'FAIL'}  {row.name}  {row.detail}  [{row.issue}]")
    return 0 if all(row.passed for row in rows) else 1


def _import_gguf(options: argparse.Namespace) -> int:
    models.quiet()
    print(import_gguf(options.source, options.out))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    return doctor.examine(as_json=options.json)


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = MappingProxyType(
    {
        "train": _train,
        "prepare": _prepare,
        "warmstart": _warmstart,
        "generate": _generate,
        "grade": _grade,
        "learn": _learn,
        "evaluate": _evaluate,
        "compare": _compare,
        "score": _score,
        "export": _export,
        "report": _report,
        "track": _track,
        "conformance": _conformance,
        "import-gguf": _import_gguf,
        "doctor": _doctor,
    }
)


def print_table(run_dir: Path) -> None:
    """Print the table of before and after on standard output."""
    console = Console(width=None)
    for table in terminal_tables(run_dir, console.width):
        console.print(table)


def describe(evaluation: Evaluation) -> str:
    """Give one line with an evaluation's accuracy, interval, and the shares that explain it."""
    row = evaluation.overall
    accuracy = "none graded" if row.accuracy is None else f"{row.accuracy:.3f} [{row.low:.3f}, {row.high:.3f}]"
    return (
        f"{evaluation.name} step {evaluation.policy_step} {evaluation.mode}: accuracy {accuracy}, "
        f"{row.num_problems} problems x {evaluation.samples_per_problem}, truncated {row.truncated_share:.1%}, "
        f"no answer {row.no_answer_share:.1%}, grader error {row.error_share:.1%}"
    )


def _configured(options: argparse.Namespace) -> Config:
    """Give the configuration of a command that computes with a model, and set up torch as it says."""
    config: Config = options.config
    check_device(config)
    models.quiet()
    if config.run.num_threads:
        torch.set_num_threads(config.run.num_threads)
    return config


def _engine(path: Path, config: Config) -> tuple[Generator, int]:
    """Open the engine with a policy from a checkpoint or a Hugging Face folder; give the step of the policy too."""
    step, folder = checkpoint.checkpoint_step(path), checkpoint.policy_folder(path)
    # A server holds the weights: of the folder, the tokenizer alone is read.
    if config.generator.engine != "openai" and not (folder / models.CONFIG).is_file():
        raise BadInput(
            f"{folder}: expected a checkpoint folder with config.json, got none; point to a checkpoint of a run, or "
            "to a folder written by `save_pretrained`"
        )
    tokenizer = models.load_tokenizer(folder)
    device = choose_device(config.learner)
    return open_engine(config.generator, folder=folder, tokenizer=tokenizer, policy_step=step, device=device), step


def _policy(path: Path, config: Config) -> Policy:
    engine, step = _engine(path, config)
    name = "/".join(path.resolve().parts[-2:])
    if not isinstance(engine, ServerGenerator):
        return Policy(engine, engine.tokenizer, name, checkpoint.weights_id(path), step)
    # What a server says of its weights is their name: with other weights it has to give another one.
    has_weights = any(checkpoint.policy_folder(path).glob("*.safetensors"))
    own = checkpoint.weights_id(path) if has_weights else ""
    weights = store.fingerprint(served=engine.served, folder=own)
    return Policy(engine, engine.tokenizer, name if has_weights else engine.served, weights, step)


def _held_out(options: argparse.Namespace, config: Config) -> list[Problem]:
    if options.problems is not None:
        return store.read_artefact(options.problems, store.PROBLEMS)
    return held_out_problems(config.problems)
