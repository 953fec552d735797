"""Verdict validation: an invalid verdict of a plug-in is an error that names the field, never a reward."""

import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from graders import BadGrader, GraderPool, Status, Verdict
from graders.integrations.reward_functions import to_openrlhf, to_trl, to_verl
from graders.sandbox.child.validate_verdict import validate_verdict
from graders.sandbox.diagnostics import describe, type_name

PLUG_IN = """
import enum, math, os
import msgspec
from graders.verdict import Status, Verdict

class Text(str):
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__
    __len__ = lambda self: 1
    __getitem__ = lambda self, key: "x" * 50_000_000
    encode = lambda self, *arguments: b"correct"

class Sub(Verdict):
    correct = property(lambda self: True)

class Claims:
    __class__ = Verdict
    status, answer, grader, method, detail, duration_s = Status.CORRECT, None, "", "", "", 0.0

class Anything:
    __getattr__ = lambda self, name: self
    __call__ = lambda self, *arguments, **settings: self
    __reduce__ = lambda self: os._exit(0)

class Number(float):
    __ge__ = __le__ = __lt__ = lambda self, other: True

class Mine(enum.StrEnum):
    CORRECT = "correct"

class Mute(Exception):
    def __str__(self):
        raise SystemExit(0)

class Loud(Exception):
    def __str__(self):
        return "d" * 10_000_000

class Nameless(type):
    __name__ = property(lambda cls: os._exit(0))

class Masked(Exception, metaclass=Nameless):
    def __str__(self):
        raise KeyboardInterrupt

def made(**fields):
    whole = dict(status=Status.CORRECT, answer=None, grader="g", method="m", detail="d", duration_s=0.0)
    return Verdict(**(whole | fields))

def forced(**fields):
    verdict = made()
    for name, value in fields.items():
        msgspec.structs.force_setattr(verdict, name, value)
    return verdict

def raised(error):
    raise error

def endless():
    while True:
        pass

ACTIONS = {
    "status str": lambda: made(status="correct"),
    "status subclass": lambda: made(status=Text("correct")),
    "status another enum": lambda: made(status=Mine.CORRECT),
    "status no member": lambda: made(status=str.__new__(Status, "correct")),
    "status True": lambda: made(status=True),
    "status None": lambda: made(status=None),
    "status 1.0": lambda: made(status=1.0),
    "answer int": lambda: made(answer=7),
    "answer bytes": lambda: made(answer=b"7"),
    "answer subclass": lambda: made(answer=Text("7")),
    "answer 50 MB": lambda: made(answer="7" * 50_000_000),
    "answer surrogate": lambda: made(answer="\\ud800"),
    "method None": lambda: made(method=None),
    "method list": lambda: made(method=["m"]),
    "method 10 MB": lambda: made(method="m" * 10_000_000),
    "grader None": lambda: made(grader=None),
    "grader subclass": lambda: made(grader=Text("g")),
    "detail None": lambda: made(detail=None),
    "detail dict": lambda: made(detail={}),
    "detail 10 MB": lambda: made(detail="d" * 10_000_000),
    "detail surrogate": lambda: made(detail="\\udfff"),
    "duration_s nan": lambda: made(duration_s=math.nan),
    "duration_s forced nan": lambda: forced(duration_s=math.nan),
    "duration_s forced inf": lambda: forced(duration_s=math.inf),
    "duration_s negative": lambda: forced(duration_s=-1.0),
    "duration_s bool": lambda: made(duration_s=True),
    "duration_s str": lambda: forced(duration_s="0"),
    "duration_s subclass": lambda: forced(duration_s=Number("nan")),
    "Verdict subclass": lambda: Sub(Status.CORRECT, None, "g", "m", "d", 0.0),
    "Verdict claimed": lambda: Claims(),
    "Verdict anything": lambda: Anything(),
    "Verdict class": lambda: Verdict,
    "Verdict None": lambda: None,
    "Verdict True": lambda: True,
    "Verdict nan": lambda: math.nan,
    "Verdict str": lambda: "correct",
    "Verdict status": lambda: Status.CORRECT,
    "Verdict dict": lambda: {"status": "correct", "score": 1.0},
    "Verdict tuple": lambda: (Status.CORRECT, None, "g", "m", "d", 0.0),
    "Verdict generator": lambda: (made() for _ in "1"),
    "ValueError": lambda: raised(ValueError("ValueError of the grader")),
    "SystemExit": lambda: raised(SystemExit(0)),
    "KeyboardInterrupt": lambda: raised(KeyboardInterrupt()),
    "GeneratorExit": lambda: raised(GeneratorExit()),
    "StopIteration": lambda: raised(StopIteration()),
    "ExceptionGroup": lambda: raised(ExceptionGroup("two", [ValueError(), ValueError()])),
    "Mute": lambda: raised(Mute()),
    "Loud": lambda: raised(Loud()),
    "Masked": lambda: raised(Masked()),
}
OVER = {
    "hang": endless,
    "memory": lambda: [0] * 10**12,
}

class Kept:
    name = "kept"
    answers_per_process = 0

    def grade(self, completion, reference, *, question=None):
        action = ACTIONS.get(completion) or OVER.get(completion)
        if action is not None:
            return action()
        return made(status=Status.CORRECT if completion == reference else Status.INCORRECT)

class Thrown(Kept):
    name = "thrown"
    answers_per_process = 8
    examples = (("7", "7", "correct"), ("7", "8", "incorrect"))

class Halves(Kept):
    name = "halves"

    def read(self, completion, *, question=None) -> str:
        return completion

    def judge(self, reading, reference, *, question=None):
        return self.grade(reading, reference)
"""
SCOPE: dict = {}
exec(PLUG_IN, SCOPE)
ACTIONS, OVER = list(SCOPE["ACTIONS"]), list(SCOPE["OVER"])
KINDS = ["Kept", "Thrown", "Halves"]


