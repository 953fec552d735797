"""Labelled corpus: every case gets the verdict of its label, in any order and by every path."""

import json
import random
from pathlib import Path
from typing import Any

from graders.builtin.answer_reader import read_reference
from graders.builtin.math import MathGrader

CASES = Path(__file__).parents[4] / "data" / "grading" / "cases.jsonl"


def cases() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CASES.read_text(encoding="utf-8").split("\n") if line]


def verdicts(rows: list[dict[str, Any]]) -> dict[str, str]:
    grader = MathGrader()
    return {
        row["id"]: grader.grade(row["response"], row["gold"], question=row.get("question")).status.value for row in rows
    }


def test_every_case_gets_the_verdict_of_its_label() -> None:
    found = verdicts(cases())
    wrong = [row["id"] for row in cases() if (found[row["id"]] == "correct") != row["label"]]
    assert wrong == []


def test_verdicts_do_not_depend_on_the_order() -> None:
    rows = cases()
    shuffled = random.Random(5).sample(rows, len(rows))
    read_reference.cache_clear()
    assert verdicts(shuffled) == verdicts(rows)


def test_fast_grade_and_judge_agree_with_grade() -> None:
    grader = MathGrader()
    decided = 0
    for row in cases():
        text, gold, question = row["response"], row["gold"], row.get("question")
        whole = grader.grade(text, gold, question=question)
        split = grader.judge(grader.read(text, question=question), gold, question=question)
        assert (split.status, split.answer) == (whole.status, whole.answer), row["id"]
        fast = grader.fast_grade(text, gold, question=question)
        if fast is not None:
            decided += 1
            assert (fast.status, fast.answer) == (whole.status, whole.answer), row["id"]
    assert decided > 100


def test_every_reference_equals_itself() -> None:
    grader = MathGrader()
    references = sorted({row["gold"] for row in cases()})
    assert [gold for gold in references if not grader.grade(f"\\boxed{{{gold}}}", gold).correct] == []


def test_corpus_is_large_balanced_and_without_duplicates() -> None:
    rows = cases()
    right = sum(row["label"] for row in rows)
    assert len(rows) >= 1_500
    assert 0.45 < right / len(rows) < 0.55
    assert len({(row["gold"], row["response"], row.get("question")) for row in rows}) == len(rows)
    assert len({row["id"] for row in rows}) == len(rows)
