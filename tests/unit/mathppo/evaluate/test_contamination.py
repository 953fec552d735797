"""Contamination check: evaluation problems among training problems."""

import json
import random
from pathlib import Path

import pytest

from mathppo.config import load_config
from mathppo.errors import BadInput, BadSetting
from mathppo.evaluate.contamination import ExactHit, find_contamination, normalise
from mathppo.pipeline.stages.prepare import prepare
from mathppo.progress import SILENT
from mathppo.records import Problem

WORDS = "jar shelf coin lamp river stone cloud paper tree boat glass wheel drum candle rope basket".split()


def word_problems(count: int, seed: int, prefix: str) -> list[Problem]:
    source = random.Random(seed)
    return [
        Problem(id=f"{prefix}{i}", question=" ".join(source.choices(WORDS, k=24)) + f" {i}?", reference="1")
        for i in range(count)
    ]


def test_exactly_the_planted_rows_are_found() -> None:
    evaluation = word_problems(300, 1, "e")
    planted = [
        Problem(id=f"planted{i}", question="  " + e.question.upper().replace(" ", "   ", 3) + "!", reference="1")
        for i, e in enumerate(evaluation[::10])
    ]
    train = [*word_problems(2_000, 2, "t"), *planted]
    random.Random(0).shuffle(train)
    found = find_contamination("set", train, evaluation)
    assert {(hit.train_id, hit.evaluation_id) for hit in found.exact} == {
        (f"planted{i}", f"e{10 * i}") for i in range(30)
    }
    assert found.near == []
    assert found.num_problems == 300


def test_reworded_row_is_near() -> None:
    (original,) = word_problems(1, 1, "e")
    head, tail = original.question.split(" ", 1)
    changed = Problem(id="t", question=f"A {head.title()} {tail} Really?", reference="2")
    (near,) = find_contamination("set", [changed, *word_problems(50, 3, "u")], [original]).near
    assert (near.train_id, near.evaluation_id) == ("t", "e0")
    assert near.share == 1.0
    half = Problem(id="h", question=" ".join(original.question.split()[:15]), reference="2")
    assert find_contamination("set", [half], [original]).near == [], "it contains 8 of 18 n-grams, less than half"


def test_short_questions_are_compared_as_a_whole() -> None:
    evaluation = [Problem(id="e", question="Solve for x: 2x+3=11", reference="4")]
    train = [Problem(id=str(i), question=q, reference="4") for i, q in enumerate(
        ["solve for x:  2x + 3 = 11", "Solve for x: 2x-3=11", "Solve for x: 2.x+3=11", "Solve for x: 2x+3=1.1"]
    )]  # fmt: skip
    assert [hit.train_id for hit in find_contamination("set", train, evaluation).exact] == ["0", "2"]


def test_equal_canonical_forms_are_the_same_problem() -> None:
    evaluation = [Problem(id="e", question="2x=4", reference="2", canonical="c")]
    train = [Problem(id="t", question="4=2x", reference="2", canonical="c")]
    assert find_contamination("set", train, evaluation).exact == [ExactHit(train_id="t", evaluation_id="e")]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("It's 1,000 jars.", "its 1000 JARS", True),
        ("$x$ is 3.", "x is 3", True),
        ("ｘ＝３", "x=3", True),
        ("x is 3.5", "x is 35", False),
        ("3-2", "32", False),
        ("(1)2", "12", False),
    ],
)
def test_normalise_ignores_case_spacing_and_punctuation(one: str, other: str, same: bool) -> None:
    assert (normalise(one) == normalise(other)) is same


@pytest.mark.parametrize(("words", "share"), [(0, 0.5), (8, 0.0), (8, 1.5)])
def test_numbers_out_of_range_are_rejected(words: int, share: float) -> None:
    with pytest.raises(BadInput, match="expected n-grams of at least 1 word and a share in"):
        find_contamination("set", [], [], ngram_words=words, near_share=share)


def test_prepare_fails_on_a_row_of_a_named_benchmark(tmp_path: Path) -> None:
    rows = [{"question": p.question, "answer": "1"} for p in word_problems(20, 4, "t")]
    leaked = word_problems(5, 1, "e")
    (tmp_path / "train.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows, {"question": leaked[2].question, "answer": "1"}])
    )
    (tmp_path / "set.jsonl").write_text(
        "".join(json.dumps({"problem": p.question, "answer": "1"}) + "\n" for p in leaked)
    )
    card = tmp_path / "set.toml"
    card.write_text('name="set"\nfile="set.jsonl"\nquestion="problem"\nanswer="answer"\nlicence="ours"\n')
    settings = [("problems.source", str(tmp_path / "train.jsonl")), ("problems.check_against", json.dumps([str(card)]))]
    with pytest.raises(BadInput, match=r"an evaluation set too: 1 in set .*first: 'train-21'"):
        prepare(load_config(None, settings), tmp_path / "out", SILENT)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["contamination.json"], "nothing to train on"
    report = json.loads((tmp_path / "out" / "contamination.json").read_text())
    assert report["shared"] == ["train-21"]
    assert report["sets"][1]["exact"] == [{"train_id": "train-21", "evaluation_id": "set-0002"}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train, _ = prepare(load_config(None, settings), tmp_path / "clean", SILENT)
    assert len(train) == 20


def test_card_as_held_out_set(tmp_path: Path) -> None:
    rows = [{"question": p.question, "answer": "1"} for p in word_problems(20, 4, "t")]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    held_out = word_problems(5, 1, "e")
    (tmp_path / "set.jsonl").write_text(
        "".join(json.dumps({"problem": p.question, "answer": "1"}) + "\n" for p in held_out)
    )
    card = tmp_path / "set.toml"
    card.write_text('name="set"\nfile="set.jsonl"\nquestion="problem"\nanswer="answer"\nlicence="ours"\n')
    settings = [("problems.source", str(tmp_path / "train.jsonl")), ("problems.held_out", str(card))]
    _, found = prepare(load_config(None, settings), tmp_path / "out", SILENT)
    assert [problem.question for problem in found] == [problem.question for problem in held_out]
    with pytest.raises(BadSetting, match=r"expected one of .*linear.*, or a card.s \.toml file, got .liner."):
        prepare(load_config(None, [*settings[:1], ("problems.held_out", "liner")]), tmp_path / "other", SILENT)
