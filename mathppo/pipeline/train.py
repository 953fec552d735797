"""`mathppo train`: all stages in one process, with engines kept warm and the same artefacts as the single commands.

    prepare → warmstart → (pretrain critic) → iterations of generate → grade → learn → sync weights → evaluate

A killed run resumes when the command is run again: finished artefacts are read, weights come from the newest
checkpoint, and the updates since are repeated from the rollouts and verdicts on disk, to the same bits.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from graders import GraderPool
from graders.sandbox_status import sandbox_status
from mathppo.config import Config
from mathppo.evaluate.accuracy import Mode
from mathppo.learner import diagnostics
from mathppo.learner.backend import checkpoint
from mathppo.learner.backend.sharding import ALONE, Ranks
from mathppo.metrics import Iteration, MetricRow, append_row
from mathppo.pipeline.annotate_rollouts import choose_rollouts
from mathppo.pipeline.preflight import check_start
from mathppo.pipeline.run_directory import RunDirectory, check_run, open_run
from mathppo.pipeline.runtime import (
    AnnotateRollouts,
    Learn,
    PretrainCritic,
    RankWorker,
    SaveCheckpoint,
    SyncWeights,
    check_engine,
    open_rank_worker,
)
from mathppo.pipeline.stages.evaluate import Policy, evaluate_held_out, read_evaluations
from mathppo.pipeline.stages.generate import choose_problems, generate, make_requests, sampling_of
from mathppo.pipeline.stages.grade import BackgroundGrader, grade, open_pool, overlong_budget
from mathppo.pipeline.stages.learn import require_whole_distribution
from mathppo.pipeline.stages.prepare import prepare
from mathppo.pipeline.stages.warmstart import warmstart
from mathppo.pipeline.summary import add_wall_time, write_summary
from mathppo.progress import Reporter
from mathppo.records import Problem, ScoredRollout
from mathppo.report import write_report, write_views
from mathppo.seeds import derive_seed
from mathppo.storage import store

SHOWN = (
    ("reward", "reward_mean"),
    ("cut", "truncated_share"),
    ("kl", "approx_kl"),
    ("ev", "explained_variance_outcome"),
)
"""Metrics in the progress display of iterations, with names short enough for one line."""


@dataclass
class Stopwatch:
    """Wall time by stage, in seconds."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - started


@dataclass(frozen=True)
class Session:
    """State of the process that runs the stages.

    Args:
        worker: learner and engine, perhaps with shards of them in other processes.
        pool: the grader.
        train_problems: problems that the policy is trained on.
        held_out_problems: problems that it is evaluated on.
        watch: wall time by stage.
    """

    worker: RankWorker
    pool: GraderPool
    train_problems: list[Problem]
    held_out_problems: list[Problem]
    watch: Stopwatch


def train(config: Config, root: Path, reporter: Reporter, ranks: Ranks = ALONE) -> RunDirectory:
    """Start or resume a run in the directory `root`, and return the directory when it is finished.

    Args:
        config: of the run.
        root: the run directory.
        reporter: shows progress.
        ranks: the processes that share the work; the first one runs the stages.

    Raises:
        BadSetting: the directory holds a run with other settings, or a setting that the learner rejects or that names a
            missing model, package or device.
        BadArtefact: another process has locked the directory.
        MathPPOError: the error of a stage.
    """
    run = RunDirectory(root)
    require_whole_distribution(config)
    check_engine(config, ranks)
    if ranks.rank > 0:
        _work_for_first_rank(config, run, ranks)
        return run
    check_run(run, config)
    if run.summary.is_file():
        reporter.say(f"{root}: finished already")
    else:
        check_start(config)  # before anything is written
        _run(config, run, ranks, reporter)
    ranks.share(None)  # ends the other ranks' loops
    return run


def _work_for_first_rank(config: Config, run: RunDirectory, ranks: Ranks) -> None:
    """Wait for the first rank's checkpoint and probe problem, then run its commands."""
    opened = ranks.share(None)
    if opened is None:
        return
    worker = open_rank_worker(config, run, ranks, *opened)
    try:
        worker.run_worker_loop()
    finally:
        worker.close()


def _run(config: Config, run: RunDirectory, ranks: Ranks, reporter: Reporter) -> None:
    """Run the stages that are not finished, then write summary and report."""
    watch = Stopwatch()
    with open_pool(config.grader) as pool, open_run(run, config, sandbox_status(pool)):
        try:
            with watch.measure("total"):
                _run_stages(config, run, ranks, pool, watch, reporter)
        finally:
            seconds = add_wall_time(run, watch.seconds)
        first, last = (read_evaluations(run.evaluation(step)) for step in (0, config.run.iterations))
        write_summary(run, config, first=first, last=last, seconds=seconds)
        write_report(run.root)


def _run_stages(
    config: Config, run: RunDirectory, ranks: Ranks, pool: GraderPool, watch: Stopwatch, reporter: Reporter
) -> None:
    with watch.measure("prepare"):
        problems, held_out = prepare(config, run.train_problems.parent, reporter)
    with watch.measure("warmstart"):
        warmstart(config, problems, run.warmstart, reporter)
    newest = (checkpoint.list_checkpoints(run.checkpoints) or [run.warmstart])[-1]
    ranks.share((newest, problems[0]))
    worker = open_rank_worker(config, run, ranks, newest, problems[0], reporter)
    try:
        session = Session(worker, pool, problems, held_out, watch)
        if newest == run.warmstart:
            _start_learner(session)
        _iterate(session)
        _annotate_rollouts(session)
    finally:
        worker.close()


