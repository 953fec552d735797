"""Graded samples to the rows of an evaluation."""

import random

import msgspec
import pytest

from graders.verdict import Status, Verdict
from mathppo.errors import BadInput
from mathppo.evaluate.accuracy import Evaluation, Group, summarise_outcomes
from mathppo.evaluate.outcomes import Answer, outcomes_of
from mathppo.evaluate.statistics import wilson_interval
from mathppo.records import Problem


def problem(name: str, family: str = "linear", level: int = 1) -> Problem:
    return Problem(id=name, question=f"{name}?", reference="1", family=family, level=level)


def answer(name: str, status: Status, *, index: int = 0, length: int = 3, truncated: bool = False) -> Answer:
    return Answer(name, index, length, truncated, Verdict(status, None, "math", "exact", "", 0.0))


def summarise(name: str, step: int, mode: str, problems: list[Problem], answers: list[Answer]) -> Evaluation:
    return summarise_outcomes(name, step, mode, problems, outcomes_of(name, problems, answers))


PROBLEMS = [problem("a"), problem("b", level=2), problem("c", "quadratic", 10), problem("d", "quadratic", 2)]
GREEDY = [
    answer("a", Status.CORRECT, length=2),
    answer("b", Status.ERROR, length=4),
    answer("c", Status.NO_ANSWER, length=10, truncated=True),
    answer("d", Status.INCORRECT, length=8),
]


def test_rows_of_a_greedy_evaluation() -> None:
    evaluation = summarise("held_out", 4, "greedy", PROBLEMS, GREEDY)
    row = evaluation.overall
    assert (row.num_problems, row.num_samples, evaluation.samples_per_problem) == (4, 4, 1)
    assert row.accuracy == pytest.approx(1 / 3), "the grader's error leaves the denominator"
    assert (row.low, row.high) == wilson_interval(1, 3)
    assert row.error_share == 0.25
    assert row.no_answer_share == row.truncated_share == 0.25
    assert row.unparsable_share == row.over_budget_share == 0
    assert row.finished_accuracy == 0.5, "of a and d; b's grader failed and c did not finish"
    assert row.mean_length_tokens == 6
    assert row.p95_length_tokens == 10
    assert [(r.group, r.label, r.num_problems) for r in evaluation.rows] == [
        ("all", "all", 4),
        ("family", "linear", 2),
        ("family", "quadratic", 2),
        ("level", "1", 1),
        ("level", "2", 2),
        ("level", "10", 1),
    ]
    assert [r.accuracy for r in evaluation.by(Group.LEVEL)] == [1, 0, 0]


def test_sampled_intervals_resample_problems() -> None:
    samples = [answer("a", Status.CORRECT, index=i) for i in range(50)]
    samples += [answer("b", Status.INCORRECT, index=i) for i in range(50)]
    row = summarise("held_out", 4, "sampled", PROBLEMS[:2], samples).overall
    assert row.accuracy == 0.5
    assert (row.low, row.high) == (0, 1), "100 samples of two problems are two observations"


def test_order_of_samples_does_not_change_a_byte() -> None:
    source = random.Random(0)
    samples = [answer(p.id, source.choice(list(Status)), index=i) for p in PROBLEMS for i in range(6)]
    first = msgspec.json.encode(summarise("s", 4, "sampled", PROBLEMS, samples))
    source.shuffle(samples)
    assert msgspec.json.encode(summarise("s", 4, "sampled", PROBLEMS[::-1], samples)) == first
    assert msgspec.json.encode(msgspec.json.decode(first, type=Evaluation)) == first
    assert first.startswith(b'{"schema":"evaluation/1","name":"s","policy_step":4,"mode":"sampled"')


def test_accuracy_without_graded_samples_is_none() -> None:
    row = summarise("s", 0, "greedy", [problem("a")], [answer("a", Status.ERROR)]).overall
    assert (row.accuracy, row.finished_accuracy, row.low, row.high, row.error_share) == (None, None, 0, 1, 1)


def test_problems_without_family_or_level() -> None:
    silent = [Problem(id=x, question="?", reference="1") for x in "ab"]
    samples = [answer(x, Status.CORRECT) for x in "ab"]
    assert len(summarise("s", 0, "greedy", silent, samples).rows) == 1
    mixed = [silent[0], problem("b")]
    labels = [(r.group, r.label) for r in summarise("s", 0, "greedy", mixed, samples).rows]
    assert labels == [("all", "all"), ("family", "unknown"), ("family", "linear"), ("level", "unknown"), ("level", "1")]


@pytest.mark.parametrize(
    ("problems", "samples", "message"),
    [
        ([], [], "at least one problem, got none"),
        ([problem("a"), problem("a")], [], "ids that are unique, got 1 ids of 2"),
        ([problem("a")], [answer("z", Status.CORRECT)], "samples of its problems, got one of 'z'"),
        ([problem("a")], [answer("a", Status.CORRECT)] * 2, "each sample once, got 'a' 0 twice"),
        ([problem("a"), problem("b")], [answer("a", Status.CORRECT)], "1 samples of every problem, got 0 of 'b'"),
        ([problem("a")], [], "1 samples of every problem, got 0 of 'a'"),
    ],
)
def test_incomplete_evaluations_are_rejected(problems, samples, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        summarise("s", 0, "greedy", problems, samples)


def test_evaluation_starts_with_the_whole_set() -> None:
    with pytest.raises(BadInput, match="the row of the whole set first"):
        Evaluation(name="s", policy_step=0, mode="greedy", samples_per_problem=1, rows=[])  # pyright: ignore[reportArgumentType]
