import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from mathppo.errors import BadInput, BadSetting
from mathppo.problems import load_held_out, load_problems
from mathppo.records import Problem

ROWS = [
    {"uid": "a", "problem": "1+1?", "answer": "So it is\n#### 1,072", "subject": "Sums", "hard": "Level 3"},
    {"uid": "b", "problem": "2+2?", "answer": "#### -4", "subject": "Sums", "hard": 1},
]


def _write(path: Path, *lines: object) -> str:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), "utf-8")
    return str(path)


def test_jsonl_with_named_fields(tmp_path: Path) -> None:
    problems = load_problems(
        _write(tmp_path / "set.jsonl", ROWS[0], "", ROWS[1]),
        question_field="problem",
        reference_field="answer",
        id_field="uid",
        family_field="subject",
        level_field="hard",
        reference_format="gsm8k",
    )
    assert problems == [
        Problem(id="a", question="1+1?", reference="1072", family="Sums", level=3),
        Problem(id="b", question="2+2?", reference="-4", family="Sums", level=1),
    ]


@pytest.mark.parametrize(
    ("value", "reference"), [(72, "72"), (27.0, "27"), (0.5, "0.5"), (" \\frac{1}{2} ", "\\frac{1}{2}"), ("025", "025")]
)
def test_reference_is_converted_to_text(tmp_path: Path, value: object, reference: str) -> None:
    source = _write(tmp_path / "set.jsonl", {"question": "?", "reference": value})
    assert load_problems(source) == [Problem(id="set-1", question="?", reference=reference)]


@pytest.mark.parametrize("name", ["set.jsonl", "set.json"])
def test_byte_order_mark_is_ignored(tmp_path: Path, name: str) -> None:
    rows = [{"question": "1+1", "reference": "2"}, {"question": "1+2", "reference": "3"}]
    lines = json.dumps(rows) if name == "set.json" else "\n".join(map(json.dumps, rows))
    (tmp_path / name).write_text(lines, "utf-8-sig")
    assert [problem.reference for problem in load_problems(str(tmp_path / name))] == ["2", "3"]


def test_problem_records_are_loaded_unchanged(tmp_path: Path) -> None:
    problems = load_held_out("system")[:3]
    source = _write(tmp_path / "set.jsonl", *(msgspec.json.encode(problem).decode() for problem in problems))
    assert load_problems(source) == problems


def test_committed_set_is_loaded_by_name() -> None:
    assert load_problems("held_out:quadratic") == load_held_out("quadratic")
    with pytest.raises(BadSetting, match="held-out set: expected one of"):
        load_problems("held_out:poetry")


def test_folder_is_read_by_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use_cache(tmp_path / "cache", monkeypatch)
    folder = tmp_path / "folder"
    folder.mkdir()
    _write(folder / "train.jsonl", {"question": "1+1?", "reference": "2"}, {"question": "2+2?", "reference": "4"})
    problems = load_problems(str(folder), split="train")
    assert [(problem.id, problem.reference) for problem in problems] == [("folder-1", "2"), ("folder-2", "4")]
    with pytest.raises(BadInput, match=r"expected a data set with split 'test' and subset None, got ValueError"):
        load_problems(str(folder), split="test")


def test_unavailable_hub_id_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use_cache(tmp_path / "cache", monkeypatch)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", None)  # a call would fail
    with pytest.raises(BadInput, match=r"owner/name: expected a data set with split 'test' and subset 'main', got "):
        load_problems("owner/name", subset="main")


def test_existence_on_the_hub_is_requested_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def load_dataset(name: str, subset: str | None, *, split: str) -> list[dict[str, str]]:
        asked.append(f"load {name} {subset} {split}")
        return [{"question": "1+1?", "reference": "2"}]

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            content = b'{"id": "owner/name", "sha": "0"}'
            self.send_response(200 if self.path.endswith("owner/name") else 404)
            if self.path.endswith("typo"):
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:  # type: ignore[override]
            pass

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        monkeypatch.setattr("datasets.config.HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        assert [p.id for p in load_problems("owner/name", subset="main")] == ["name-1"]
        with pytest.raises(BadInput, match="owner/typo: expected a data set on the hub, found none with this name"):
            load_problems("owner/typo")
        server.shutdown()
        thread.join()
    assert asked == ["/api/datasets/owner/name", "load owner/name main test", "/api/datasets/owner/typo"]
    started = time.monotonic()
    with pytest.raises(
        BadInput, match=r"^owner/name: expected a response from the hub, got ConnectError: .*HF_HUB_OFFLINE=1"
    ):
        load_problems("owner/name")
    assert time.monotonic() - started < 5


def test_every_file_format_on_disk_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset, DatasetDict

    _use_cache(tmp_path / "cache", monkeypatch)
    rows = [{"question": 'a, "b"?', "reference": "025"}, {"question": "2+2?", "reference": "1/2"}]
    table = Dataset.from_list(rows)
    table.to_csv(tmp_path / "set.csv", index=False)
    table.to_parquet(tmp_path / "set.parquet")
    table.to_json(tmp_path / "lines.json")
    (tmp_path / "list.json").write_text(json.dumps(rows))
    table.save_to_disk(str(tmp_path / "saved"))
    DatasetDict({"test": table, "train": table.select([0])}).save_to_disk(str(tmp_path / "splits"))
    (arrow,) = (tmp_path / "saved").glob("*.arrow")
    arrow.rename(tmp_path / "set.arrow")
    table.save_to_disk(str(tmp_path / "again"))
    names = ("set.csv", "set.parquet", "lines.json", "list.json", "set.arrow", "again", "splits")
    for name in names:
        problems = load_problems(str(tmp_path / name))
        assert [(p.question, p.reference) for p in problems] == [tuple(row.values()) for row in rows], name
    assert len(load_problems(str(tmp_path / "splits"), split="train")) == 1
    with pytest.raises(BadInput, match="expected a data set with split 'dev' and subset None, got KeyError"):
        load_problems(str(tmp_path / "splits"), split="dev")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("set.csv", b"question,reference\n\xff,1\n", r"set\.csv: expected comma-separated text in UTF-8, got"),
        ("set.csv", b'question,reference\n"a,1\n', r"set\.csv: expected comma-separated text in UTF-8, got unexpected"),
        ("set.csv", b"question,reference\n1+1?,\n", r"set\.csv line 2: expected a field 'reference', got 'question'"),
        ("set.json", b"[1]", r"set\.json item 1: expected one JSON object, got int"),
        ("set.json", b"[{]", r"set\.json: expected one JSON object, got invalid JSON"),
        ("set.arrow", b"nonsense", r"set\.arrow: expected a readable Arrow file, got"),
    ],
)
def test_damaged_file_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, message: str
) -> None:
    _use_cache(tmp_path / "cache", monkeypatch)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=message):
        load_problems(str(tmp_path / name))


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet

    _use_cache(tmp_path / "cache", monkeypatch)
    path = tmp_path / "set.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"question": ["1+1?", "2+2?"], "reference": [2, 4]}), path)
    problems = load_problems(str(path))
    assert [(problem.question, problem.reference) for problem in problems] == [("1+1?", "2"), ("2+2?", "4")]
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(BadInput, match=r"set\.parquet: expected a readable Parquet file, got "):
        load_problems(str(path))


