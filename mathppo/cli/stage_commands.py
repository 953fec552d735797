"""Commands of the stages: read artefacts, run a stage, print its results."""

import argparse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import torch

from mathppo.cli import result_commands
from mathppo.config import Config
from mathppo.errors import BadArtefact, BadInput
from mathppo.evaluate.accuracy import Evaluation, Mode
from mathppo.generator.base import Generator
from mathppo.generator.engines import open_engine
from mathppo.generator.server.server_generator import ServerGenerator
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
from mathppo.pipeline.stages.prepare import held_out_problems
from mathppo.pipeline.stages.warmstart import warmstart
from mathppo.pipeline.train import train
from mathppo.progress import SILENT, Reporter
from mathppo.seeds import derive_seed
from mathppo.storage import files, store

PRINTED_METRICS = (
    *("policy_loss", "value_loss", "explained_variance_outcome", "entropy", "approx_kl", "ref_kl"),
    *("clip_share_high", "clip_share_low", "behaviour_kl", "stale_share", "policy_grad_norm", "critic_grad_norm"),
    *("num_tokens", "num_rollouts_dropped", "num_updates_skipped"),
)
"""Metrics that `learn` prints; its log has all of them."""


def run_train(options: argparse.Namespace) -> int:
    """Run or resume a training run; rank 0 prints the before/after table."""
    with join(choose_device(options.config.learner).type) as ranks:
        run = train(_set_up_torch(options), options.run_dir, _reporter_of(ranks), ranks)
        if ranks.rank == 0:
            result_commands.print_table(run.root)
            print(f"report: {run.root / 'report.html'}")
    return 0


def run_warmstart(options: argparse.Namespace) -> int:
    """Train the warm-start policy."""
    problems = store.read_artefact(options.problems, store.PROBLEMS)
    warmstart(_set_up_torch(options), problems, options.out, Reporter())
    print(options.out)
    return 0


def run_generate(options: argparse.Namespace) -> int:
    """Sample one iteration's rollouts."""
    config = _set_up_torch(options)
    with _open_engine(options.checkpoint, config) as (engine, step):
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


