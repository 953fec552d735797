"""`mathppo train`: all stages in one command, engines kept warm, the same artefacts.

Killed anywhere and run again, it goes on: finished artefacts are read, not made again; weights come from the newest
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
from mathppo.evaluate.accuracy import Evaluation, Mode
from mathppo.learner import diagnostics
from mathppo.learner.backend import checkpoint
from mathppo.learner.backend.sharding import ALONE, Ranks
from mathppo.metrics import Iteration, MetricRow, append_row
from mathppo.pipeline.preflight import check_start
from mathppo.pipeline.run_directory import RunDirectory, check_run, open_run
from mathppo.pipeline.runtime import Station, check_engine, open_station
from mathppo.pipeline.stages.evaluate import evaluate_policy, read_evaluations
from mathppo.pipeline.stages.learn import require_whole_distribution
from mathppo.pipeline.stages.prepare import prepare
from mathppo.pipeline.stages.sample_and_grade import (
    Grading,
    choose_problems,
    make_requests,
    open_pool,
    overlong_budget,
    sampling_of,
    write_rollouts,
    write_scored,
)
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
"""Metrics shown live, while iterating, under names short enough for one line."""


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
    """What the process that runs the stages keeps warm.

    Args:
        config: of the run.
        run: where everything lies.
        train_problems: what the policy is trained on.
        held_out_problems: what it is evaluated on.
        station: the learner and its engine, perhaps with shards of them in other processes.
        pool: the grader.
        reporter: shows progress.
        watch: wall time.
    """

    config: Config
    run: RunDirectory
    train_problems: list[Problem]
    held_out_problems: list[Problem]
    station: Station
    pool: GraderPool
    reporter: Reporter
    watch: Stopwatch


def train(config: Config, root: Path, reporter: Reporter, ranks: Ranks = ALONE) -> RunDirectory:
    """Run, or go on with, the whole job in the directory `root`.

    Args:
        config: of the run.
        root: the run directory.
        reporter: shows progress.
        ranks: the processes that share the work; the first one runs the stages.

    Raises:
        BadSetting: the directory holds a run with other settings, these cannot be learnt with, or name what is missing.
        BadArtefact: another process is at work in the directory.
        MathPPOError: whatever a stage finds wrong.
    """
    require_whole_distribution(config)
    check_engine(config, ranks)
    run = RunDirectory(root)
    if ranks.rank > 0:
        _stand_by(config, run, ranks)
        return run
    check_run(run, config)
    if run.summary.is_file():
        reporter.say(f"{root}: finished already")
    else:
        _begin(config, run, ranks, reporter)
    ranks.share(None)  # nothing more to do
    return run


def _stand_by(config: Config, run: RunDirectory, ranks: Ranks) -> None:
    """Wait until the first rank has a checkpoint to start from, and do what it asks."""
    opened = ranks.share(None)
    if opened is None:
        return
    station = open_station(config, run, ranks, *opened)
    try:
        station.serve()
    finally:
        station.close()


def _begin(config: Config, run: RunDirectory, ranks: Ranks, reporter: Reporter) -> None:
    """Run what is left of a run."""
    # Before anything is written: a mistake in what is needed late must not cost the stages before it.
    check_start(config)
    watch = Stopwatch()
    with open_pool(config.grader) as pool, open_run(run, config, sandbox_status(pool)):
        try:
            with watch.measure("total"):
                first, last = _all_stages(config, run, ranks, pool, watch, reporter)
        finally:
            seconds = add_wall_time(run, watch.seconds)
        write_summary(run, config, first=first, last=last, seconds=seconds)
        write_report(run.root)


def _all_stages(
    config: Config, run: RunDirectory, ranks: Ranks, pool: GraderPool, watch: Stopwatch, reporter: Reporter
) -> tuple[list[Evaluation], list[Evaluation]]:
    with watch.measure("prepare"):
        problems, held_out = prepare(config, run.train_problems.parent, reporter)
    with watch.measure("warmstart"):
        warmstart(config, problems, run.warmstart, reporter)
    newest = (checkpoint.list_checkpoints(run.checkpoints) or [run.warmstart])[-1]
    ranks.share((newest, problems[0]))
    station = open_station(config, run, ranks, newest, problems[0], reporter)
    try:
        session = Session(config, run, problems, held_out, station, pool, reporter, watch)
        return _run(session, is_new=newest == run.warmstart)
    finally:
        station.close()


def _run(session: Session, *, is_new: bool) -> tuple[list[Evaluation], list[Evaluation]]:
    """Pretrain the critic, iterate, and evaluate before, on the way and after; give the first and last evaluations."""
    config, run, station = session.config, session.run, session.station
    learner = station.learner
    if is_new:
        if learner.critic is not None and config.learner.critic_pretraining_prompts > 0:
            with session.watch.measure("critic_pretraining"):
                _pretrain(session)
        station.ask(station.save)
    with session.reporter.task(config.learner.algorithm, config.run.iterations, done=learner.step) as advance:
        _evaluate_if_due(session)
        while learner.step < config.run.iterations:
            metrics = iterate(session)
            advance(1, **{label: metrics[name] for label, name in SHOWN if name in metrics})
            _evaluate_if_due(session)
    views = [station.ask(station.view, step, session.held_out_problems) for step in sorted({0, learner.step})]
    write_views(run.root, [view for of_step in views for view in of_step])
    return read_evaluations(run.evaluation(0)), read_evaluations(run.evaluation(learner.step))


def iterate(session: Session) -> MetricRow:
    """One iteration of PPO: generate, grade, learn; log it, and write a checkpoint when one is due."""
    config, run, station = session.config, session.run, session.station
    learner = station.learner
    started, watch, folder = time.monotonic(), Stopwatch(), run.iteration(learner.step + 1)
    is_begun = folder.exists()
    scored = _sample_and_score(
        session,
        purpose="train",
        iteration=learner.step,
        count=config.generator.prompts_per_iteration,
        samples=config.generator.samples_per_prompt,
        folder=folder,
        watch=watch,
    )
    with watch.measure("learn"):
        metrics = station.ask(station.learn, scored)
    refreshed = station.ask(station.refresh)
    num_tokens = sum(len(item.rollout.completion_ids) for item in scored)
    metrics = {
        **diagnostics.of_rollouts(scored, config.reward, overlong_budget_tokens=overlong_budget(config)),
        **metrics,
        **refreshed,
        **{f"{stage}_s": seconds for stage, seconds in watch.seconds.items()},
        "other_s": time.monotonic() - started - sum(watch.seconds.values()),
    }
    if not is_begun:  # else an earlier process had its part in the tokens, and took none of the time
        metrics["tokens_per_s"] = num_tokens / max(watch.seconds["generate"], 1e-9)
    # Logged before it is saved: a kill in between repeats the iteration, and its row, from the checkpoint before.
    append_row(run.metrics, Iteration(iteration=learner.step, metrics=metrics))
    if learner.step % config.run.checkpoint_every == 0 or learner.step == config.run.iterations:
        with session.watch.measure("checkpoint"):
            station.ask(station.save)
            checkpoint.prune_checkpoints(run.checkpoints, keep=config.run.keep_checkpoints)
    return metrics


def _sample_and_score(
    session: Session, *, purpose: str, iteration: int, count: int, samples: int, folder: Path, watch: Stopwatch
) -> list[ScoredRollout]:
    """Sample and grade the problems that are due; what an earlier run finished is read from `folder`."""
    config, tokenizer, engine = session.config, session.station.tokenizer, session.station.engine
    assert engine is not None
    problems = choose_problems(session.train_problems, iteration, count, derive_seed(config.run.seed, purpose))
    grading = Grading(session.pool, {problem.id: problem for problem in problems})
    with watch.measure("generate"):
        requests = make_requests(problems, tokenizer, config, samples=samples, purpose=purpose, iteration=iteration)
        made_from = store.fingerprint(config=config, step=iteration, requests=requests)
        rollouts = write_rollouts(
            engine,
            requests,
            sampling_of(config, tokenizer),
            folder / "rollouts",
            made_from=made_from,
            on_rollout=grading.add,
        )
    with watch.measure("grade"):
        return write_scored(grading, rollouts, config, folder / "scored", made_from=made_from)


def _pretrain(session: Session) -> None:
    config, run = session.config, session.run
    scored = _sample_and_score(
        session,
        purpose="critic pretraining",
        iteration=0,
        count=config.learner.critic_pretraining_prompts,
        samples=1,
        folder=run.root / "critic_pretraining",
        watch=Stopwatch(),
    )
    session.station.ask(session.station.pretrain_critic, scored)


def _evaluate_if_due(session: Session) -> None:
    """Evaluate the policy before and after on all held-out problems, and on some of them on the way."""
    config, station, step = session.config, session.station, session.station.learner.step
    assert station.engine is not None
    at_an_end = step in (0, config.run.iterations)
    if not at_an_end and (config.evaluate.every == 0 or step % config.evaluate.every):
        return
    num_problems = config.evaluate.num_problems_final if at_an_end else config.evaluate.num_problems
    with session.watch.measure("evaluate"):
        for mode in Mode:
            evaluation = evaluate_policy(
                station.engine,
                station.tokenizer,
                session.pool,
                session.held_out_problems[: num_problems or None],
                config,
                session.run.evaluation(step),
                mode=mode,
                policy_step=step,
                weights=store.fingerprint(config=config, step=step),
            )
            row = evaluation.overall
            session.reporter.say(
                f"step {step}: held-out accuracy {mode} {row.accuracy or 0:.3f} "
                f"[{row.low:.3f}, {row.high:.3f}] on {row.num_problems} problems"
            )
