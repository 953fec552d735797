"""Who may import what, where import-linter's contracts in pyproject.toml cannot say it."""

import ast
import sys
from collections.abc import Iterator

import pytest
from source_tree import PACKAGES, find, imports, is_within, name_of, refuse, sources
from source_tree import files as files_in

NOTHING_ELSE = {
    "mathppo/ppo/": {"torch", "jaxtyping", "mathppo.ppo", "mathppo.errors"},
    "graders/": {"msgspec", "mpmath", "sympy", "graders"},
    "tests/oracles": {"numpy", "scipy", "torch"},
}
"""Files by the beginning of their name, and all they may import besides the standard library."""

NOT_FOR_TENSOR_MATHS = {
    *("os", "sys", "io", "pathlib", "tempfile", "time", "datetime", "random", "secrets", "logging", "threading"),
}

ONLY_HERE = {
    "mpmath": ("graders/equivalence/arithmetic/multiprecision", "graders/equivalence/compare/symbolic"),
    "sympy": ("graders/equivalence/compare/symbolic",),
    "subprocess": ("graders/sandbox/",),
    "multiprocessing": ("graders/sandbox/",),
    "transformers": ("mathppo/generator/hf/", "mathppo/prompts", "mathppo/learner/backend/models"),
    "ray": ("mathppo/cluster",),
    "vllm": ("mathppo/generator/vllm/",),
    "datasets": ("mathppo/problems/",),
    "matplotlib": ("mathppo/report/",),
}
"""Modules, and the only files of the packages that may import them, by the beginning of their name."""


@pytest.mark.parametrize("room", NOTHING_ELSE)
def test_a_room_imports_nothing_but_its_own(room: str) -> None:
    allowed = NOTHING_ELSE[room]
    standard = sys.stdlib_module_names - (NOT_FOR_TENSOR_MATHS if room == "mathppo/ppo/" else frozenset())

    def strangers(tree: ast.Module) -> Iterator[tuple[int, str]]:
        for line, module in imports(tree):
            if not is_within(module, allowed) and module.partition(".")[0] not in standard:
                yield line, f"imports {module}"

    paths = [p for p in files_in(*PACKAGES, "tests") if name_of(p).startswith(room)]
    refuse(find(strangers, paths), f"expected {room} to import {sorted(allowed)} and the standard library only")


@pytest.mark.parametrize("module", ONLY_HERE)
def test_what_one_room_holds_is_imported_there_only(module: str) -> None:
    def found(tree: ast.Module) -> Iterator[tuple[int, str]]:
        return ((line, f"imports {name}") for line, name in imports(tree) if is_within(name, {module}))

    refuse(find(found, sources(), except_in=ONLY_HERE[module]), f"{module} belongs to {', '.join(ONLY_HERE[module])}")


def test_imports_are_absolute() -> None:
    def relative(tree: ast.Module) -> Iterator[tuple[int, str]]:
        return ((line, f"imports {module}") for line, module in imports(tree) if module.startswith("."))

    refuse(find(relative, sources()), "expected absolute imports")
