"""Import rules that the import-linter contracts in pyproject.toml cannot express."""

import ast
import sys
from collections.abc import Iterator

import pytest
from source_tree import PACKAGES, find, imports, is_within, name_of, report, sources
from source_tree import files as files_in

ALLOWED = {
    "mathppo/ppo/": {"torch", "jaxtyping", "mathppo.ppo", "mathppo.errors"},
    "graders/": {"msgspec", "mpmath", "sympy", "graders"},
    "tests/oracles": {"numpy", "scipy", "torch"},
}
"""Path prefixes, with all allowed imports besides the standard library."""

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
    "matplotlib": (),
}
"""Modules, with the path prefixes of the only files that may import them."""


@pytest.mark.parametrize("folder", ALLOWED)
def test_folder_imports_only_allowed_modules(folder: str) -> None:
    allowed = ALLOWED[folder]
    standard = sys.stdlib_module_names - (NOT_FOR_TENSOR_MATHS if folder == "mathppo/ppo/" else frozenset())

    def others(tree: ast.Module) -> Iterator[tuple[int, str]]:
        for line, module in imports(tree):
            if not is_within(module, allowed) and module.partition(".")[0] not in standard:
                yield line, f"imports {module}"

    paths = [p for p in files_in(*PACKAGES, "tests") if name_of(p).startswith(folder)]
    report(find(others, paths), f"expected {folder} to import {sorted(allowed)} and the standard library only")


@pytest.mark.parametrize("module", ONLY_HERE)
def test_module_is_imported_only_in_allowed_files(module: str) -> None:
    def found(tree: ast.Module) -> Iterator[tuple[int, str]]:
        return ((line, f"imports {name}") for line, name in imports(tree) if is_within(name, {module}))

    report(
        find(found, sources(), except_in=ONLY_HERE[module]),
        f"expected imports of {module} only in: {', '.join(ONLY_HERE[module]) or 'no file'}",
    )


def test_imports_are_absolute() -> None:
    def relative(tree: ast.Module) -> Iterator[tuple[int, str]]:
        return ((line, f"imports {module}") for line, module in imports(tree) if module.startswith("."))

    report(find(relative, sources()), "expected absolute imports")
