"""Adapters between graders and the reward functions of TRL, verl and OpenRLHF, in both directions.

    to_trl(pool)        reward_func(prompts, completions, **columns) -> list[float | None]
    to_verl(pool)       compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs) -> dict
    to_openrlhf(pool)   reward_func(queries, prompts, labels, **kwargs) -> dict
    from_trl(spec), from_verl(spec), from_openrlhf(spec)
                        a grader for `GraderPool("trl:path.py:reward_func")`, `verl:…` and `openrlhf:…`

A verdict of `error` yields no reward: None for TRL, which leaves the sample out, and NaN with a counted flag for verl
and OpenRLHF, which have no value for it. Wrapped functions run in a sandbox worker; a hang or crash ends as a verdict.
"""

import asyncio
import inspect
import json
import math
import numbers
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from graders.errors import BadGrader, BadInput
from graders.grader import Grader, load_attribute
from graders.sandbox.host.pool import GraderPool
from graders.verdict import Status, Verdict

CORRECT_AT_LEAST = 0.5
"""Rewards of at least this count as correct; it suits functions that score 1 and 0, or 1 and -1."""


def reward_of(verdict: Verdict) -> float | None:
    """Return 1 for `correct`, None for `error`, and 0 for every other status."""
    return None if verdict.status is Status.ERROR else float(verdict.correct)


def to_trl(
    pool: GraderPool, reference: str = "solution", question: str | None = None
) -> Callable[..., list[float | None]]:
    """Return a reward function for TRL's trainers.

    Args:
        pool: the pool that grades.
        reference: the dataset column that holds the reference answer.
        question: the column that holds the problem text; None for the prompt's last message.
    """

    def graders_reward(
        prompts: Sequence[Any], completions: Sequence[Any], log_metric: Callable | None = None, **columns: Any
    ) -> list[float | None]:
        questions = [_text_of(prompt) for prompt in prompts] if question is None else _column(columns, question)
        items = [
            (_text_of(completion), _reference_of(answer), asked)
            for completion, answer, asked in zip(completions, _column(columns, reference), questions, strict=True)
        ]
        verdicts = pool.grade(items)
        if log_metric is not None:
            for status in Status:
                log_metric(f"graders/{status.value}", sum(v.status is status for v in verdicts) / max(1, len(verdicts)))
        return [reward_of(verdict) for verdict in verdicts]

    return graders_reward


def to_verl(pool: GraderPool) -> Callable[..., dict[str, Any]]:
    """Return a `compute_score` for verl's `custom_reward_function`; verl logs every key except `score` per sample."""

    def compute_score(
        data_source: str, solution_str: str, ground_truth: Any, extra_info: dict | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        question = (extra_info or {}).get("question")
        verdict = pool.grade([(solution_str, _reference_of(ground_truth), question)])[0]
        reward = reward_of(verdict)
        return {
            "score": math.nan if reward is None else reward,
            "acc": verdict.correct,
            "grader_error": reward is None,
            "status": verdict.status.value,
        }

    return compute_score


def to_openrlhf(pool: GraderPool) -> Callable[..., dict[str, Any]]:
    """Return a `reward_func` for OpenRLHF's Python reward; it returns tensors if torch is loaded, else lists."""

    def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str], **kwargs: Any) -> dict:
        verdicts = pool.grade(openrlhf_items(queries, prompts, labels))
        rewards = [math.nan if (reward := reward_of(v)) is None else reward for v in verdicts]
        errors = [float(verdict.status is Status.ERROR) for verdict in verdicts]
        return {
            "rewards": _tensor(rewards),
            "scores": _tensor([float(verdict.correct) for verdict in verdicts]),
            "extra_logs": {"grader_error": _tensor(errors)},
        }

    return reward_func


def openrlhf_items(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str]
) -> list[tuple[str, str, str | None]]:
    """Return the items to grade; a query is the prompt followed by the completion, so the prompt is removed."""
    return [
        (query.removeprefix(prompt), label, prompt)
        for query, prompt, label in zip(queries, prompts, labels, strict=True)
    ]


class RewardFunctionGrader:
    """Grader that calls a reward function on one completion at a time and compares its reward with a threshold."""

    def __init__(self, name: str, call: Callable[[str, str, str | None], Any]) -> None:
        self.name = name
        self._call = call

    def grade(self, completion: str, reference: str, *, question: str | None = None) -> Verdict:
        """Call the function.

        Raises:
            ValueError: the result is not a reward; the sandbox turns this into an `error`.
        """
        reward = as_reward(_await_result(self._call(completion, reference, question)))
        status = Status.CORRECT if reward >= CORRECT_AT_LEAST else Status.INCORRECT
        return Verdict(status, None, self.name, "reward", f"reward {reward:g}", 0.0)


