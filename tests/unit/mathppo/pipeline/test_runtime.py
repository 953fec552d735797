"""Rank workers: engines that are allowed with several processes, shared sampling, and commands on all ranks."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tiny_runs import scored_rollout, tiny_config

from mathppo.errors import BadSetting
from mathppo.generator.base import Request, Sampling
from mathppo.learner.backend.sharding import ALONE, Ranks
from mathppo.pipeline import runtime as module
from mathppo.pipeline.run_directory import RunDirectory
from mathppo.pipeline.runtime import Learn, PretrainCritic, RankWorker, SharedEngine, check_engine
from mathppo.records import Rollout

SAMPLING = Sampling(max_new_tokens=4, stop_token_ids=(2,))


class Echo:
    """Answers each request with a rollout of its problem."""

    tokenizer, policy_step, shares_weights = None, 3, True

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        return (scored_rollout(problem_id=request.problem_id).rollout for request in requests)

    def refresh(self, policy_step: int, weights: object = None) -> None:
        self.policy_step = policy_step

    def sleep(self) -> None:
        pass

    def close(self) -> None:
        pass


class Line(Ranks):
    """Ranks that run one after the other; each gathers the objects of those before it."""

    left: list[Any] = []  # noqa: RUF012

    def gather(self, x: Any) -> list[Any]:
        self.left.append(x)
        return list(self.left)


def test_each_rank_samples_its_share_and_gathers_the_others() -> None:
    requests = [Request(problem_id=str(i), sample_index=0, prompt_ids=(1,), seed=i) for i in range(5)]
    shares = [
        [r.problem_id for r in SharedEngine(Echo(), Line(rank, 2)).sample_share(requests, SAMPLING)]
        for rank in range(2)
    ]
    assert shares == [["0", "2", "4"], ["1", "3", "0", "2", "4"]]


def test_engine_that_would_join_the_learners_process_group_is_rejected() -> None:
    inside = tiny_config(("generator.engine", "vllm"))
    check_engine(inside, ALONE)
    check_engine(tiny_config(("generator.engine", "vllm"), ("generator.own_process", "true")), Ranks(0, 2))
    check_engine(tiny_config(), Ranks(1, 2))
    with pytest.raises(BadSetting, match=r"generator\.own_process: expected true .* on 2 processes"):
        check_engine(inside, Ranks(1, 2))


@pytest.mark.parametrize(
    ("engine", "asked", "opened"),
    [("vllm", "auto", "bfloat16"), ("vllm", "float32", "float32"), ("vllm-http", "auto", "auto")],
)
def test_vllm_uses_the_learners_dtype_and_a_server_keeps_its_dtype(
    engine: str, asked: str, opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "open_engine", lambda settings, **_: settings.dtype)
    config = tiny_config(
        ("generator.engine", engine), ("generator.dtype", asked), ("learner.compute_dtype", "bfloat16")
    )
    learner = cast(Any, SimpleNamespace(policy=None))
    assert module._open_engine(config, RunDirectory(Path()), ALONE, learner, cast(Any, None)) == opened


@pytest.mark.parametrize("level", [0, 1, 2])
def test_engine_sleeps_while_learning_and_is_synced_before_it_samples_again(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for name in ("learn", "pretrain_critic"):
        monkeypatch.setattr(module, name, lambda *_, name=name: order.append(name))
    config = tiny_config(("generator.sleep", str(level)))
    engine, weight_sync = (
        SimpleNamespace(**{name: lambda name=name: order.append(name)}) for name in ("sleep", "sync")
    )
    nothing = cast(Any, SimpleNamespace(metrics=None))
    worker = RankWorker(config, nothing, ALONE, nothing, nothing, cast(Any, engine), cast(Any, weight_sync), nothing)
    worker.run_on_all_ranks(PretrainCritic([]))
    assert order == ["sleep", "pretrain_critic", *["sync"] * bool(level)]
    order.clear()
    worker.run_on_all_ranks(Learn([]))
    assert order == ["sleep", "learn"]


class Commanded(Ranks):
    """A rank that is not the first, and receives prepared commands."""

    commands: list[Any] = []  # noqa: RUF012

    def share(self, x: Any) -> Any:
        return self.commands.pop(0)


def test_worker_loop_runs_commands_until_none(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[Any] = []
    monkeypatch.setattr(module, "learn", lambda learner, scored, *_: learnt.append(scored))
    ranks = Commanded(1, 2)
    ranks.commands[:] = [Learn([scored_rollout()]), Learn([]), None, Learn([])]
    nothing = cast(Any, None)
    RankWorker(tiny_config(), nothing, ranks, nothing, nothing, None, nothing, nothing).run_worker_loop()
    assert learnt == [[scored_rollout()], []]
    assert len(ranks.commands) == 1
