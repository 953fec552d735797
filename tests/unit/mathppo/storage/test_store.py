"""Artefacts: whole or absent, resumed where they stopped, refused by name when they are not what they say."""

import hashlib
import multiprocessing
import resource
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import msgspec
import pytest
from tiny_runs import tiny_rollouts

from mathppo.errors import BadArtefact
from mathppo.records import Problem
from mathppo.storage import store
from mathppo.storage.append_log import AppendLog, read_log

SCORED = tiny_rollouts(7)
ROLLOUTS = [item.rollout for item in SCORED]
PROBLEMS = [Problem(id=f"p{i}", question=f"{i}+1", reference=str(i + 1)) for i in range(5)]


@pytest.mark.parametrize(
    ("kind", "records"), [(store.PROBLEMS, PROBLEMS), (store.ROLLOUTS, ROLLOUTS), (store.SCORED, SCORED)]
)
def test_records_come_back_as_they_were(tmp_path: Path, kind: store.Kind, records: list) -> None:
    store.write_artefact(tmp_path / "a", kind, records, "origin")
    assert store.read_artefact(tmp_path / "a", kind) == records
    assert store.read_header(tmp_path / "a", kind).count == len(records)
    assert not store.partial_path(tmp_path / "a").exists()


@pytest.mark.parametrize("kind_and_records", [(store.PROBLEMS, PROBLEMS), (store.ROLLOUTS, ROLLOUTS)])
@pytest.mark.parametrize("torn", [0, 1, 3])
def test_a_killed_writer_goes_on_after_its_last_whole_record(
    tmp_path: Path, kind_and_records: tuple[store.Kind, list], torn: int
) -> None:
    kind, records = kind_and_records
    with store.ArtefactWriter(tmp_path / "a", kind, "origin") as writer:
        writer.append(records[:3])
    with open(store.partial_path(tmp_path / "a") / kind.file, "ab") as file:
        file.write(kind.encode(records[3])[:torn])
    assert not (tmp_path / "a").exists()
    with store.ArtefactWriter(tmp_path / "a", kind, "origin") as writer:
        assert writer.done == records[:3]
        writer.append(records[3:])
        writer.finish()
    assert store.read_artefact(tmp_path / "a", kind) == records


def test_a_kill_around_the_rename_loses_nothing_and_forgets_no_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        store.write_artefact(tmp_path / "a", store.PROBLEMS, PROBLEMS, "origin")
    monkeypatch.undo()
    with pytest.raises(BadArtefact, match="made from other inputs or settings"):
        store.ArtefactWriter(tmp_path / "a", store.PROBLEMS, "other")
    monkeypatch.setattr(store.Path, "unlink", killed)
    with store.ArtefactWriter(tmp_path / "a", store.PROBLEMS, "origin") as writer:
        assert writer.done == PROBLEMS
        with pytest.raises(KeyboardInterrupt):
            writer.finish()
    monkeypatch.undo()
    assert store.is_finished(tmp_path / "a", store.PROBLEMS, "origin")
    assert store.read_artefact(tmp_path / "a", store.PROBLEMS) == PROBLEMS


def test_unfinished_work_of_another_origin_is_not_mixed_in(tmp_path: Path) -> None:
    with store.ArtefactWriter(tmp_path / "a", store.PROBLEMS, "origin") as writer:
        writer.append(PROBLEMS[:1])
    with pytest.raises(BadArtefact, match="made from other inputs or settings; delete it"):
        store.ArtefactWriter(tmp_path / "a", store.PROBLEMS, "other")


def test_a_finished_artefact_is_not_written_over(tmp_path: Path) -> None:
    store.write_artefact(tmp_path / "a", store.PROBLEMS, PROBLEMS, "origin")
    with pytest.raises(BadArtefact, match="expected no artefact yet"):
        store.ArtefactWriter(tmp_path / "a", store.PROBLEMS, "origin")
    assert store.is_finished(tmp_path / "a", store.PROBLEMS, "origin")
    with pytest.raises(BadArtefact, match="was made from other inputs"):
        store.is_finished(tmp_path / "a", store.PROBLEMS, "other")
    assert not store.is_finished(tmp_path / "b", store.PROBLEMS, "origin")


def _hold(path: Path, started: Event, end: Event) -> None:
    with store.ArtefactWriter(path, store.PROBLEMS, "origin"):
        started.set()
        end.wait(30)


def test_two_processes_never_write_one_artefact(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    started, end = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path / "a", started, end))
    other.start()
    assert started.wait(60)
    with pytest.raises(BadArtefact, match="another process is writing it"):
        store.ArtefactWriter(tmp_path / "a", store.PROBLEMS, "origin")
    end.set()
    other.join()
    assert other.exitcode == 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda a: (a / "records.jsonl").write_bytes(b"{}\n"), "damaged, its sha256 is not the header's"),
        (lambda a: (a / "records.jsonl").unlink(), "cannot be read"),
        (lambda a: (a / "artefact.json").write_text("{}"), "expected the header of problems"),
        (lambda a: (a / "artefact.json").unlink(), "expected the header of problems"),
    ],
)
def test_damage_is_refused_by_name(tmp_path: Path, damage: object, message: str) -> None:
    store.write_artefact(tmp_path / "a", store.PROBLEMS, PROBLEMS, "origin")
    damage(tmp_path / "a")  # type: ignore[operator]
    with pytest.raises(BadArtefact, match=message):
        store.read_artefact(tmp_path / "a", store.PROBLEMS)


