"""The repository's sources for the meta tests: files, syntax trees, imports, calls."""

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("graders", "mathppo")
IGNORED = {"runs", "build", "dist", "__pycache__"}
"""Folders of runs and builds, which git ignores."""

Finder = Callable[[ast.Module], Iterator[tuple[int, str]]]
"""Yields (line, violation)."""


def files(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> list[Path]:
    found = (p for folder in folders for p in sorted((ROOT / folder).rglob("*")))
    return [p for p in found if p.suffix in suffixes and not IGNORED & set(p.parts)]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def sources() -> list[Path]:
    return files(*PACKAGES)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), filename=str(path))


def find(finder: Finder, paths: list[Path], except_in: tuple[str, ...] = ()) -> list[str]:
    """Return `file:line: violation` for each violation in files without a prefix in `except_in`."""
    return [
        f"{name_of(path)}:{line}: {fault}"
        for path in paths
        if not name_of(path).startswith(except_in)
        for line, fault in finder(parse(path))
    ]


def report(faults: list[str], rule: str) -> None:
    """Fail with the rule and its violations, if there are any."""
    assert not faults, rule + "\n  " + "\n  ".join(faults)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of each import, including those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def is_within(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)
