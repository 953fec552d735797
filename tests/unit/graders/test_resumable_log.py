"""The resumable log: a kill loses at most an incomplete last line, and another key or a second writer is rejected."""

from pathlib import Path

import pytest

from graders import resumable_log
from graders.errors import BadInput
from graders.resumable_log import ResumableLog, key_path, read_lines

LINES = [b"one", b"two", b"three"]


@pytest.mark.parametrize("block_bytes", [1, 2, 5, 1 << 16])
@pytest.mark.parametrize("torn", [b"", b"x", b"x" * 20])
def test_incomplete_last_line_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bytes, block_bytes: int
) -> None:
    monkeypatch.setattr(resumable_log, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "log"
    with ResumableLog(path) as log:
        log.append(LINES[:2])
    path.write_bytes(path.read_bytes() + torn)
    assert list(read_lines(path)) == LINES[:2]
    with ResumableLog(path) as log:
        assert path.read_bytes() == b"one\ntwo\n"
        log.append(LINES[2:])
        assert list(log.lines()) == LINES


def test_log_with_nothing_but_an_incomplete_line_is_empty(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"torn")
    with ResumableLog(tmp_path / "log") as log:
        assert list(log.lines()) == []
        log.append(LINES)
    assert list(read_lines(tmp_path / "log")) == LINES


@pytest.mark.parametrize("count", range(4))
def test_keep_cuts_after_a_number_of_lines(tmp_path: Path, count: int) -> None:
    with ResumableLog(tmp_path / "log") as log:
        log.append(LINES)
        log.keep(count)
        log.append([b"more"])
        assert list(log.lines()) == [*LINES[:count], b"more"]


def test_log_is_continued_only_under_its_key(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with ResumableLog(path, "a") as log:
        log.append(LINES)
    with ResumableLog(path, "a") as log:
        assert list(log.lines()) == LINES
    with pytest.raises(BadInput, match=r"log: holds unfinished work made from other inputs or settings; delete it or"):
        ResumableLog(path, "b")
    with ResumableLog(path, "b", restart=True) as log:
        assert list(log.lines()) == []
    with ResumableLog(path, "c"):
        assert key_path(path).read_text() == "c", "an empty log takes any key"


def test_lines_without_a_key_are_not_continued_under_one(tmp_path: Path) -> None:
    with ResumableLog(tmp_path / "log") as log:
        log.append(LINES)
    with pytest.raises(BadInput, match="made from other inputs or settings"):
        ResumableLog(tmp_path / "log", "a")


def test_published_log_has_its_final_name_and_no_key(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("old")
    with ResumableLog(tmp_path / "log", "a") as log:
        log.append(LINES)
        log.publish(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert list(read_lines(tmp_path / "out")) == LINES


def test_second_writer_is_rejected_until_the_first_closes(tmp_path: Path) -> None:
    with ResumableLog(tmp_path / "log"), pytest.raises(BadInput, match="another process is writing it; wait for it or"):
        ResumableLog(tmp_path / "log")
    ResumableLog(tmp_path / "log").close()


@pytest.mark.parametrize("key", ["", "a key"])
def test_every_key_is_written_and_checked_the_empty_one_included(tmp_path: Path, key: str) -> None:
    path = tmp_path / "log"
    with ResumableLog(path, key) as log:
        log.append(LINES)
    assert key_path(path).read_text() == key
    with ResumableLog(path, key) as log:
        assert list(log.lines()) == LINES
    key_path(path).unlink()
    with pytest.raises(BadInput, match="made from other inputs"):
        ResumableLog(path, key)
