"""Adapters in both directions, with the signatures and return shapes of TRL, verl and OpenRLHF."""

import asyncio
import math
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graders import BadGrader, BadInput, GraderPool, Status, UnknownGrader
from graders.grader import absolute_spec
from graders.integrations.reward_functions import (
    as_reward,
    from_openrlhf,
    from_trl,
    from_verl,
    to_openrlhf,
    to_trl,
    to_verl,
)

FAILING = """
from graders.verdict import Status, Verdict

class Failing:
    name = "failing"
    answers_per_process = 0

    def grade(self, completion, reference, *, question=None):
        if "fail" in completion:
            raise ValueError("planted")
        same = completion.endswith(reference)
        return Verdict(Status.CORRECT if same else Status.INCORRECT, None, self.name, "", question or "", 0.0)
"""
REWARDS = """
import asyncio, time

class Tensor:
    ndim = 1
    def __init__(self, *values): self.values = values
    def __len__(self): return len(self.values)
    def __getitem__(self, k): return Scalar(self.values[k])

class Scalar:
    ndim = 0
    def __init__(self, value): self.value = value
    def item(self): return self.value

def score_of(text, reference):
    if text == "hang":
        while True: pass
    if text == "raise": raise RuntimeError("planted")
    return {"none": None, "nan": float("nan"), "text": "1.0", "true": True, "int": 1, "tensor": Scalar(1.0),
            "dict": {"score": 1.0, "acc": True}, "no score": {"acc": True}}.get(text, 1.0 if text == reference else 0.0)

def accuracy_reward(completions, solution, log_extra=None, **kwargs):
    log_extra("column", solution)
    return [score_of(c, s) for c, s in zip(completions, solution)]

async def slow_reward(prompts, completions, completion_ids, answer, **kwargs):
    await asyncio.sleep(0)
    return [score_of(c, a) for c, a in zip(completions, answer)]

def two_rewards(completions, **kwargs): return [1.0, 1.0]

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return score_of(solution_str, ground_truth)

async def compute_score_async(data_source, solution_str, ground_truth, extra_info=None):
    return score_of(solution_str, ground_truth)

def reward_func(queries, prompts, labels, **kwargs):
    return {"rewards": Tensor(*(score_of(q[len(p):], l) for q, p, l in zip(queries, prompts, labels))), "scores": None}

def bare_rewards(queries, prompts, labels): return [1.0]

constant = 3
"""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GraderPool]:
    path = tmp_path_factory.mktemp("failing") / "failing.py"
    path.write_text(textwrap.dedent(FAILING))
    with GraderPool(f"{path}:Failing") as pool:
        yield pool


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rewards") / "rewards.py"
    path.write_text(textwrap.dedent(REWARDS))
    return path


def test_trl_gets_none_for_an_error_and_metrics(pool: GraderPool) -> None:
    metrics: dict[str, float] = {}
    reward = to_trl(pool)(
        prompts=["2+2?", "2+2?", [{"role": "user", "content": "2+2?"}]],
        completions=["it is 4", "fail", [{"role": "assistant", "content": "5"}]],
        completion_ids=[[1], [2], [3]],
        solution=["4", "4", "4"],
        trainer_state=None,
        log_extra=lambda column, values: None,
        log_metric=metrics.__setitem__,
    )
    assert reward == [1.0, None, 0.0]
    assert metrics["graders/error"] == pytest.approx(1 / 3)
    assert to_trl(pool, reference="key")(prompts=["q"], completions=["4"], key=[4]) == [1.0]


def test_verl_gets_a_dict_with_score(pool: GraderPool) -> None:
    compute_score = to_verl(pool)
    right = compute_score(data_source="gsm8k", solution_str="4", ground_truth=4, extra_info={"question": "2+2?"})
    assert right == {"score": 1.0, "acc": True, "grader_error": False, "status": "correct"}
    failed = compute_score("gsm8k", "fail", "4", None, reward_router_address="x")
    assert math.isnan(failed["score"])
    assert failed["grader_error"] is True


