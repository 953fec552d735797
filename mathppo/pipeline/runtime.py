"""What each process of a run holds, and how the first one has all of them work.

torchrun may start several processes. The first one runs the stages: it alone reads problems, grades, writes, reports.
The others stand by and do what it asks of all of them: sample, learn, hand on weights, save, which no process can do
without the others' shards (note M-pipeline-4). One process alone asks nobody.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from torch import Tensor

from mathppo.config import Config
from mathppo.errors import BadSetting
from mathppo.generator.base import Generator, Request, Sampling
from mathppo.generator.engines import open_engine
from mathppo.learner.backend import models
from mathppo.learner.backend.micro_batches import choose_device
from mathppo.learner.backend.sharding import DistContext
from mathppo.learner.learner import Learner
from mathppo.metrics import MetricRow
from mathppo.pipeline.annotate_rollouts import views_of
from mathppo.pipeline.run_directory import RunDirectory
from mathppo.pipeline.stages.learn import learn, open_learner, pretrain_critic
from mathppo.pipeline.weight_sync import Refresher
from mathppo.progress import SILENT, Reporter
from mathppo.prompts import PreTrainedTokenizerBase
from mathppo.records import Problem, Rollout, ScoredRollout
from mathppo.report import RolloutView

T = TypeVar("T")


class SharedEngine:
    """The embedded engines of all ranks as one, that of the first.

    Each holds a whole copy of the policy, for sampling gathers no shards, and of n ranks samples every n-th request. A
    completion depends on its seed and the weights alone, not on the rank that samples it (note M-gen-1).

    Args:
        own: this rank's.
        ranks: the processes.
    """

    shares_weights = False

    def __init__(self, own: Generator, ranks: DistContext) -> None:
        self.own, self.ranks = own, ranks

    @property
    def tokenizer(self) -> Any:
        return self.own.tokenizer

    @property
    def policy_step(self) -> int:
        return self.own.policy_step

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        """Have every rank sample its share; to be exhausted."""
        self.ranks.broadcast(("sample", (requests, sampling)))
        yield from self.sample(requests, sampling)

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        """Yield this rank's rollouts as they finish, then those of the others."""
        done = []
        for rollout in self.own.generate(requests[self.ranks.rank :: self.ranks.size], sampling):
            done.append(rollout)
            yield rollout
        for rank, part in enumerate(self.ranks.gather(done)):
            if rank != self.ranks.rank:
                yield from part

    def refresh(self, policy_step: int, weights: Mapping[str, Tensor] | None = None) -> None:
        """Give this rank's engine new weights; every rank does."""
        self.own.refresh(policy_step, weights)

    def sleep(self) -> None:
        self.own.sleep()

    def close(self) -> None:
        self.own.close()


