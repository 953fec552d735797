"""Artefacts: complete or absent, resumed after a kill, rejected with a clear message if damaged or of another kind."""

import hashlib
import multiprocessing
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

import msgspec
import pytest
from tiny_runs import tiny_rollouts

from mathppo.errors import BadArtefact
from mathppo.records import Problem
from mathppo.storage import store

SCORED = tiny_rollouts(7)
ROLLOUTS = [item.rollout for item in SCORED]
SCORES = [item.score for item in SCORED]
PROBLEMS = [Problem(id=f"p{i}", question=f"{i}+1", reference=str(i + 1)) for i in range(5)]


@pytest.mark.parametrize(
    ("kind", "records"), [(store.PROBLEMS, PROBLEMS), (store.ROLLOUTS, ROLLOUTS), (store.SCORED, SCORES)]
)
def test_records_come_back_as_they_were(tmp_path: Path, kind: store.Kind, records: list) -> None:
    store.write_artefact(tmp_path / "a", kind, records, "origin")
    assert store.read_artefact(tmp_path / "a", kind) == records
    assert store.read_header(tmp_path / "a", kind).count == len(records)
    assert not store.partial_path(tmp_path / "a").exists()


@pytest.mark.parametrize("kind_and_records", [(store.PROBLEMS, PROBLEMS), (store.ROLLOUTS, ROLLOUTS)])
@pytest.mark.parametrize("torn", [0, 1, 3])
def test_killed_writer_resumes_after_its_last_whole_record(
    tmp_path: Path, kind_and_records: tuple[store.Kind, list], torn: int
) -> None:
    kind, records = kind_and_records
    with store.ArtefactWriter(tmp_path / "a", kind, "origin") as writer:
        writer.append(records[:3])
    with open(store.partial_path(tmp_path / "a") / store.RECORDS, "ab") as file:
        file.write(kind.encode(records[3])[:torn])
    assert not (tmp_path / "a").exists()
    with store.ArtefactWriter(tmp_path / "a", kind, "origin") as writer:
        assert writer.done == records[:3]
        writer.append(records[3:])
        writer.finish()
    assert store.read_artefact(tmp_path / "a", kind) == records


def test_kill_around_the_rename_loses_neither_records_nor_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_unfinished_artefact_of_other_inputs_is_rejected(tmp_path: Path) -> None:
    with store.ArtefactWriter(tmp_path / "a", store.PROBLEMS, "origin") as writer:
        writer.append(PROBLEMS[:1])
    with pytest.raises(BadArtefact, match="made from other inputs or settings; delete it"):
        store.ArtefactWriter(tmp_path / "a", store.PROBLEMS, "other")


def test_finished_artefact_is_not_overwritten(tmp_path: Path) -> None:
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


