"""Files and folders: written completely or not at all, also on a full disk and after a kill."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from mathppo.errors import BadArtefact
from mathppo.records import Problem
from mathppo.storage import files, store


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    files.write_file(tmp_path / "deep" / "f", "old")
    with pytest.raises(TypeError):
        files.write_file(tmp_path / "deep" / "f", 3)  # type: ignore[arg-type]
    assert [(p.name, p.read_text()) for p in (tmp_path / "deep").iterdir()] == [("f", "old")]


@pytest.fixture
def small_files() -> Iterator[None]:
    """Limit files of this process to 4 kB, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_full_disk_is_named_and_leaves_what_was_written(tmp_path: Path) -> None:
    files.write_file(tmp_path / "f", "old")
    with pytest.raises(OSError, match=r"File too large: '.*/f'"):
        files.write_file(tmp_path / "f", b"x" * 10_000)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("f", "old")]
    many = [Problem(id=f"p{i}", question="1+1", reference="2") for i in range(100)]

    def write_in_two() -> None:
        with store.ArtefactWriter(tmp_path / "a", store.PROBLEMS, "origin") as writer:
            writer.append(many[:10])
            writer.append(many[10:])

    with pytest.raises(OSError, match=r"File too large: '.*a\.partial/records\.jsonl'"):
        write_in_two()
    with store.ArtefactWriter(tmp_path / "a", store.PROBLEMS, "origin") as writer:
        assert writer.done == many[: len(writer.done)]
        assert len(writer.done) >= 10


def test_folder_is_free_if_missing_or_empty(tmp_path: Path) -> None:
    files.check_free(tmp_path / "missing")
    files.check_free(tmp_path)
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(BadArtefact, match="expected nothing or an empty folder, found something else; choose"):
            files.check_free(path)


def test_replacement_is_completed_after_a_kill_between_its_renames(tmp_path: Path) -> None:
    new, path = tmp_path / "new", tmp_path / "folder"
    for folder in (new, path):
        folder.mkdir()
        (folder / "content").write_text(folder.name)
    path.rename(files._replaced_path(path))  # where a kill leaves it
    files.finish_replacing(new, path)
    assert [(p.name, (p / "content").read_text()) for p in tmp_path.iterdir()] == [("folder", "new")]
    files.finish_replacing(new, path)
    assert path.exists()
