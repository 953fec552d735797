"""Explanations of verdicts, and audits of references and labels."""

from pathlib import Path

import pytest

from graders.builtin.math import MathGrader
from graders.cli import main
from graders.cli.audit import Labelled, audit_labels, audit_references
from graders.cli.explain import MAX_SKETCH_CHARS, explain, sketch
from graders.errors import BadInput, BadReference
from graders.parsing.parse import parse


def test_explanation_shows_every_step() -> None:
    assert explain(r"so \boxed{\frac{2}{4}}.", "0.5").split("\n") == [
        r"extracted  '\\frac{2}{4}' (rule boxed, characters 10 to 21)",
        "answer     (/ 2 4)",
        "reference  0.5",
        "rungs      text, exact",
        "verdict    correct by exact: both are 1/2",
    ]


def test_explanation_of_a_missing_answer() -> None:
    assert explain("I have no idea at all", '["1", "2"]').split("\n") == [
        "extracted  none: no_answer (rule none, characters 21 to 21)",
        "reference  1",
        "reference  2",
        "verdict    no_answer by none: the completion states no final answer",
    ]
    with pytest.raises(BadReference, match="expected an answer"):
        explain(r"\boxed{1}", "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x = 2", "x = 2"),
        ("[1,2)", "interval [1, 2)"),
        (r"\text{Even}", "'even'"),
        ("B", "option B"),
        ("(B) 3", "option B: 3"),
        ("3:30 pm", "time 15:30:00 pm"),
        ("3 cm", "3 [cm]"),
        ("1, 2", "list <1, 2>"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "matrix [1, 2; 3, 4]"),
        (r"\begin{cases}1&x>0\\2&x<0\end{cases}", "cases [1 if x > 0; 2 if x < 0]"),
    ],
)
def test_sketch_shows_the_tree(text: str, shown: str) -> None:
    assert sketch(parse(text)) == shown


def test_long_sketch_is_cut() -> None:
    assert len(sketch(parse("+".join("x" * 500)))) == MAX_SKETCH_CHARS


def test_audit_lists_unusable_references() -> None:
    pairs = [
        ("1", "12"),
        ("2", r"\frac{1}{"),
        ("3", r"a \neq 0 gives f(x)=ax and more"),
        ("4", "5=5"),
        ("5", ""),
    ]
    faults = audit_references([*pairs, ("6", r"thus \boxed{3}")])
    assert [(fault.place, fault.kind) for fault in faults] == [
        ("2", "unreadable"),
        ("3", "words"),
        ("4", "unequal"),
        ("5", "unreadable"),
    ]


def test_label_audit_lists_every_disagreement() -> None:
    rows = [
        Labelled(r"\boxed{1}", "1", True, "a"),
        Labelled(r"\boxed{2}", "1", True, "b"),
        Labelled(r"\boxed{1}", "1", False, "c"),
        Labelled(r"\boxed{2}", "1", False, "d"),
        Labelled(r"\boxed{2}", "1", None, "f"),
    ]
    grader = MathGrader()
    verdicts = [grader.grade(row.response, row.gold) for row in rows]
    found = audit_labels(rows, verdicts)
    assert found.counts == {
        "true_correct": 1,
        "true_incorrect": 1,
        "false_correct": 1,
        "false_incorrect": 1,
        "unlabelled": 1,
    }
    with pytest.raises(BadInput, match="one verdict for each of 5 rows, got 4"):
        audit_labels(rows, verdicts[1:])
    assert [entry[:3] for entry in found.disagreements] == [("b", True, "incorrect"), ("c", False, "correct")]


def test_commands_print_faults_and_disagreements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    references = tmp_path / "references.jsonl"
    references.write_text('{"id": "a", "answer": "12"}\n{"id": "b", "gold": "\\\\frac{1}{"}\n', encoding="utf-8")
    assert main(["audit", str(references)]) == 1
    assert capsys.readouterr().out.startswith("b: unreadable")
    references.write_text('{"reference": "12"}\n', encoding="utf-8")
    assert main(["audit", str(references)]) == 0
    references.write_text('{"question": "12"}\n', encoding="utf-8")
    assert main(["audit", str(references)]) == 2
    assert "expected one of answer, gold, reference" in capsys.readouterr().err
    rows = tmp_path / "labelled.jsonl"
    rows.write_text('{"id": "x", "response": "#### 3", "gold": "3", "label": false}\n', encoding="utf-8")
    assert main(["label-audit", str(rows), "--workers", "1"]) == 1
    out = capsys.readouterr().out
    assert "label false" in out
    assert "x: label false, graded correct" in out


def test_check_prints_an_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "#### 3.0", "3", "--explain", "--workers", "1"]) == 0
    assert "verdict    correct by exact" in capsys.readouterr().out
