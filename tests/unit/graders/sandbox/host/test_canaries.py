"""Canaries: known answers after each batch of a third-party grader detect a worker whose verdicts are wrong."""

import textwrap
from pathlib import Path

from graders import GraderPool, Status

POISONABLE = """
import builtins
from graders.verdict import Status, Verdict

class Poisonable:
    name = "poisonable"
    answers_per_process = 0  # the process is kept, so that poison could spread
    examples = (("7", "7", "correct"), ("7", "8", "incorrect"))

    def grade(self, completion, reference, *, question=None):
        if completion == "always right":
            Verdict.__eq__ = builtins.str.__eq__
            builtins.same = lambda a, b: True
        if completion == "always wrong":
            builtins.same = lambda a, b: False
        if completion == "break":
            builtins.same = None
        same = getattr(builtins, "same", lambda a, b: a == b)
        status = Status.CORRECT if same(completion, reference) else Status.INCORRECT
        return Verdict(status, completion, self.name, "exact", "", 0.0)
"""


def test_batch_of_a_poisoned_worker_is_graded_again(tmp_path: Path) -> None:
    (tmp_path / "poisonable.py").write_text(textwrap.dedent(POISONABLE))
    items = [
        ("1", "1"),
        ("always right", "9"),
        ("2", "1"),
        ("always wrong", "9"),
        ("1", "1"),
        ("break", "9"),
        ("1", "1"),
    ]
    with GraderPool(f"{tmp_path}/poisonable.py:Poisonable", num_workers=1) as pool:
        verdicts = pool.grade(items)
        counts = pool.counts
    assert [v.status.value for v in verdicts] == [
        "correct",
        "error",
        "incorrect",
        "error",
        "correct",
        "error",
        "correct",
    ]
    assert verdicts[1].method == "canary"
    assert verdicts[1].detail == "after this answer, known answers got correct, correct for correct, incorrect"
    assert counts["canaries"] == 4


def test_verdicts_are_withheld_until_the_canaries_are_checked(tmp_path: Path) -> None:
    (tmp_path / "poisonable.py").write_text(textwrap.dedent(POISONABLE))
    with GraderPool(f"{tmp_path}/poisonable.py:Poisonable", num_workers=1) as pool:
        seen = dict(pool.stream([("always right", "2"), ("1", "2")]))
    assert seen[0].status is Status.ERROR
    assert seen[1].status is Status.INCORRECT
