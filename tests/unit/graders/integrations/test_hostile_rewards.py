"""A wrapped reward function that does not return a finite number is an error, never a reward of zero."""

import math
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from graders import GraderPool, Status
from graders.integrations.reward_functions import as_reward

HOSTILE = '''
import asyncio, decimal, numbers, os, sys

class Real:
    """A number whose value changes at each conversion."""
    def __init__(self): self.values = iter([0.0, float("nan")])
    def __float__(self): return next(self.values, 1.0)
    def __ge__(self, other): return True
    def __repr__(self): return "Real"
numbers.Real.register(Real)

class Odd(float):
    def __float__(self): return float("nan")
    def __ge__(self, other): return True

class Item:
    ndim = 0
    def __init__(self, given): self.given = given
    def item(self): return self.given() if callable(self.given) else self.given

class Score(dict):
    get = lambda self, key, default=None: float("nan")

class Anything:
    __getattr__ = lambda self, name: self
    __call__ = lambda self, *arguments, **settings: self
    __repr__ = lambda self: "d" * 10_000_000

class Claims:
    __class__ = float

def raised(error): raise error

def endless():
    while True:
        pass

async def forever():
    while True:
        await asyncio.sleep(0.01)

ERRORS = {
    "None": lambda: None, "nan": lambda: float("nan"), "inf": lambda: float("inf"), "-inf": lambda: float("-inf"),
    "text": lambda: "1.0", "long text": lambda: "1" * 10_000_000, "bytes": lambda: b"1", "complex": lambda: 1 + 0j,
    "huge int": lambda: 10**400, "decimal": lambda: decimal.Decimal("NaN"), "set": lambda: {1.0}, "dict": lambda: {},
    "no score": lambda: {"acc": True}, "score None": lambda: {"score": None},
    "score nan": lambda: {"score": float("nan")}, "score text": lambda: {"score": "1"},
    "odd dict": lambda: Score(score=1.0), "nested": lambda: {"score": {"score": 1.0}},
    "item nan": lambda: Item(float("nan")), "item None": lambda: Item(None),
    "item raises": lambda: Item(lambda: 1 / 0), "real that changes": lambda: (real := Real(), float(real))[0],
    "odd float": lambda: Odd(1.0), "claims": lambda: Claims(), "anything": lambda: Anything(),
    "function": lambda: raised, "generator": lambda: (1.0 for _ in "1"),
    "raises": lambda: raised(ValueError("planted")), "exits": lambda: raised(SystemExit(0)),
    "leaves": lambda: os._exit(0), "interrupt": lambda: raised(KeyboardInterrupt()),
    "prints, then fails": lambda: (print("1.0" * 10**6), raised(OSError()))[0],
}
OVER = {"hang": endless, "memory": lambda: [0.0] * 10**12}

def act(text, reference):
    made = ERRORS.get(text) or OVER.get(text)
    return made() if made else 1.0 if text == reference else 0.0

def trl(completions, solution, **columns):
    return [act(*pair) for pair in zip(completions, solution)]

async def trl_async(completions, solution, **columns):
    return [await forever() if text == "hang" else act(text, key) for text, key in zip(completions, solution)]

def trl_shape(completions, **columns):
    return {"empty": [], "two": [1.0, 1.0], "nested": [[1.0]], "none": None,
            "text": "1", "dict": {0: [1.0]}}[completions[0]]

def verl(data_source, solution_str, ground_truth, extra_info=None):
    return act(solution_str, ground_truth)

def openrlhf(queries, prompts, labels):
    return {"rewards": [act(*pair) for pair in zip(queries, labels)]}
'''
SCOPE: dict = {}
exec(textwrap.dedent(HOSTILE), SCOPE)
ERRORS, OVER = list(SCOPE["ERRORS"]), list(SCOPE["OVER"])


@pytest.fixture(scope="module")
def hostile_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "hostile.py"
    path.write_text(HOSTILE)
    return path


@pytest.mark.parametrize("function", ["trl:{}:trl", "trl:{}:trl_async", "verl:{}:verl", "openrlhf:{}:openrlhf"])
def test_results_that_are_not_finite_numbers_are_errors(hostile_file: Path, function: str) -> None:
    actions = [*ERRORS, *OVER, "7", "8"]
    with GraderPool(function.format(hostile_file), time_limit_s=0.5) as pool:
        verdicts = dict(zip(actions, pool.grade([(action, "7") for action in actions]), strict=True))
        counts = pool.counts
    assert {action: verdicts[action].status for action in ERRORS} == dict.fromkeys(ERRORS, Status.ERROR)
    for action in OVER:  # on a busy machine a hang may get too little processor time to be blamed
        assert verdicts[action].status is Status.OVER_BUDGET or verdicts[action].method == "starved", verdicts[action]
    assert (verdicts["7"].status, verdicts["8"].status) == (Status.CORRECT, Status.INCORRECT)
    statuses = Counter(verdict.status.value for verdict in verdicts.values())
    assert {status: counts[status] for status in statuses} == statuses
    assert "expected a finite reward, got nan" in verdicts["nan"].detail


def test_list_of_the_wrong_shape_is_an_error(hostile_file: Path) -> None:
    shapes = ["empty", "two", "nested", "none", "text", "dict"]
    with GraderPool(f"trl:{hostile_file}:trl_shape", time_limit_s=0.5) as pool:
        verdicts = pool.grade([(shape, "7") for shape in shapes])
    statuses = dict(zip(shapes, [verdict.status.value for verdict in verdicts], strict=True))
    assert {shape: status for shape, status in statuses.items() if status != "error"} == {}


def test_number_is_converted_once() -> None:
    assert as_reward(SCOPE["Real"]()) == 0.0
    with pytest.raises(ValueError, match="expected a finite reward, got"):
        as_reward(SCOPE["Odd"](1.0))
    with pytest.raises(OverflowError):
        as_reward(10**400)
    assert math.isclose(as_reward({"score": True}), 1.0)
