"""`graders grade --out`: a killed run resumes and writes the same verdicts as one that was not killed."""

import json
from pathlib import Path

import pytest

from graders.cli import grade_file, main
from graders.cli.grade_file import bar_text, partial_path
from graders.resumable_log import key_path

ROWS = [{"completion": f"\\boxed{{{at}}}", "reference": str(at - at % 3)} for at in range(10)]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def statuses(path: Path) -> list[str]:
    return [json.loads(line)["status"] for line in path.read_text(encoding="utf-8").splitlines()]


EXPECTED = ["correct" if at % 3 == 0 else "incorrect" for at in range(10)]


def grade(rows: Path, out: Path) -> int:
    return main(["grade", str(rows), "--out", str(out), "--workers", "1"])


def interrupted(rows: Path, out: Path, monkeypatch: pytest.MonkeyPatch, batches: int) -> bytes:
    """Return the log of a run that stops after some batches of two rows."""

    def stop(bar: grade_file.ProgressBar, done: int) -> None:
        if done >= 2 * batches:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(grade_file, "BATCH_ROWS", 2)
        patch.setattr(grade_file.ProgressBar, "show", stop)
        with pytest.raises(KeyboardInterrupt):
            grade(rows, out)
    return partial_path(out).read_bytes()


def test_killed_run_resumes_after_its_last_whole_line(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    held = interrupted(rows, out, monkeypatch, batches=2)
    assert (len(held.splitlines()), out.exists()) == (4, False)
    partial_path(out).write_bytes(held[:-7])  # killed while it wrote the fourth verdict
    assert grade(rows, out) == 0
    assert "resuming after 3 of 10 rows\ncorrect 4, incorrect 6\n" in capsys.readouterr().err
    assert statuses(out) == EXPECTED
    assert out.read_bytes().splitlines()[:3] == held.splitlines()[:3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "rows.jsonl"]


@pytest.mark.parametrize("damage", [b"", b"not a key", b"\xff\n"])
def test_log_of_another_input_is_discarded(
    damage: bytes, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    interrupted(rows, out, monkeypatch, batches=1)
    if damage:
        key_path(partial_path(out)).write_bytes(damage)
    else:
        rows.write_text(rows.read_text(encoding="utf-8") + json.dumps(ROWS[0]) + "\n", encoding="utf-8")
    assert grade(rows, out) == 0
    assert "resuming" not in capsys.readouterr().err
    assert statuses(out) == EXPECTED + (["correct"] if not damage else [])


@pytest.mark.parametrize("damage", [b"not json\n", b'{"status":"unheard-of"}\n', b"\xff\n"])
def test_verdicts_after_a_damaged_line_are_graded_again(
    damage: bytes, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    first, second, *_ = interrupted(rows, out, monkeypatch, batches=2).splitlines(keepends=True)
    partial_path(out).write_bytes(first + damage + second)
    assert grade(rows, out) == 0
    assert "resuming after 1 of 10 rows\n" in capsys.readouterr().err
    assert statuses(out) == EXPECTED


def test_output_that_cannot_be_written_is_bad_input(rows: Path, tmp_path: Path) -> None:
    assert grade(rows, tmp_path / "missing" / "out.jsonl") == 2


def test_bar_shows_progress_rate_and_remaining_time() -> None:
    assert bar_text(50, 200, 10.0).startswith("[########......................] 25 % 50/200 rows, 10/s, 15 s left")
    assert bar_text(0, 0, 0.0).startswith(f"[{'#' * 30}] 100 % 0/0 rows, 0/s ")


def test_file_without_rows_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert grade(empty, tmp_path / "verdicts.jsonl") == 0
    assert capsys.readouterr().err == f"{empty}: no rows\n"


def test_file_may_start_with_a_byte_order_mark(rows: Path, tmp_path: Path) -> None:
    rows.write_text(rows.read_text("utf-8"), "utf-8-sig")
    assert grade(rows, tmp_path / "out.jsonl") == 0
    assert statuses(tmp_path / "out.jsonl") == EXPECTED
