"""RULES.md: every example gets the verdict that the page states."""

import re
from pathlib import Path

import pytest

import graders
from graders.builtin.math import MathGrader

PAGE = Path(graders.__file__).with_name("RULES.md")
ROW = re.compile(r"\| `(?P<answer>[^`]+)` \| `(?P<reference>[^`]+)` \| (?P<verdict>\w+) \|")


def examples() -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    whole = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith(("| completion", "| answer")):
            whole = line.startswith("| completion")
        match = ROW.match(line)
        if match is not None:
            completion = match["answer"] if whole else f"\\boxed{{{match['answer']}}}"
            rows.append((completion, match["reference"], match["verdict"]))
    return rows


@pytest.mark.parametrize(("completion", "reference", "verdict"), examples())
def test_example_gets_the_stated_verdict(completion: str, reference: str, verdict: str) -> None:
    assert MathGrader().grade(completion, reference).status.value == verdict


def test_page_has_correct_and_incorrect_examples() -> None:
    verdicts = [verdict for _, _, verdict in examples()]
    assert verdicts.count("correct") > 30
    assert verdicts.count("incorrect") > 20