def run_grade(options: argparse.Namespace) -> int:
    """Grade rollouts and assign rewards."""
    config: Config = options.config
    rollouts = store.read_artefact(options.rollouts, store.ROLLOUTS)
    if not rollouts:
        raise BadArtefact(f"{options.rollouts}: expected at least one rollout, found none; re-run generate")
    problems = store.read_artefact(options.problems, store.PROBLEMS)
    made_from = store.fingerprint(
        rollouts=store.read_header(options.rollouts, store.ROLLOUTS).sha256,
        problems=store.read_header(options.problems, store.PROBLEMS).sha256,
        template=config.problems.template,
        settings=[config.grader, config.reward, config.learner.truncation, config.generator.max_new_tokens],
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


def run_learn(options: argparse.Namespace) -> int:
    """Run one PPO iteration on every process that torchrun started, or on this one; rank 0 writes and prints."""
    with join(choose_device(options.config.learner).type) as ranks:
        config = _set_up_torch(options)
        if (options.out / checkpoint.HEADER).is_file():
            raise BadArtefact(f"{options.out}: expected no checkpoint yet, found one; choose another --out")
        files.check_free(options.out)
        scored = store.read_scored(options.scored)
        learner = open_learner(config, options.checkpoint, ranks)
        tokenizer = models.load_tokenizer(options.checkpoint / "policy")
        require_known_steps(learner, scored)  # fail before critic pretraining, which takes minutes
        log = options.out.with_name(f"{options.out.name}.metrics.jsonl")
        if options.critic_rollouts is not None:
            rollouts = store.read_scored(options.critic_rollouts)
            pretrain_critic(learner, rollouts, config, tokenizer, log, _reporter_of(ranks))
        metrics = learn(learner, scored, config, tokenizer)
        if ranks.rank == 0:
            append_row(log, Iteration(iteration=learner.step, metrics=metrics))
        learner.save(options.out, tokenizer)
        if ranks.rank == 0:
            for name in PRINTED_METRICS:
                if name in metrics:
                    unit = TRAINING_METRICS[name].unit.removeprefix("1")  # "1" marks a dimensionless number
                    print(f"{name:<28}{metrics[name]:>12.4g} {unit}".rstrip())
            print(f"{options.out}: step {learner.step}; all metrics in {log}")
    return 0


def run_evaluate(options: argparse.Namespace) -> int:
    """Evaluate one policy on the held-out problems, or several on benchmarks."""
    config, reporter = _set_up_torch(options), Reporter()
    if options.limit < 0:
        raise BadInput(f"--limit: expected a number of problems, or 0 for all, got {options.limit}")
    if options.benchmarks:
        policies = [partial(_open_policy, path, config) for path in options.checkpoint]
        return result_commands.run_benchmarks(options, config, policies, reporter)
    (path,) = options.checkpoint[:1]
    if len(options.checkpoint) > 1:
        raise BadInput(f"evaluate: expected one checkpoint without --benchmarks, got {len(options.checkpoint)}")
    if options.templates or options.system_prompt:
        raise BadInput(
            "evaluate: expected --templates and --system-prompt only together with --benchmarks; "
            "set problems.template instead"
        )
    if options.problems is not None:
        problems = store.read_artefact(options.problems, store.PROBLEMS)
    else:
        problems = held_out_problems(config.problems)
    problems = problems[: options.limit or config.evaluate.num_problems_final or None]
    with _open_engine(path, config) as (engine, step), open_pool(config.grader) as pool:
        policy = Policy(engine, engine.tokenizer, f"step {step}", checkpoint.weights_id(path), step)
        for mode in Mode:
            print(describe(evaluate_held_out(policy, pool, problems, config, options.out, mode, reporter=reporter)))
    return 0


def describe(evaluation: Evaluation) -> str:
    """Return one line with an evaluation's accuracy, its interval and the shares that explain it."""
    row = evaluation.overall
    accuracy = "none graded" if row.accuracy is None else f"{row.accuracy:.3f} [{row.low:.3f}, {row.high:.3f}]"
    return (
        f"{evaluation.name} step {evaluation.policy_step} {evaluation.mode}: accuracy {accuracy}, "
        f"{row.num_problems} problems x {evaluation.samples_per_problem}, truncated {row.truncated_share:.1%}, "
        f"no answer {row.no_answer_share:.1%}, grader error {row.error_share:.1%}"
    )


def _reporter_of(ranks: DistContext) -> Reporter:
    """Return a reporter that prints on rank 0 only."""
    return Reporter() if ranks.rank == 0 else SILENT


def _set_up_torch(options: argparse.Namespace) -> Config:
    """Check the device, set torch's threads, and return the configuration of a command that runs a model."""
    config: Config = options.config
    check_device(config)
    models.quiet()
    if config.run.num_threads:
        torch.set_num_threads(config.run.num_threads)
    return config


@contextmanager
def _open_engine(path: Path, config: Config) -> Iterator[tuple[Generator, int]]:
    """Open the engine with the policy of a checkpoint or Hugging Face folder; yield it and the policy's step."""
    engine, step = _load_engine(path, config)
    with closing(engine):
        yield engine, step


def _load_engine(path: Path, config: Config) -> tuple[Generator, int]:
    step, folder = checkpoint.checkpoint_step(path), checkpoint.policy_folder(path)
    # With the openai engine the server has the weights; only the tokenizer is read from the folder.
    if config.generator.engine != "openai" and not (folder / models.CONFIG).is_file():
        raise BadInput(
            f"{folder}: expected a checkpoint folder with config.json, found none; pass a checkpoint of a run or a "
            "folder written by `save_pretrained`"
        )
    tokenizer = models.load_tokenizer(folder)
    device = choose_device(config.learner)
    return open_engine(config.generator, folder=folder, tokenizer=tokenizer, policy_step=step, device=device), step


def _open_policy(path: Path, config: Config) -> Policy:
    engine, step = _load_engine(path, config)
    name = "/".join(path.resolve().parts[-2:])
    if not isinstance(engine, ServerGenerator):
        return Policy(engine, engine.tokenizer, name, checkpoint.weights_id(path), step)
    # A server's weights are known only by the name that it reports, so that name identifies them.
    has_weights = any(checkpoint.policy_folder(path).glob("*.safetensors"))
    weights_of_folder = checkpoint.weights_id(path) if has_weights else ""
    weights = store.fingerprint(served=engine.served, folder=weights_of_folder)
    return Policy(engine, engine.tokenizer, name if has_weights else engine.served, weights, step)
