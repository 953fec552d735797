"""The conformance kit passes correct graders and names the faults of others."""

import json
import textwrap
from pathlib import Path

import pytest

from graders import Status, cli
from graders.integrations.conformance import HOSTILE, Conformance, Labelled, conform, render

GRADERS = """
import itertools, time
from graders.verdict import Status, Verdict

class Good:
    name = "good"
    examples = (("\\\\boxed{42}", "42", "correct"), ("\\\\boxed{41}", "42", "incorrect"))

    def grade(self, completion, reference, *, question=None):
        right = completion == f"\\\\boxed{{{reference}}}"
        return Verdict(Status.CORRECT if right else Status.INCORRECT, None, self.name, "exact", "", 0.0)

class Bare(Good):
    name = "bare"
    examples = ()

class NoQuestion(Good):
    def grade(self, completion, reference):
        return super().grade(completion, reference)

class Positional(Good):
    def grade(self, completion, *, reference="", question=None):
        return super().grade(completion, reference)

class Fickle(Good):
    answers_per_process = 0
    counter = itertools.count()

    def grade(self, completion, reference, *, question=None):
        right = next(self.counter) % 3 == 0
        return Verdict(Status.CORRECT if right else Status.INCORRECT, None, self.name, "luck", "", 0.0)

class Raising(Good):
    def grade(self, completion, reference, *, question=None):
        if not completion:
            raise ValueError("planted")
        return super().grade(completion, reference)

class Hanging(Good):
    def grade(self, completion, reference, *, question=None):
        while "9^" in completion:
            pass
        return super().grade(completion, reference)

class Gullible(Good):
    def grade(self, completion, reference, *, question=None):
        if "CORRECT" in completion:
            return Verdict(Status.CORRECT, None, self.name, "claim", "", 0.0)
        return super().grade(completion, reference)

class Poisoned(Good):
    answers_per_process = 0
    poison = False

    def grade(self, completion, reference, *, question=None):
        Poisoned.poison = Poisoned.poison or "__import__" in completion
        return super().grade(completion if not Poisoned.poison else "", reference)

class Slow(Good):
    def grade(self, completion, reference, *, question=None):
        time.sleep(0.15)
        return super().grade(completion, reference)
"""


@pytest.fixture(scope="module")
def graders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("authors") / "authors.py"
    path.write_text(textwrap.dedent(GRADERS))
    return path


def outcomes(found: Conformance) -> dict[str, str]:
    return {check.name: check.outcome for check in found.checks if check.outcome != "pass"}


def test_good_grader_conforms(graders: Path) -> None:
    found = conform(f"{graders}:Good")
    assert outcomes(found) == {}
    assert found.passed
    assert "good: conforms" in render(found)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Bare", {"examples": "note"}),
        pytest.param(
            "Positional",
            {"signature": "fail", "examples": "fail", "poisoning": "fail", "exceptions": "fail"},
            marks=pytest.mark.slow,
        ),
        ("Raising", {"exceptions": "fail"}),
        ("Hanging", {"hangs and memory": "note"}),
        ("Gullible", {"false praise": "fail"}),
    ],
)
def test_each_fault_is_reported(graders: Path, name: str, expected: dict[str, str]) -> None:
    assert outcomes(conform(f"{graders}:{name}")) == expected


def test_grade_without_question_parameter_fails(graders: Path) -> None:
    found = conform(f"{graders}:NoQuestion")
    assert outcomes(found)["signature"] == "fail"
    assert "expected (completion, reference, *, question=None), got ['completion', 'reference']" in render(found)


def test_random_and_poisoned_verdicts_are_detected(graders: Path) -> None:
    assert "fail" in outcomes(conform(f"{graders}:Fickle")).values()
    poisoned = conform(f"{graders}:Poisoned")
    assert outcomes(poisoned) == {"exceptions": "fail"}  # the canaries detect it at once
    assert "code (canary: after this answer, known answers got incorrect, incorrect" in render(poisoned)


@pytest.mark.slow
def test_slow_grader_is_noted(graders: Path) -> None:
    assert outcomes(conform(f"{graders}:Slow")) == {"throughput": "note"}


def test_labelled_rows_yield_a_confusion_table(graders: Path) -> None:
    rows = [
        Labelled("\\boxed{1}", "1", Status.CORRECT),
        Labelled("\\boxed{1}", "2", Status.CORRECT),
        Labelled("\\boxed{1}", "2", False),
    ]
    found = conform(f"{graders}:Good", rows)
    assert found.confusion == {"correct > correct": 1, "correct > incorrect": 1, "not correct > incorrect": 1}
    assert outcomes(found) == {"labelled file": "fail"}
    assert "1 of 3 verdicts differ" in render(found)


def test_command_reads_a_labelled_file(graders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labelled = tmp_path / "labelled.jsonl"
    labelled.write_text(
        '{"completion": "\\\\boxed{1}", "reference": "1", "status": "correct"}\n'
        '{"response": "\\\\boxed{1}", "gold": "2", "label": false, "id": 7}\n'
    )
    assert cli.main(["conformance", f"{graders}:Good", "--labelled", str(labelled), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["confusion"] == {"correct > correct": 1, "not correct > incorrect": 1}
    assert cli.main(["conformance", f"{graders}:Gullible"]) == 1
    assert "gullible" not in capsys.readouterr().err
    labelled.write_text('{"completion": "x"}\n')
    assert cli.main(["conformance", f"{graders}:Good", "--labelled", str(labelled)]) == 2
    assert "expected completion or response, reference or gold, and status or label" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("examples = None", "expected examples as a sequence of"),
        ("examples = [('7', '7')]", "not enough values to unpack"),
        ("examples = [('7', '7', 'right')]", "'right' is not a valid Status"),
        ("examples = property(lambda self: 1 / 0)", "attribute examples"),
        ("answers_per_process = 'all'", "expected answers_per_process from 0"),
        ("name = 3", "expected an object with a name"),
        ("__init__ = lambda self: exit(0)", "expected it to load, got SystemExit"),
    ],
)
def test_grader_that_cannot_start_is_bad_usage_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], attribute: str, message: str
) -> None:
    (tmp_path / "odd.py").write_text(textwrap.dedent(GRADERS) + f"\nclass Odd(Good):\n    {attribute}\n")
    assert cli.main(["conformance", f"{tmp_path}/odd.py:Odd"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("graders conformance: ")
    assert message in printed
    assert printed.count("\n") == 1


def test_async_method_fails(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(
        textwrap.dedent(GRADERS) + "\nclass Waiting(Good):\n    async def grade(self, c, r, *, question=None): ...\n"
    )
    found = conform(f"{tmp_path}/waiting.py:Waiting")
    assert "expected a plain method grade, got an async one" in render(found)
    assert not found.passed


@pytest.mark.parametrize("spec", ["exact", "numeric", "choice", "equation"])
def test_shipped_graders_conform(spec: str) -> None:
    assert [check for check in conform(spec).checks if check.outcome == "fail"] == []


def test_hostile_texts_are_distinct() -> None:
    assert len(set(HOSTILE.values())) == len(HOSTILE) >= 15