def from_trl(spec: str) -> Grader:
    """Wrap `reward_func(prompts, completions, **columns)`; `solution` and `answer` hold the reference."""
    function = _function(spec)

    def call(completion: str, reference: str, question: str | None) -> Any:
        ids = list(completion.encode())  # there is no tokenizer, so length-based rewards count bytes
        result = function(
            prompts=[question or ""],
            completions=[completion],
            completion_ids=[ids],
            solution=[reference],
            answer=[reference],
            trainer_state=None,
            log_extra=lambda column, values: None,
            log_metric=lambda name, value: None,
        )
        return _only_reward(_await_result(result))

    return RewardFunctionGrader(f"trl:{spec}", call)


def from_verl(spec: str) -> Grader:
    """Wrap `compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs)`."""
    function = _function(spec)

    def call(completion: str, reference: str, question: str | None) -> Any:
        extra = {"question": question, "index": 0, "split": "train"}
        return function(data_source="graders", solution_str=completion, ground_truth=reference, extra_info=extra)

    return RewardFunctionGrader(f"verl:{spec}", call)


def from_openrlhf(spec: str) -> Grader:
    """Wrap `reward_func(queries, prompts, labels, **kwargs) -> {"rewards": …}`."""
    function = _function(spec)

    def call(completion: str, reference: str, question: str | None) -> Any:
        prompt = question or ""
        result = function([prompt + completion], [prompt], [reference])
        if not isinstance(result, dict) or "rewards" not in result:
            raise ValueError(f"expected a dict with the key rewards, got {result!r:.80}")
        return _only_reward(result["rewards"])

    return RewardFunctionGrader(f"openrlhf:{spec}", call)


def as_reward(value: Any) -> float:
    """Convert a number, a dict with `score`, or a tensor of one element to a float.

    Raises:
        ValueError: the value is none of these, or not finite.
    """
    if isinstance(value, dict):
        value = value.get("score")
    if hasattr(value, "item"):
        value = value.item()
    reward = float(value) if isinstance(value, numbers.Real) else math.nan  # converted once: __float__ may change
    if not math.isfinite(reward):
        raise ValueError(f"expected a finite reward, got {value!r:.80}")
    return reward


class _TimerOnlyLoop(asyncio.BaseEventLoop):
    """Event loop without sockets, which a sandboxed worker cannot open; it runs callbacks and timers only."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = self

    def select(self, timeout: float | None) -> list[Any]:
        time.sleep(0.001 if timeout is None else max(0.0, timeout))
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list


def _await_result(result: Any) -> Any:
    """Run `result` to completion if it is a coroutine, else return it unchanged."""
    if not inspect.iscoroutine(result):
        return result
    loop = _TimerOnlyLoop()
    try:
        return loop.run_until_complete(result)
    finally:
        loop.close()


def _only_reward(rewards: Any) -> Any:
    """Return the reward of a list or tensor of one element."""
    if isinstance(rewards, numbers.Real) or getattr(rewards, "ndim", 1) == 0:
        return rewards
    if not hasattr(rewards, "__len__") or len(rewards) != 1:
        raise ValueError(f"expected one reward for one completion, got {rewards!r:.80}")
    return rewards[0]


def _function(spec: str) -> Callable[..., Any]:
    found = load_attribute(spec)
    if not callable(found):
        raise BadGrader(f"reward function {spec!r}: expected a function, got {type(found).__name__}")
    return found


def _column(columns: dict[str, Any], name: str) -> Sequence[Any]:
    if name not in columns:
        raise BadInput(
            f"reward function: expected the dataset column {name!r}, got {sorted(columns)}; pass its name to to_trl()"
        )
    return columns[name]


def _reference_of(value: Any) -> str:
    """Return a reference as text; a list or array of accepted answers becomes the JSON list that graders read."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return json.dumps([str(answer) for answer in value]) if isinstance(value, list | tuple) else str(value)


def _text_of(message: Any) -> str:
    """Return the text of a plain prompt or completion, or of the last message of a conversation."""
    if isinstance(message, str):
        return message
    content = message[-1]["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _tensor(values: list[float]) -> Any:
    torch = sys.modules.get("torch")  # this package never imports torch; the caller may have
    return torch.tensor(values) if torch is not None else values