def test_artefact_has_one_writing_process(tmp_path: Path) -> None:
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
def test_damage_is_rejected_by_name(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    store.write_artefact(tmp_path / "a", store.PROBLEMS, PROBLEMS, "origin")
    damage(tmp_path / "a")
    with pytest.raises(BadArtefact, match=message):
        store.read_artefact(tmp_path / "a", store.PROBLEMS)


def test_other_kind_missing_and_unfinished_artefacts_have_different_messages(tmp_path: Path) -> None:
    store.write_artefact(tmp_path / "a", store.PROBLEMS, PROBLEMS, "origin")
    with pytest.raises(BadArtefact, match="expected rollouts, found problems"):
        store.read_artefact(tmp_path / "a", store.ROLLOUTS)
    with pytest.raises(BadArtefact, match=r"expected a folder with rollouts, found none$"):
        store.read_artefact(tmp_path / "b", store.ROLLOUTS)
    store.ArtefactWriter(tmp_path / "b", store.ROLLOUTS, "origin").close()
    with pytest.raises(BadArtefact, match="is unfinished: run its stage again"):
        store.read_artefact(tmp_path / "b", store.ROLLOUTS)


def test_invalid_record_and_wrong_count_are_rejected(tmp_path: Path) -> None:
    for name, lines, message in (
        (
            "a",
            b'{"schema":"problem/1"}\n',
            r"records\.jsonl line 1: expected a record of problems \(problem/1\), got .*; delete .*/a and run",
        ),
        ("b", b"", "expected 1 records, got 0"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "records.jsonl").write_bytes(lines)
        header = store.Header(kind="problems", count=1, sha256=hashlib.sha256(lines).hexdigest(), fingerprint="")
        (folder / "artefact.json").write_bytes(msgspec.json.encode(header))
        with pytest.raises(BadArtefact, match=message):
            store.read_artefact(folder, store.PROBLEMS)


def test_fingerprint_depends_on_names_and_values_but_not_on_order() -> None:
    assert store.fingerprint(a=1, b="x") == store.fingerprint(b="x", a=1)
    assert len({store.fingerprint(a=1), store.fingerprint(a=2), store.fingerprint(b=1), store.fingerprint(a="1")}) == 4


@pytest.mark.parametrize(("written", "kept"), [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4)])
def test_unfinished_artefact_keeps_whole_units(tmp_path: Path, written: int, kept: int) -> None:
    with store.ArtefactWriter(tmp_path / "a", store.ROLLOUTS, "origin") as writer:
        writer.append(ROLLOUTS[:written])
    with store.ArtefactWriter(tmp_path / "a", store.ROLLOUTS, "origin", unit=2) as writer:
        assert writer.done == ROLLOUTS[:kept]
        writer.append(ROLLOUTS[kept:])
        writer.finish()
    assert store.read_artefact(tmp_path / "a", store.ROLLOUTS) == ROLLOUTS


def write_both(folder: Path) -> None:
    store.write_artefact(folder / "rollouts", store.ROLLOUTS, ROLLOUTS, "origin")
    store.write_artefact(folder / "scored", store.SCORED, SCORES, "origin", source=folder / "rollouts")


def test_scores_refer_to_their_rollouts_and_store_no_tokens(tmp_path: Path) -> None:
    write_both(tmp_path / "a")
    assert b"completion" not in (tmp_path / "a" / "scored" / store.RECORDS).read_bytes()
    (tmp_path / "a").rename(tmp_path / "moved")
    assert store.read_scored(tmp_path / "moved" / "scored") == SCORED


def test_scores_without_their_rollouts_are_rejected(tmp_path: Path) -> None:
    write_both(tmp_path)
    (tmp_path / "rollouts").rename(tmp_path / "elsewhere")
    with pytest.raises(BadArtefact, match=r"rollouts: expected a folder with rollouts, found none"):
        store.read_scored(tmp_path / "scored")
    store.write_artefact(tmp_path / "rollouts", store.ROLLOUTS, ROLLOUTS[:3], "origin")
    with pytest.raises(BadArtefact, match=r"scored: expected the rollouts it scores in .*/rollouts, found others; run"):
        store.read_scored(tmp_path / "scored")
    store.write_artefact(tmp_path / "alone", store.SCORED, SCORES, "origin")
    with pytest.raises(BadArtefact, match=r"expected the artefact of the rollouts, got none; run grade again"):
        store.read_scored(tmp_path / "alone")
    with pytest.raises(BadArtefact, match=r"a: expected scores of the 3 rollouts given, found one of 'p3' sample 0"):
        store.pair_scores(tmp_path / "a", ROLLOUTS[:3], SCORES)


@pytest.mark.parametrize(("kind", "is_read"), [(store.PROBLEMS, True), (store.ROLLOUTS, False), (store.SCORED, False)])
def test_artefact_of_an_earlier_version_is_read_or_named_with_its_tag(
    tmp_path: Path, kind: store.Kind, is_read: bool
) -> None:
    records = PROBLEMS if is_read else []
    store.write_artefact(tmp_path / "a", kind, records, "origin")
    header = tmp_path / "a" / store.HEADER
    header.write_text(header.read_text().replace("artefact/2", "artefact/1").replace(',\n  "source": null', ""))
    if is_read:
        assert store.read_artefact(tmp_path / "a", kind) == records
        return
    with pytest.raises(
        BadArtefact, match=r"/a/artefact\.json: expected artefact/2, found artefact/1.*; delete .*/a and"
    ):
        store.is_finished(tmp_path / "a", kind, "origin")


def test_log_grows_and_loses_only_an_incomplete_last_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log.jsonl"
    first, second = PROBLEMS[:2]
    with store.open_log(path) as log:
        log.append([store.PROBLEMS.encode(first)])
        log.append([])
    with open(path, "ab") as file:
        file.write(b'{"schema":"problem/1","id":"torn')
    assert list(store.read_log(path, store.PROBLEMS)) == [first]
    with store.open_log(path) as log:
        log.append([store.PROBLEMS.encode(second)])
    assert list(store.read_log(path, store.PROBLEMS)) == [first, second]
    assert list(store.read_log(tmp_path / "none.jsonl", store.PROBLEMS)) == []


def test_log_has_one_writer_and_valid_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with (
        store.open_log(path),
        pytest.raises(BadArtefact, match=r"log\.jsonl: another process is writing it; wait for it or end it"),
    ):
        store.open_log(path)
    path.write_bytes(b'{"schema":"problem/1"}\n')
    with pytest.raises(BadArtefact, match=r"log\.jsonl line 1: expected a record of problems .*delete the line"):
        list(store.read_log(path, store.PROBLEMS))
