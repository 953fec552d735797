"""The wheel contains all files that the installed commands read."""

import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from source_tree import IGNORED, PACKAGES, ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    return zipfile.ZipFile(path)


def _tree(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and not IGNORED & set(p.parts)}


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_contains_the_whole_packages(wheel: zipfile.ZipFile, package: str) -> None:
    assert {f"{package}/{name}" for name in _tree(ROOT / package)} <= set(wheel.namelist())


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_marks_the_packages_as_typed(wheel: zipfile.ZipFile, package: str) -> None:
    assert f"{package}/py.typed" in wheel.namelist()


def test_wheel_contains_the_held_out_sets(wheel: zipfile.ZipFile) -> None:
    names = _tree(ROOT / "data" / "held_out")
    assert names
    for name in names:
        assert wheel.read(f"mathppo/held_out/{name}") == (ROOT / "data" / "held_out" / name).read_bytes()


def test_wheel_contains_the_recipes(wheel: zipfile.ZipFile) -> None:
    recipes = [name for name in wheel.namelist() if name.startswith("mathppo/recipes/") and name.endswith(".toml")]
    assert "mathppo/recipes/quickstart.toml" in recipes
    for name in recipes:
        tomllib.loads(wheel.read(name).decode())


def test_wheel_contains_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert not [name for name in wheel.namelist() if name.endswith(".pyc")]


def test_wheel_declares_both_commands(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert {line.partition(" =")[0] for line in wheel.read(name).decode().splitlines()} >= {"mathppo", "graders"}
