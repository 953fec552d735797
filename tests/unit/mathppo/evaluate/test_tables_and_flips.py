"""Result tables, and the samples whose verdict flips."""

import csv
import io

from graders.verdict import Status, Verdict
from mathppo.evaluate.accuracy import summarise_outcomes
from mathppo.evaluate.flips import Rescore, list_flips
from mathppo.evaluate.outcomes import Outcome
from mathppo.evaluate.result import Result
from mathppo.evaluate.samples import GradedSample, Sample
from mathppo.evaluate.tables import CSV, MARKDOWN, csv_table, markdown_table
from mathppo.records import FinishReason, Problem

PROBLEMS = [Problem(id=x, question=x, reference="1", family="sums") for x in "ab"]


def result(step: int, model: str = "a|b") -> Result:
    outcomes = {
        "a": [Outcome(Status.CORRECT, 4, False, "correct"), Outcome(Status.INCORRECT, 8, False, "x")],
        "b": [Outcome(Status.NO_ANSWER, 9, True), Outcome(Status.CORRECT, 3, False, "correct")],
    }
    evaluation = summarise_outcomes("set", step, "sampled", PROBLEMS, outcomes, by_answer=True)
    return Result(
        benchmark="set", template="plain", golds="official", weights="w", model=model, grader="math", identity="i",
        system=None, temperature=1.0, max_new_tokens=9, seed=0, problems_sha256="p", prompts_sha256="q",
        first_prompt=None, notes=[], evaluation=evaluation, problem_ids=["a", "b"], num_correct=[1, 1],
        num_graded=[2, 2],
    )  # fmt: skip


def test_markdown_has_one_line_per_result_in_order_of_step() -> None:
    lines = markdown_table([result(20), result(0)]).splitlines()
    assert len(lines) == 4
    assert {line.replace("\\|", "").count("|") for line in lines} == {len(MARKDOWN) + 1}
    assert lines[2].startswith("| set | plain | a\\|b | 2 x 2 | 50.0 | ")
    assert "| 100.0 | 75.0 | 25.0 | 25.0 |" in lines[2], "pass@2, maj@2, truncated, no answer"


def test_csv_has_one_line_per_row() -> None:
    text = csv_table([result(0)])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == list(CSV)
    assert [(r["group"], r["label"]) for r in rows] == [("all", "all"), ("family", "sums"), ("answer", "integer")]
    assert float(rows[0]["accuracy"]) == 0.5
    assert float(rows[0]["pass_at_n"]) == 1.0
    assert csv_table([result(0)]) == text


def verdict(status: Status, answer: str | None = "1") -> Verdict:
    return Verdict(status, answer, "g", "m", "why", 0.0)


def test_flips_are_the_samples_whose_status_changed() -> None:
    samples = [
        Sample(
            key=str(i), identity="i", benchmark="set", problem_id="a", sample_index=i, completion="c", num_tokens=1,
            finish_reason=FinishReason.STOP, policy_step=0, seed=0,
        )
        for i in range(3)
    ]  # fmt: skip

    def graded(*statuses: Status) -> list[GradedSample]:
        return [GradedSample(key=s, sample=s, reference="1", verdict=verdict(s)) for s in statuses]

    old = graded(Status.CORRECT, Status.UNPARSABLE, Status.INCORRECT)
    new = graded(Status.CORRECT, Status.CORRECT, Status.NO_ANSWER)
    flips = list_flips(samples, old, new)
    assert [(f.sample_index, f.before, f.after) for f in flips] == [
        (1, "unparsable", "correct"),
        (2, "incorrect", "no_answer"),
    ]
    report = Rescore(before="x", after="y", num_samples=3, num_correct_before=1, num_correct_after=2, flips=flips)
    assert report.counts == [("incorrect to no_answer", 1), ("unparsable to correct", 1)]