def _use_cache(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", path)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], r"set\.jsonl: expected at least one problem, got none; check the source"),
        (["", " "], r"expected at least one problem, got none"),
        (
            ['{"question": "1", "reference": "1"}', '{"question": '],
            r"set\.jsonl line 2: expected one JSON .* got invalid",
        ),
        (["[1]"], r"set\.jsonl line 1: expected one JSON object, got list"),
        (
            [{"question": "?"}],
            r"set\.jsonl line 1: expected a field 'reference', got 'question'; set another .*reference_field",
        ),
        ([{}], r"set\.jsonl line 1: expected a field 'question', got none"),
        ([{"question": None, "reference": "1"}], r"expected a field 'question'"),
        ([{"question": " ", "reference": "1"}], r"line 1: expected text in field 'question', got ' '"),
        ([{"question": 3, "reference": "1"}], r"line 1: expected text in field 'question', got 3"),
        ([{"question": "?", "reference": "  "}], r"line 1: expected an answer in field 'reference', got '  '"),
        ([{"question": "?", "reference": True}], r"expected text or a finite number in field 'reference', got True"),
        ([{"question": "?", "reference": ["1", "2"]}], r"expected text or a finite number .* got \['1', '2'\]"),
        ([{"schema": "problem/1", "id": "p"}], r"line 1: expected a problem record, got .*; run prepare again"),
    ],
)
def test_invalid_row_is_rejected_with_its_line(tmp_path: Path, lines: list, message: str) -> None:
    source = _write(tmp_path / "set.jsonl", *lines)
    with pytest.raises(BadInput, match=message):
        load_problems(source)


def test_invalid_utf8_is_rejected_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_bytes(b'{"question": "\xff", "reference": "1"}\n')
    with pytest.raises(BadInput, match=r"set\.jsonl line 1: expected one JSON object, got invalid JSON"):
        load_problems(str(path))


def test_deeply_nested_line_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text("[" * 100_000 + "\n")
    with pytest.raises(BadInput, match=r"set\.jsonl line 1: expected one JSON object, got invalid JSON"):
        load_problems(str(path))


@pytest.mark.parametrize("source", ["", "  ", "a\0b.jsonl"])
def test_source_without_a_name_is_rejected(source: str) -> None:
    with pytest.raises(BadInput, match="problem source: expected the name of a file, folder or hub id, got"):
        load_problems(source)


def test_duplicate_id_is_rejected(tmp_path: Path) -> None:
    row = {"question": "?", "reference": "1", "id": 7}
    source = _write(tmp_path / "set.jsonl", row, row)
    with pytest.raises(BadInput, match=r"line 2: expected a unique id, got '7', the id of .*line 1"):
        load_problems(source, id_field="id")


def test_gsm8k_reference_without_its_mark_is_rejected(tmp_path: Path) -> None:
    source = _write(tmp_path / "set.jsonl", {"question": "?", "reference": "72"})
    with pytest.raises(BadInput, match=r"line 1: expected an answer after #### in field 'reference', got '72'"):
        load_problems(source, reference_format="gsm8k")


def test_level_without_a_number_is_rejected(tmp_path: Path) -> None:
    source = _write(tmp_path / "set.jsonl", {"question": "?", "reference": "1", "level": "hard"})
    with pytest.raises(BadInput, match="line 1: expected a level with a number, got 'hard'"):
        load_problems(source, level_field="level")


def test_unknown_reference_format_is_rejected() -> None:
    with pytest.raises(BadSetting, match="reference_format: expected 'plain' or 'gsm8k', got 'boxed'"):
        load_problems("x.jsonl", reference_format="boxed")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.jsonl", "expected a file, got nothing there; check the path"),
        ("none.parquet", "expected a file, got nothing there; check the path"),
        ("set.txt", "expected a .jsonl, .json, .csv, .parquet, .arrow file, a folder, a hub id owner/name"),
    ],
)
def test_missing_or_unsupported_source_is_rejected(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "set.txt").write_text("question,reference\n")
    with pytest.raises(BadInput, match=message):
        load_problems(str(tmp_path / name))