@dataclass(frozen=True)
class Station:
    """What one rank keeps warm, and the work that all of them do together.

    Args:
        config: of the run.
        run: where everything lies; every rank reads checkpoints there.
        ranks: the processes.
        tokenizer: the policy's.
        learner: this rank's shards of the only trainable state.
        engine: samples from the learner's own policy module, or from weights that it was handed; None where another
            rank's does.
        refresher: hands them over.
        reporter: shows progress, of the first rank only.
    """

    config: Config
    run: RunDirectory
    ranks: DistContext
    tokenizer: PreTrainedTokenizerBase
    learner: Learner
    engine: Generator | None
    refresher: Refresher
    reporter: Reporter

    def ask(self, work: Callable[..., T], *given: Any) -> T:
        """Have all ranks do a piece of work, a method of theirs; give what the first one, which asks, makes of it."""
        self.ranks.broadcast((work.__name__, given))
        return work(*given)

    def serve(self) -> None:
        """Do what the first rank asks, until it asks nothing more."""
        while (asked := self.ranks.broadcast(None)) is not None:
            work, given = asked
            getattr(self, work)(*given)

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Take part in the first rank's sampling."""
        assert isinstance(self.engine, SharedEngine)
        for _ in self.engine.sample(requests, sampling):
            pass

    def learn(self, scored: Sequence[ScoredRollout]) -> MetricRow:
        """Update the learner on one iteration's rollouts; see `learn.learn`. A refresh has to follow."""
        if self.engine is not None:
            self.engine.sleep()
        return learn(self.learner, scored, self.config, self.tokenizer)

    def pretrain_critic(self, scored: Sequence[ScoredRollout]) -> None:
        """Fit a new critic; see `learn.pretrain_critic`."""
        if self.engine is not None:
            self.engine.sleep()
        pretrain_critic(self.learner, scored, self.config, self.tokenizer, self.run.metrics, self.reporter)
        if self.config.generator.sleep:
            self.refresh()  # the policy is as it was, but its engine may have dropped it

    def refresh(self) -> MetricRow:
        """Hand the learner's weights to the engines; see `Refresher.refresh`."""
        return self.refresher.refresh()

    def save(self) -> None:
        """Write a checkpoint of the learner's step."""
        self.learner.save(self.run.checkpoint(self.learner.step), self.tokenizer)

    def view(self, step: int, problems: Sequence[Problem]) -> list[RolloutView]:
        """Look at rollouts of a step through its checkpoint; see `views.views_of`."""
        learner = self.learner
        if step != learner.step:
            learner = open_learner(
                self.config, self.run.checkpoint(step), self.ranks, reference=self.run.warmstart / "policy"
            )
        return views_of(learner, self.tokenizer, problems, self.run)

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()


def open_station(
    config: Config, run: RunDirectory, ranks: DistContext, newest: Path, probe: Problem, reporter: Reporter = SILENT
) -> Station:
    """Open this rank's learner at a checkpoint, and its engine with the same weights; every rank has to.

    Args:
        config: of the run.
        run: where everything lies.
        ranks: the processes.
        newest: the checkpoint to go on from.
        probe: the problem that engines with weights of their own are probed with.
        reporter: shows progress.

    Raises:
        BadSetting: settings that cannot be learnt with, or an engine that cannot run here.
        BadCheckpoint: a damaged checkpoint.
    """
    learner = open_learner(config, newest, ranks, reference=run.warmstart / "policy")
    tokenizer = models.load_tokenizer(newest / "policy")
    engine = _open_engine(config, run, ranks, learner, tokenizer)
    own = engine.own if isinstance(engine, SharedEngine) else engine
    refresher = Refresher(config, own, learner, tokenizer, probe, is_copy=isinstance(engine, SharedEngine))
    try:
        refresher.refresh()
    except BaseException:
        if engine is not None:
            engine.close()
        raise
    return Station(config, run, ranks, tokenizer, learner, engine, refresher, reporter)


def _open_engine(
    config: Config, run: RunDirectory, ranks: DistContext, learner: Learner, tokenizer: PreTrainedTokenizerBase
) -> Generator | None:
    # Any engine with weights of its own starts from the warm start's folder, which stays, and is refreshed.
    folder, module = run.warmstart / "policy", learner.policy
    shares = ranks.size > 1 and config.generator.engine == "hf"
    if shares:
        module = models.load_policy(folder).to(choose_device(config.learner))  # type: ignore[arg-type]
    elif ranks.rank > 0:
        return None  # one engine of its own process or machine serves the first rank, which shards nothing of it
    settings = config.generator
    if settings.engine == "vllm" and settings.dtype == "auto":
        settings = msgspec.structs.replace(settings, dtype=config.learner.compute_dtype)
    engine = open_engine(settings, folder=folder, tokenizer=tokenizer, policy_step=0, module=module)
    return SharedEngine(engine, ranks) if shares else engine


def check_engine(config: Config, ranks: DistContext) -> None:
    """See that the engine can run beside a learner on several processes.

    Raises:
        BadSetting: it would join the learner's own process group.
    """
    if ranks.size > 1 and config.generator.engine == "vllm" and not config.generator.own_process:
        raise BadSetting(
            f"generator.own_process: expected true for vLLM beside a learner on {ranks.size} processes, whose process "
            "group it would join, got false; or use vllm-http, or hf"
        )
