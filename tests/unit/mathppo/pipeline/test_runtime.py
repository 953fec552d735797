"""What the processes of a run hold: which engines can stand beside them, and that each samples its share."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tiny_runs import scored_rollout, tiny_config

from mathppo.errors import BadSetting
from mathppo.generator.base import Request, Sampling
from mathppo.learner.backend.sharding import SINGLE_PROCESS, DistContext
from mathppo.pipeline import runtime as module
from mathppo.pipeline.run_directory import RunDirectory
from mathppo.pipeline.runtime import SharedEngine, Station, check_engine
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


class Line(DistContext):
    """Ranks that are asked one after the other, and gather what was left for them."""

    left: list[Any] = []  # noqa: RUF012

    def gather(self, x: Any) -> list[Any]:
        self.left.append(x)
        return list(self.left)


def test_each_rank_samples_its_share_and_the_last_one_sees_all() -> None:
    requests = [Request(problem_id=str(i), sample_index=0, prompt_ids=(1,), seed=i) for i in range(5)]
    shares = [
        [r.problem_id for r in SharedEngine(Echo(), Line(rank, 2)).sample(requests, SAMPLING)] for rank in range(2)
    ]
    assert shares == [["0", "2", "4"], ["1", "3", "0", "2", "4"]]


def test_an_engine_that_would_join_the_learners_processes_is_refused() -> None:
    inside = tiny_config(("generator.engine", "vllm"))
    check_engine(inside, SINGLE_PROCESS)
    check_engine(tiny_config(("generator.engine", "vllm"), ("generator.own_process", "true")), DistContext(0, 2))
    check_engine(tiny_config(), DistContext(1, 2))
    with pytest.raises(BadSetting, match=r"generator\.own_process: expected true .* on 2 processes"):
        check_engine(inside, DistContext(1, 2))


@pytest.mark.parametrize(
    ("engine", "asked", "opened"),
    [("vllm", "auto", "bfloat16"), ("vllm", "float32", "float32"), ("vllm-http", "auto", "auto")],
)
def test_an_engine_of_our_own_samples_in_the_learners_precision_and_a_server_in_its_own(
    engine: str, asked: str, opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "open_engine", lambda settings, **_: settings.dtype)
    config = tiny_config(
        ("generator.engine", engine), ("generator.dtype", asked), ("learner.compute_dtype", "bfloat16")
    )
    learner = cast(Any, SimpleNamespace(policy=None))
    assert module._open_engine(config, RunDirectory(Path()), SINGLE_PROCESS, learner, cast(Any, None)) == opened


@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_engine_leaves_the_gpu_to_the_learner_and_has_weights_when_it_samples_again(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for name in ("learn", "pretrain_critic"):
        monkeypatch.setattr(module, name, lambda *_, name=name: order.append(name))
    config = tiny_config(("generator.sleep", str(level)))
    engine, refresher = (
        SimpleNamespace(**{name: lambda name=name: order.append(name)}) for name in ("sleep", "refresh")
    )
    nothing = cast(Any, SimpleNamespace(metrics=None))
    one = Station(config, nothing, SINGLE_PROCESS, nothing, nothing, cast(Any, engine), cast(Any, refresher), nothing)
    one.pretrain_critic([])
    assert order == ["sleep", "pretrain_critic", *["refresh"] * bool(level)]
    order.clear()
    one.learn([])
    assert order == ["sleep", "learn"]