def test_openrlhf_gets_tensors_and_the_prompt_is_removed(pool: GraderPool) -> None:
    given = to_openrlhf(pool)(["fail? 4", "fail? 5", "q fail"], ["fail? ", "fail? ", "q "], ["4", "4", "4"])
    assert isinstance(given["rewards"], torch.Tensor)
    assert torch.equal(given["rewards"][:2], torch.tensor([1.0, 0.0]))
    assert math.isnan(given["rewards"][2].item())
    assert given["scores"].tolist() == [1.0, 0.0, 0.0]
    assert given["extra_logs"]["grader_error"].tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "function",
    [
        "trl:{}:accuracy_reward",
        "trl:{}:slow_reward",
        "verl:{}:compute_score",
        "verl:{}:compute_score_async",
        "openrlhf:{}:reward_func",
    ],
)
def test_wrapped_reward_functions_grade(rewards: Path, function: str) -> None:
    spec = function.format(rewards)
    completions = ["7", "8", "true", "int", "none", "nan", "text", "raise", "hang", "7"]
    with GraderPool(spec, time_limit_s=0.5) as pool:
        verdicts = pool.grade([(completion, "7", "a question") for completion in completions])
    right, wrong, error, over = Status.CORRECT, Status.INCORRECT, Status.ERROR, Status.OVER_BUDGET
    assert [v.status for v in verdicts] == [right, wrong, right, right, error, error, error, error, over, right]
    assert verdicts[0].grader == spec
    assert "expected a finite reward, got None" in verdicts[4].detail


def test_wrapped_file_is_relative_to_the_current_folder(rewards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(rewards.parent)
    with GraderPool(f"trl:{rewards.name}:accuracy_reward") as pool:
        (verdict,) = pool.grade([("7", "7")])
    assert verdict.correct
    assert absolute_spec(f"cascade:exact, {rewards.name}:Mine") == f"cascade:exact,{rewards}:Mine"
    assert [absolute_spec(name) for name in ("math", "trl", "trl:a.b:c")] == ["math", "trl", "trl:a.b:c"]


def test_dicts_and_tensors_are_accepted_as_rewards(rewards: Path) -> None:
    grader: Any = from_verl(f"{rewards}:compute_score")
    assert grader.grade("dict", "").correct
    assert grader.grade("tensor", "").correct
    with pytest.raises(ValueError, match="expected a finite reward, got None"):
        grader.grade("no score", "")
    assert as_reward(torch.tensor(0.25)) == 0.25


def test_wrong_shapes_are_rejected(rewards: Path) -> None:
    with pytest.raises(ValueError, match=r"expected one reward for one completion, got \[1.0, 1.0\]"):
        from_trl(f"{rewards}:two_rewards").grade("", "")
    with pytest.raises(ValueError, match="expected a dict with the key rewards"):
        from_openrlhf(f"{rewards}:bare_rewards").grade("", "")
    with pytest.raises(BadGrader, match="expected a function, got int"):
        from_verl(f"{rewards}:constant")
    with pytest.raises(UnknownGrader, match="found no such attribute"):
        from_verl(f"{rewards}:missing")


def test_adapters_work_from_threads_and_event_loops(pool: GraderPool) -> None:
    async def score() -> dict[str, Any]:
        return await asyncio.to_thread(to_verl(pool), "source", "4", "4")

    assert asyncio.run(score())["score"] == 1.0


def test_missing_column_is_named(pool: GraderPool) -> None:
    with pytest.raises(BadInput, match=r"expected the dataset column 'solution', got"):
        to_trl(pool)(prompts=["p"], completions=["4"], completion_ids=[[1]], answer=["4"])


@pytest.mark.parametrize("accepted", [["1/2", "0.5"], ("1/2", "0.5"), torch.tensor([2, 4]), [2, 4]])
def test_several_accepted_answers_become_a_json_list(accepted: Any) -> None:
    completion = "\\boxed{0.5}" if "0.5" in list(accepted) else "\\boxed{4}"
    with GraderPool("math", num_workers=1) as math_pool:
        assert to_verl(math_pool)("set", completion, accepted)["score"] == 1.0
        assert to_verl(math_pool)("set", "\\boxed{7}", accepted)["score"] == 0.0
        assert to_trl(math_pool)(prompts=["p"], completions=[completion], solution=[accepted]) == [1.0]
