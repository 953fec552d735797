"""Data cards, and the benchmarks that they load."""

import json
from pathlib import Path
from typing import Any

import pytest

from mathppo.errors import BadInput, BadSetting
from mathppo.evaluate.benchmarks import (
    CARDS,
    Card,
    LabelFault,
    content_hash,
    find_card,
    list_cards,
    load_benchmark,
    parse_benchmarks,
)
from mathppo.evaluate.reference_answers import AnswerFormat
from mathppo.problems import load_held_out

ROWS: list[dict[str, Any]] = [
    {"problem": "1+1?", "answer": "3", "key": "a", "area": "sums", "hard": "Level 2"},
    {"problem": "2+2?", "answer": "4", "key": "b", "area": "sums", "hard": "Level 5"},
]
FAULT = LabelFault(id="a", official="3", corrected="2", why="one and one")


def card(**changes: Any) -> Card:
    fields = {"name": "mine", "file": "mine.jsonl", "question": "problem", "answer": "answer", "licence": "ours"}
    return Card(**{**fields, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def test_shipped_cards_are_complete() -> None:
    named = {"gsm8k", "math", "math500", "aime24", "aime25", "amc23", "minerva", "olympiadbench", "svamp", "asdiv"}
    assert named | {"mawps", "college_math", "gaokao2023en", "gsm8k_train", "linear"} <= set(list_cards())
    for path in CARDS.glob("*.toml"):
        found = find_card(path.stem)
        assert found.name == path.stem
        assert found.title
        assert found.licence
        assert len({fault.id for fault in found.faults}) == len(found.faults)
        assert not found.sha256 or len(found.sha256) == 64


def test_card_of_five_lines(folder: Path) -> None:
    text = 'name = "mine"\nfile = "mine.jsonl"\nquestion = "problem"\nanswer = "answer"\nlicence = "ours"\n'
    (folder / "mine.toml").write_text(text)
    ((found, samples),) = parse_benchmarks(f"{folder}/mine.toml:3")
    loaded = load_benchmark(found)
    assert samples == 3
    assert [(p.id, p.question, p.reference) for p in loaded.problems] == [
        ("mine-0000", "1+1?", "3"),
        ("mine-0001", "2+2?", "4"),
    ]
    assert (loaded.corrected, loaded.as_stated) == ([], None)


def test_fields_label_faults_and_hash(folder: Path) -> None:
    stated = card(id="key", subject="area", level="hard", faults=[FAULT], count=2)
    official = load_benchmark(stated, folder, golds="official")
    assert [(p.id, p.family, p.level, p.reference) for p in official.problems] == [
        ("a", "sums", 2, "3"),
        ("b", "sums", 5, "4"),
    ]
    hashed = card(id="key", faults=[FAULT], sha256=content_hash(official.problems))
    corrected = load_benchmark(hashed, folder)
    assert corrected.corrected == ["a"]
    assert corrected.problems[0].reference == "2"
    assert corrected.as_stated is True, "the hash covers the official answers"
    assert load_benchmark(card(sha256="0" * 64), folder).as_stated is False


def test_label_fault_with_another_official_answer_is_ignored(folder: Path) -> None:
    loaded = load_benchmark(card(id="key", faults=[LabelFault(id="b", official="5", corrected="6", why="")]), folder)
    assert loaded.corrected == []


def test_question_may_span_two_fields(folder: Path) -> None:
    loaded = load_benchmark(card(question=["area", "problem"]), folder)
    assert loaded.problems[0].question == "sums 1+1?"


def test_units_and_tolerances_apply_per_row(folder: Path) -> None:
    rows = [*ROWS, {**ROWS[0], "of": "km"}, {**ROWS[1], "of": "%", "within": "1e-1"}, {**ROWS[1], "of": None}]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = load_benchmark(card(unit="of", tolerance="within"), folder)
    near = '{"from": "3.9\\\\%", "to": "4.1\\\\%"}'
    assert [p.reference for p in loaded.problems] == ["3", "4", "3 \\text{ km}", near, "4"]


def test_committed_equation_sets_are_benchmarks() -> None:
    ((found, _),) = parse_benchmarks("linear")
    assert load_benchmark(found).problems == load_held_out("linear")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected names such as gsm8k,math500:4, got ''"),
        ("gsm8k,nosuch", "expected one of .*gsm8k.*, or a card's .toml file, got 'nosuch'"),
        ("gsm8k:0", "with at least one sample, got 'gsm8k:0'"),
        ("gsm8k:x", "with at least one sample, got 'gsm8k:x'"),
        ("gsm8k,gsm8k:4", "each set once, got 'gsm8k' twice"),
        ("gsm8k_train", "expected evaluation sets, got gsm8k_train, a training set"),
    ],
)
def test_invalid_list_of_benchmarks_is_rejected(text: str, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        parse_benchmarks(text)


@pytest.mark.parametrize(
    ("name", "file"),
    [(name, "d.jsonl") for name in ("../up", "/tmp/root", "..", "", "a/b", "a\0b", "a\n", "a,b", "n" * 101)]
    + [("mine", "d\0.jsonl")],
)
def test_card_whose_name_is_a_path_is_rejected(name: str, file: str, tmp_path: Path) -> None:
    card = {"name": name, "file": file, "question": "q", "answer": "a", "licence": "ours"}
    (tmp_path / "odd.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in card.items()))
    with pytest.raises(BadSetting, match=r"odd\.toml: expected name, file, question, answer and licence, got: .*"):
        find_card(str(tmp_path / "odd.toml"))


def test_card_with_an_unknown_field_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "odd.toml").write_text('name = "odd"\ncolour = "red"\n')
    with pytest.raises(BadSetting, match=r"odd\.toml: expected name, file, question, answer and licence, got: .*"):
        find_card(str(tmp_path / "odd.toml"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 3}, "mine: expected 3 problems as in its card, got 2"),
        ({"file": "other.jsonl"}, r"mine: expected the file .*other\.jsonl, found none"),
        ({"answer": "gold"}, "line 1: expected a field 'gold', got 'problem', 'answer'"),
        ({"id": "area"}, "line 2: expected unique ids, got 'sums' again"),
        ({"level": "area"}, "line 1: expected a level that contains a number, got 'sums'"),
        ({"gold": AnswerFormat.BOXED}, r"line 1: expected an answer \(boxed\), got '3'"),
    ],
)
def test_file_that_contradicts_its_card_is_rejected(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_benchmark(card(**changes), folder)


def test_set_without_hub_needs_a_folder(folder: Path) -> None:
    with pytest.raises(BadInput, match=r"mine: expected --benchmark-dir with mine\.jsonl in it, because"):
        load_benchmark(card())
    (folder / "mine.jsonl").write_text("\n")
    with pytest.raises(BadInput, match="mine: expected at least one problem, got none"):
        load_benchmark(card(), folder)
