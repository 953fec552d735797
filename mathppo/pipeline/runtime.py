"""Rank workers: the state that each process of a run keeps, and the commands that the first rank runs on all of them.

torchrun may start several processes. The first rank runs the stages: it alone reads problems, grades, writes and
reports. The others wait in `run_worker_loop` for commands that need every rank's shards: sample, learn, synchronise
weights, save, annotate (note M-pipeline-4). With one process, a command is a plain call.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from torch import Tensor

from mathppo.config import Config
from mathppo.errors import BadSetting
from mathppo.generator.base import Generator, Request, Sampling
from mathppo.generator.engines import open_engine
from mathppo.learner.backend import models
from mathppo.learner.backend.micro_batches import choose_device
from mathppo.learner.backend.sharding import Ranks
from mathppo.learner.learner import Learner
from mathppo.metrics import MetricRow
from mathppo.pipeline.annotate_rollouts import annotate
from mathppo.pipeline.run_directory import RunDirectory
from mathppo.pipeline.stages.learn import learn, open_learner, pretrain_critic
from mathppo.pipeline.weight_sync import WeightSync
from mathppo.progress import SILENT, Reporter
from mathppo.prompts import PreTrainedTokenizerBase
from mathppo.records import Problem, Rollout, ScoredRollout
from mathppo.report import RolloutView

T = TypeVar("T")


class SharedEngine:
    """The embedded engines of all ranks as one, used by the first rank.

    Each rank holds a whole copy of the policy, because sampling gathers no shards, and of n ranks samples every n-th
    request. A completion depends on its seed and the weights only, not on the rank that samples it (note M-gen-1).

    Args:
        local: the engine of this rank.
        ranks: the processes.
    """

    shares_weights = False

    def __init__(self, local: Generator, ranks: Ranks) -> None:
        self.local, self.ranks = local, ranks

    @property
    def tokenizer(self) -> Any:
        return self.local.tokenizer

    @property
    def policy_step(self) -> int:
        return self.local.policy_step

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        """Sample on every rank, each its share; the iterator has to be exhausted."""
        self.ranks.share(Sample(requests, sampling))
        yield from self.sample_share(requests, sampling)

    def sample_share(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        """Yield this rank's rollouts as they finish, then those of the others."""
        done = []
        for rollout in self.local.generate(requests[self.ranks.rank :: self.ranks.size], sampling):
            done.append(rollout)
            yield rollout
        for rank, part in enumerate(self.ranks.gather(done)):
            if rank != self.ranks.rank:
                yield from part

    def refresh(self, policy_step: int, weights: Mapping[str, Tensor] | None = None) -> None:
        """Update the weights of this rank's engine; every rank has to."""
        self.local.refresh(policy_step, weights)

    def sleep(self) -> None:
        self.local.sleep()

    def close(self) -> None:
        self.local.close()


class Command(ABC, Generic[T]):
    """Work that every rank takes part in; a subclass is a frozen dataclass of its arguments, which can be pickled."""

    @abstractmethod
    def run(self, worker: "RankWorker") -> T:
        """Do one rank's part of the work."""


@dataclass(frozen=True)
class RankWorker:
    """State of one rank.

    Args:
        config: of the run.
        run: the run directory; every rank reads checkpoints there.
        ranks: the processes.
        tokenizer: the policy's tokenizer.
        learner: this rank's shards of the trainable state.
        engine: samples from the learner's policy module, or from a copy of its weights; None if another rank has it.
        weight_sync: copies the learner's weights to the engine.
        reporter: shows progress, on the first rank only.
    """

    config: Config
    run: RunDirectory
    ranks: Ranks
    tokenizer: PreTrainedTokenizerBase
    learner: Learner
    engine: Generator | None
    weight_sync: WeightSync
    reporter: Reporter

    def run_on_all_ranks(self, command: Command[T]) -> T:
        """Run a command on every rank, and return the first rank's result; only the first rank calls this."""
        self.ranks.share(command)
        return command.run(self)

    def run_worker_loop(self) -> None:
        """Run the first rank's commands until it sends None; the other ranks call this."""
        while (command := self.ranks.share(None)) is not None:
            command.run(self)

    def sleep_engine(self) -> None:
        """Free the engine's GPU memory for the learner, if the settings say so."""
        if self.engine is not None:
            self.engine.sleep()

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()


@dataclass(frozen=True)
class Sample(Command[None]):
    """Sample this rank's share of the requests; sent by `SharedEngine.generate`."""

    requests: Sequence[Request]
    sampling: Sampling

    def run(self, worker: RankWorker) -> None:
        assert isinstance(worker.engine, SharedEngine)
        for _ in worker.engine.sample_share(self.requests, self.sampling):
            pass


