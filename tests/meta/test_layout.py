"""The layout: module names are unique, folders stay small, and documents name files and tests that exist."""

import re
from collections import Counter

import pytest
from source_tree import IGNORED, PACKAGES, ROOT, files, name_of, sources

ENTRY_POINTS = {"__init__.py", "__main__.py", "entry_point.py"}
MIRRORS = {
    "errors.py": "the exceptions of each package",
    "doctor.py": "the doctor command of each package",
    "gae.py": "conformance checks of mathppo.ppo.gae",
    "kl.py": "conformance checks of mathppo.ppo.kl",
    "losses.py": "conformance checks of mathppo.ppo.losses",
    "masked.py": "conformance checks of mathppo.ppo.masked",
    "conformance.py": "conformance kits of graders and of PPO functions",
    "diagnostics.py": "diagnostics of the sandbox, and of the learner",
}
"""Basenames that several modules share on purpose, with the reason."""

MAX_ENTRIES = 20
MAX_ENTRIES_OF_ROOT = {"graders": 18, "mathppo": 32}
"""Files and folders of a package's root; other folders have at most `MAX_ENTRIES`."""

DOCUMENTS = sorted(
    path
    for path in [*files(*PACKAGES, "docs", "data", suffixes=(".md",)), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    if path.exists()
)
ALL_FILES = {name_of(path) for path in files(*PACKAGES, "tests", "scripts", "data", suffixes=(".py", ".md", ".sh"))}
EXAMPLES = {"mine.py", "file.py", "verifier.py", "my_grader.py"}
"""File names in documents that belong to the reader."""


def test_module_names_are_unique() -> None:
    counts = Counter(path.name for path in sources() if path.name not in ENTRY_POINTS | set(MIRRORS))
    repeated = {name: [name_of(p) for p in sources() if p.name == name] for name, n in counts.items() if n > 1}
    assert not repeated, f"expected unique module names, or an entry in MIRRORS with a reason; found {repeated}"


def test_folders_stay_small() -> None:
    folders = {path.parent for path in sources()}
    for folder in sorted(folders):
        limit = MAX_ENTRIES_OF_ROOT.get(name_of(folder), MAX_ENTRIES)
        entries = [p for p in folder.iterdir() if p.name not in IGNORED and not p.name.startswith((".", "__"))]
        assert len(entries) <= limit, f"{name_of(folder)}: expected at most {limit} entries, found {len(entries)}"


@pytest.mark.parametrize("document", [name_of(path) for path in DOCUMENTS])
def test_document_names_existing_files_and_tests(document: str) -> None:
    text = (ROOT / document).read_text("utf-8")
    quoted = set(re.findall(r"`([^`\n]+)`", text))
    named_files = {name for name in quoted if re.fullmatch(r"[\w./-]+\.(?:py|sh)", name)} - EXAMPLES
    missing = {name for name in named_files if not any(f"/{path}".endswith(f"/{name}") for path in ALL_FILES)}
    defined = "\n".join(path.read_text("utf-8") for path in files("tests"))
    named_tests = {name for name in quoted if re.fullmatch(r"test_\w+", name)}
    missing |= {name for name in named_tests if f"def {name}(" not in defined and f"tests/{name}" not in defined}
    missing -= {name for name in named_tests if any(path.rpartition("/")[2] == f"{name}.py" for path in ALL_FILES)}
    assert not missing, f"{document} names {sorted(missing)}, which do not exist"