@pytest.fixture(scope="module")
def plug_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("invalid") / "invalid.py"
    path.write_text(textwrap.dedent(PLUG_IN))
    return path


@pytest.fixture(scope="module", params=KINDS)
def pool(plug_in: Path, request: pytest.FixtureRequest) -> Iterator[GraderPool]:
    with GraderPool(f"{plug_in}:{request.param}", time_limit_s=0.5) as pool:
        yield pool


def test_invalid_verdicts_are_errors_and_are_counted(pool: GraderPool) -> None:
    before = pool.counts
    actions = [*ACTIONS, *OVER, "1", "2"]
    verdicts = dict(zip(actions, pool.grade([(action, "1") for action in actions]), strict=True))
    assert {action: verdicts[action].status for action in ACTIONS} == dict.fromkeys(ACTIONS, Status.ERROR)
    for action in OVER:  # on a busy machine, a hang may get too little processor time to be over budget
        assert verdicts[action].status is Status.OVER_BUDGET or verdicts[action].method == "starved", verdicts[action]
    assert [verdicts[text].status for text in ("1", "2")] == [Status.CORRECT, Status.INCORRECT]
    for action in ACTIONS:
        assert action.split()[0] in verdicts[action].detail, (action, verdicts[action])
        assert len(verdicts[action].detail) <= 500
    given = Counter(verdict.status.value for verdict in verdicts.values())
    assert {status: pool.counts[status] - before.get(status, 0) for status in given} == given


def test_trainers_get_no_reward_for_invalid_verdicts(pool: GraderPool) -> None:
    actions = ["status str", "Verdict None", "duration_s forced nan", "detail 10 MB", "1", "2"]
    key = ["1"] * len(actions)
    assert to_trl(pool)(prompts=actions, completions=actions, solution=key) == [None, None, None, None, 1.0, 0.0]
    for action in actions[:4]:
        given = to_verl(pool)("source", action, "1")
        assert (given["score"] != given["score"], given["acc"], given["grader_error"]) == (True, False, True)
    given = to_openrlhf(pool)(actions, [""] * len(actions), key)
    assert [float(reward) for reward in given["rewards"]][4:] == [1.0, 0.0]
    assert [float(flag) for flag in given["extra_logs"]["grader_error"]] == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]


def test_verdicts_inside_a_cascade_are_validated(plug_in: Path) -> None:
    with GraderPool(f"cascade:{plug_in}:Halves,exact", time_limit_s=0.5) as pool:
        verdicts = pool.grade([("#### 2", "1"), ("#### 1", "1"), ("status str", "1"), ("Verdict True", "1")])
    assert [verdict.status.value for verdict in verdicts] == ["incorrect", "correct", "error", "error"]
    assert "got str 'correct'" in verdicts[2].detail


def test_valid_verdict_passes_with_its_texts_cut_and_its_duration_measured() -> None:
    given = Verdict(Status.INCORRECT, "a" * 5000, "g" * 200, "m" * 50, "one\ntwo" + "d" * 600, 5)
    kept = validate_verdict(given, "name", 0.25)
    assert kept == Verdict(Status.INCORRECT, "a" * 4096, "g" * 100, "m" * 40, "one two" + "d" * 493, 0.25)
    assert validate_verdict(Verdict(Status.CORRECT, None, "", "", "", 0.0), "name", 0.0).correct


def test_error_names_the_invalid_field_and_the_expected_value() -> None:
    with pytest.raises(BadGrader, match=r"grader 'mine': expected a graders.Verdict, got NoneType None"):
        validate_verdict(None, "mine", 0.0)
    with pytest.raises(
        BadGrader, match=r"status is one of graders.Status, such as Status.INCORRECT, got str 'correct'"
    ):
        validate_verdict(SCOPE["ACTIONS"]["status str"](), "mine", 0.0)
    with pytest.raises(BadGrader, match="whose answer has at most 1048576 characters, got str of 50000000 characters"):
        validate_verdict(SCOPE["ACTIONS"]["answer 50 MB"](), "mine", 0.0)
    with pytest.raises(BadGrader, match="whose detail can be encoded, without lone surrogates"):
        validate_verdict(SCOPE["ACTIONS"]["detail surrogate"](), "mine", 0.0)
    with pytest.raises(BadGrader, match="whose duration_s is a finite number >= 0, got float nan"):
        validate_verdict(SCOPE["ACTIONS"]["duration_s forced nan"](), "mine", 0.0)
    with pytest.raises(BadGrader, match="whose method is a str, got list"):
        validate_verdict(SCOPE["ACTIONS"]["method list"](), "mine", 0.0)


def test_any_exception_can_be_described() -> None:
    assert describe(ValueError("one\ntwo\ud800")) == "ValueError: one two?"
    assert describe(SCOPE["Mute"]()) == "Mute"
    assert len(describe(SCOPE["Loud"]())) == 500
    assert type_name(SCOPE["Masked"]()) == "Masked"