@dataclass(frozen=True)
class Learn(Command[MetricRow]):
    """Update the learner on one iteration's rollouts, see `learn.learn`; `SyncWeights` has to follow."""

    scored: Sequence[ScoredRollout]

    def run(self, worker: RankWorker) -> MetricRow:
        worker.sleep_engine()
        return learn(worker.learner, self.scored, worker.config, worker.tokenizer)


@dataclass(frozen=True)
class PretrainCritic(Command[None]):
    """Fit a new critic; see `learn.pretrain_critic`."""

    scored: Sequence[ScoredRollout]

    def run(self, worker: RankWorker) -> None:
        worker.sleep_engine()
        pretrain_critic(
            worker.learner, self.scored, worker.config, worker.tokenizer, worker.run.metrics, worker.reporter
        )
        if worker.config.generator.sleep:
            worker.weight_sync.sync()  # the policy has not changed, but a sleeping engine may have dropped it


@dataclass(frozen=True)
class SyncWeights(Command[MetricRow]):
    """Copy the learner's weights to the engines; see `WeightSync.sync`."""

    def run(self, worker: RankWorker) -> MetricRow:
        return worker.weight_sync.sync()


@dataclass(frozen=True)
class SaveCheckpoint(Command[None]):
    """Write a checkpoint of the learner's step."""

    def run(self, worker: RankWorker) -> None:
        worker.learner.save(worker.run.checkpoint(worker.learner.step), worker.tokenizer)


@dataclass(frozen=True)
class AnnotateRollouts(Command[list[RolloutView]]):
    """Annotate rollouts of a step with its checkpoint; see `annotate_rollouts.annotate`."""

    step: int
    scored: Sequence[ScoredRollout]
    problems: Mapping[str, Problem]

    def run(self, worker: RankWorker) -> list[RolloutView]:
        learner = worker.learner
        if self.step != learner.step:
            checkpoint = worker.run.checkpoint(self.step)
            learner = open_learner(worker.config, checkpoint, worker.ranks, reference=worker.run.warmstart / "policy")
        return annotate(learner, worker.tokenizer, self.problems, self.scored)


def open_rank_worker(
    config: Config, run: RunDirectory, ranks: Ranks, newest: Path, probe: Problem, reporter: Reporter = SILENT
) -> RankWorker:
    """Open this rank's learner at a checkpoint and its engine with the same weights; every rank has to.

    Args:
        config: of the run.
        run: the run directory.
        ranks: the processes.
        newest: the checkpoint to resume from.
        probe: the problem that the weights of engines with a copy are checked with.
        reporter: shows progress.

    Raises:
        BadSetting: settings that the learner rejects, or an engine that cannot run here.
        BadCheckpoint: a damaged checkpoint.
    """
    learner = open_learner(config, newest, ranks, reference=run.warmstart / "policy")
    tokenizer = models.load_tokenizer(newest / "policy")
    engine = _open_engine(config, run, ranks, learner, tokenizer)
    local = engine.local if isinstance(engine, SharedEngine) else engine
    weight_sync = WeightSync(config, local, learner, tokenizer, probe, is_copy=isinstance(engine, SharedEngine))
    worker = RankWorker(config, run, ranks, tokenizer, learner, engine, weight_sync, reporter)
    try:
        weight_sync.sync()
    except BaseException:
        worker.close()
        raise
    return worker


def _open_engine(
    config: Config, run: RunDirectory, ranks: Ranks, learner: Learner, tokenizer: PreTrainedTokenizerBase
) -> Generator | None:
    # An engine with a copy of the weights starts from the warm start's folder, which is never deleted, and is synced.
    folder, module = run.warmstart / "policy", learner.policy
    is_shared = ranks.size > 1 and config.generator.engine == "hf"
    if is_shared:
        module = models.load_policy(folder).to(choose_device(config.learner))  # type: ignore[arg-type]
    elif ranks.rank > 0:
        return None  # an engine in another process or on another machine serves the first rank only
    settings = config.generator
    if settings.engine == "vllm" and settings.dtype == "auto":
        settings = msgspec.structs.replace(settings, dtype=config.learner.compute_dtype)
    engine = open_engine(settings, folder=folder, tokenizer=tokenizer, policy_step=0, module=module)
    return SharedEngine(engine, ranks) if is_shared else engine


def check_engine(config: Config, ranks: Ranks) -> None:
    """Check that the engine can run with a learner on several processes.

    Raises:
        BadSetting: it would join the learner's process group.
    """
    if ranks.size > 1 and config.generator.engine == "vllm" and not config.generator.own_process:
        raise BadSetting(
            f"generator.own_process: expected true for vLLM with a learner on {ranks.size} processes, whose process "
            "group it would join, got false; or use vllm-http, or hf"
        )