def test_another_kind_a_missing_and_an_unfinished_artefact_are_told_apart(tmp_path: Path) -> None:
    store.write_artefact(tmp_path / "a", store.PROBLEMS, PROBLEMS, "origin")
    with pytest.raises(BadArtefact, match="expected rollouts, found problems"):
        store.read_artefact(tmp_path / "a", store.ROLLOUTS)
    with pytest.raises(BadArtefact, match=r"expected a folder with rollouts, found none$"):
        store.read_artefact(tmp_path / "b", store.ROLLOUTS)
    store.ArtefactWriter(tmp_path / "b", store.ROLLOUTS, "origin").close()
    with pytest.raises(BadArtefact, match="is unfinished: run its stage again"):
        store.read_artefact(tmp_path / "b", store.ROLLOUTS)


def test_a_record_that_is_none_and_a_wrong_count_are_refused(tmp_path: Path) -> None:
    for name, lines, message in (
        ("a", b'{"schema":"problem/1"}\n', "record 0 is none of problems"),
        ("b", b"", "expected 1 records, got 0"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "records.jsonl").write_bytes(lines)
        header = store.Header(kind="problems", count=1, sha256=hashlib.sha256(lines).hexdigest(), fingerprint="")
        (folder / "artefact.json").write_bytes(msgspec.json.encode(header))
        with pytest.raises(BadArtefact, match=message):
            store.read_artefact(folder, store.PROBLEMS)


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    store.write_file(tmp_path / "deep" / "f", "old")
    with pytest.raises(TypeError):
        store.write_file(tmp_path / "deep" / "f", 3)  # type: ignore[arg-type]
    assert [(p.name, p.read_text()) for p in (tmp_path / "deep").iterdir()] == [("f", "old")]


def test_a_fingerprint_depends_on_names_and_values_and_not_on_order() -> None:
    assert store.fingerprint(a=1, b="x") == store.fingerprint(b="x", a=1)
    assert len({store.fingerprint(a=1), store.fingerprint(a=2), store.fingerprint(b=1), store.fingerprint(a="1")}) == 4


@pytest.mark.parametrize(("written", "kept"), [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4)])
def test_unfinished_work_is_kept_in_whole_units(tmp_path: Path, written: int, kept: int) -> None:
    with store.ArtefactWriter(tmp_path / "a", store.ROLLOUTS, "origin") as writer:
        writer.append(ROLLOUTS[:written])
    with store.ArtefactWriter(tmp_path / "a", store.ROLLOUTS, "origin", unit=2) as writer:
        assert writer.done == ROLLOUTS[:kept]
        writer.append(ROLLOUTS[kept:])
        writer.finish()
    assert store.read_artefact(tmp_path / "a", store.ROLLOUTS) == ROLLOUTS


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files of this process may not grow past 4 kB, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path: Path) -> None:
    store.write_file(tmp_path / "f", "old")
    with pytest.raises(OSError, match=r"File too large: '.*/f'"):
        store.write_file(tmp_path / "f", b"x" * 10_000)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("f", "old")]
    many = [Problem(id=f"p{i}", question="1+1", reference="2") for i in range(100)]

    def write_in_two() -> None:
        with store.ArtefactWriter(tmp_path / "a", store.PROBLEMS, "origin") as writer:
            writer.append(many[:10])
            writer.append(many[10:])

    with pytest.raises(OSError, match=r"File too large: '.*a\.partial'"):
        write_in_two()
    with store.ArtefactWriter(tmp_path / "a", store.PROBLEMS, "origin") as writer:
        assert writer.done == many[: len(writer.done)]
        assert len(writer.done) >= 10


def test_a_log_grows_and_loses_only_its_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log.jsonl"
    first, second = PROBLEMS[:2]
    with AppendLog(path, store.PROBLEMS) as log:
        log.append([first])
        log.append([])
    with open(path, "ab") as file:
        file.write(b'{"schema":"problem/1","id":"torn')
    assert list(read_log(path, store.PROBLEMS)) == [first]
    with AppendLog(path, store.PROBLEMS) as log:
        log.append([second])
    assert list(read_log(path, store.PROBLEMS)) == [first, second]
    assert list(read_log(tmp_path / "none.jsonl", store.PROBLEMS)) == []


def test_a_log_has_one_writer_and_whole_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with (
        AppendLog(path, store.PROBLEMS),
        pytest.raises(BadArtefact, match="another process is writing it; wait for it or end it"),
    ):
        AppendLog(path, store.PROBLEMS)
    path.write_bytes(b'{"schema":"problem/1"}\n')
    with pytest.raises(BadArtefact, match=r"log\.jsonl line 1: expected one of problems, got .*delete the line"):
        list(read_log(path, store.PROBLEMS))