def _start_learner(session: Session) -> None:
    """Pretrain a new critic if the settings say so, and save the learner before its first update."""
    worker, config = session.worker, session.worker.config
    if worker.learner.critic is not None and config.learner.critic_pretraining_prompts > 0:
        with session.watch.measure("critic_pretraining"):
            count, folder = config.learner.critic_pretraining_prompts, worker.run.critic_pretraining
            scored = _sample_and_score(session, "critic pretraining", 0, count, 1, folder, Stopwatch())
            worker.run_on_all_ranks(PretrainCritic(scored))
    worker.run_on_all_ranks(SaveCheckpoint())


def _iterate(session: Session) -> None:
    """Run the iterations, with evaluations before, between and after."""
    config, learner = session.worker.config, session.worker.learner
    with session.worker.reporter.task(config.learner.algorithm, config.run.iterations, done=learner.step) as advance:
        _evaluate_if_due(session)
        while learner.step < config.run.iterations:
            metrics = iterate(session)
            advance(1, **{label: metrics[name] for label, name in SHOWN if name in metrics})
            _evaluate_if_due(session)


def iterate(session: Session) -> MetricRow:
    """Run one iteration: generate, grade, learn, sync weights, log, and save a checkpoint if one is due."""
    worker, config, run = session.worker, session.worker.config, session.worker.run
    learner = worker.learner
    started, watch, folder = time.monotonic(), Stopwatch(), run.iteration(learner.step + 1)
    is_resumed = folder.exists()
    count, samples = config.generator.prompts_per_iteration, config.generator.samples_per_prompt
    scored = _sample_and_score(session, "train", learner.step, count, samples, folder, watch)
    with watch.measure("learn"):
        metrics = worker.run_on_all_ranks(Learn(scored))
    synced = worker.run_on_all_ranks(SyncWeights())
    metrics = {
        **diagnostics.of_rollouts(scored, config.reward, overlong_budget_tokens=overlong_budget(config)),
        **metrics,
        **synced,
        **{f"{stage}_s": seconds for stage, seconds in watch.seconds.items()},
        "other_s": time.monotonic() - started - sum(watch.seconds.values()),
    }
    if not is_resumed:  # otherwise some tokens may have been sampled by an earlier process, in time that is not known
        num_tokens = sum(len(item.rollout.completion_ids) for item in scored)
        metrics["tokens_per_s"] = num_tokens / max(watch.seconds["generate"], 1e-9)
    # Logged before it is saved: after a kill in between, the iteration and its row are repeated (note M-pipeline-2).
    append_row(run.metrics, Iteration(iteration=learner.step, metrics=metrics))
    if learner.step % config.run.checkpoint_every == 0 or learner.step == config.run.iterations:
        with session.watch.measure("checkpoint"):
            worker.run_on_all_ranks(SaveCheckpoint())
            checkpoint.prune_checkpoints(run.checkpoints, keep=config.run.keep_checkpoints)
    return metrics


def _sample_and_score(
    session: Session, purpose: str, iteration: int, count: int, samples: int, folder: Path, watch: Stopwatch
) -> list[ScoredRollout]:
    """Sample and grade `count` problems, or read from `folder` what an earlier process finished.

    Purpose and iteration are part of every seed.
    """
    config, tokenizer, engine = session.worker.config, session.worker.tokenizer, session.worker.engine
    assert engine is not None
    problems = choose_problems(session.train_problems, iteration, count, derive_seed(config.run.seed, purpose))
    by_id = {problem.id: problem for problem in problems}
    grader = BackgroundGrader(session.pool, by_id, config.problems.template)
    rollouts_path = folder / "rollouts"
    with watch.measure("generate"):
        requests = make_requests(problems, tokenizer, config, samples=samples, purpose=(purpose, iteration))
        made_from = store.fingerprint(config=config, step=iteration, requests=requests)
        sampling = sampling_of(config, tokenizer)
        rollouts = generate(engine, requests, sampling, rollouts_path, made_from=made_from, on_rollout=grader.add)
    with watch.measure("grade"):
        return grade(grader, rollouts, config, folder / "scored", source=rollouts_path, made_from=made_from)


def _evaluate_if_due(session: Session) -> None:
    """Evaluate the first and last policy on all held-out problems, and policies in between on some of them."""
    worker, config, step = session.worker, session.worker.config, session.worker.learner.step
    assert worker.engine is not None
    is_first_or_last = step in (0, config.run.iterations)
    if not is_first_or_last and (config.evaluate.every == 0 or step % config.evaluate.every):
        return
    num_problems = config.evaluate.num_problems_final if is_first_or_last else config.evaluate.num_problems
    problems = session.held_out_problems[: num_problems or None]
    policy = Policy(
        worker.engine, worker.tokenizer, f"step {step}", weights=store.fingerprint(config=config, step=step), step=step
    )
    with session.watch.measure("evaluate"):
        for mode in Mode:
            evaluation = evaluate_held_out(policy, session.pool, problems, config, worker.run.evaluation(step), mode)
            row = evaluation.overall
            worker.reporter.say(
                f"step {step}: held-out accuracy {mode} {row.accuracy or 0:.3f} "
                f"[{row.low:.3f}, {row.high:.3f}] on {row.num_problems} problems"
            )


def _annotate_rollouts(session: Session) -> None:
    """Write some held-out rollouts of the first and the last policy for the report."""
    worker, problems = session.worker, {problem.id: problem for problem in session.held_out_problems}
    views = []
    for step in sorted({0, worker.learner.step}):
        scored = choose_rollouts(store.read_scored(worker.run.evaluation(step) / Mode.SAMPLED / "scored"))
        shown = {item.rollout.problem_id: problems[item.rollout.problem_id] for item in scored}
        views += worker.run_on_all_ranks(AnnotateRollouts(step, scored, shown))
    write_views(worker.run.root, views)
