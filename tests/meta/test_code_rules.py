"""Code rules that linters cannot express: file sizes, names, writers, environment access, randomness, exceptions.

The tables at the top are the rules; a failing test lists file and line of each violation.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from source_tree import IGNORED, PACKAGES, ROOT, calls, files, find, name_of, report, sources

TOP_LEVEL = {
    *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Dockerfile"),
    *("mathppo", "graders", "data", "tests", "scripts", "docs", "examples", "CONTRIBUTING.md"),
}
MAX_LINES = 550

WRITERS = (
    *("mathppo/storage/", "graders/resumable_log", "mathppo/learner/backend/checkpoint", "mathppo/report/"),
    *("mathppo/generator/weights", "mathppo/generator/shm_cleanup", "mathppo/importers/import_gguf"),
    *("graders/sandbox/", "graders/cli"),
)
"""Files that may write files: records and logs, checkpoints, engine weights, reports, command output."""

ENVIRONMENT_READERS = ("mathppo/config", "mathppo/cli", "graders/cli", "graders/sandbox/", "mathppo/generator/vllm/")
"""Files that may read argv and the environment; some settings of vLLM exist only as environment variables."""

WRITING_CALLS = {
    *("write_text", "write_bytes", "savefig", "save_pretrained", "save_file", "save_model", "to_csv", "to_parquet"),
    *("to_json", "tofile", "savez", "savetxt", "mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryDirectory"),
}
"""Functions that write a file, on any object; `_writes` handles `open` and `save`."""

EMPTY_WORDS = re.compile(r"(?:^|_)(?:utils?|helpers?|managers?|info|misc|common)(?:_|$)", re.IGNORECASE)
TERMS = {
    "response_mask": "completion_mask or loss_mask",
    "action_mask": "completion_mask",
    "pi_old_logprobs": "old_logprobs",
    "new_logprobs": "logprobs",
    "rollout_log_probs": "behaviour_logprobs",
    "inference_logprobs": "behaviour_logprobs",
    "vpred": "values",
    "dones": "terminated or truncated",
}
"""Terms of other projects, with the term used here; adapters may use the others."""

WITH_STATE = ("graders/sandbox/host/pool",)
"""Files that may have module state: `grade` reuses its pool in the next call."""

MACHINE_SPECIFIC = re.compile(
    r"(?<![\w.])/(?:home|root|Users|opt|srv|mnt|work|workspace|content)/[\w.-]"
    r"|(?:pypi|pythonhosted|npmjs|pytorch)\.org/(?:simple|packages|whl)"
)
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X])\b")


def test_top_level_contains_only_listed_entries() -> None:
    found = {p.name for p in ROOT.iterdir() if not p.name.startswith(".") and p.suffix != ".egg-info"}
    assert found - IGNORED <= TOP_LEVEL


def test_files_are_short() -> None:
    lengths = {name_of(p): len(p.read_text("utf-8").splitlines()) for p in files(*PACKAGES, "tests", "scripts", "data")}
    report(
        [f"{name}: {length} lines" for name, length in lengths.items() if length > MAX_LINES],
        f"expected at most {MAX_LINES} lines per file; split by concept, unless the parts would import each other",
    )


def test_names_are_specific() -> None:
    def empty(tree: ast.Module) -> Iterator[tuple[int, str]]:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and EMPTY_WORDS.search(node.name):
                yield node.lineno, node.name

    modules = [name_of(p) for p in files(*PACKAGES, "tests", "scripts") if EMPTY_WORDS.search(p.stem)]
    report(modules + find(empty, sources()), "expected specific names")


def test_quantities_use_the_terms_of_this_project() -> None:
    def other_terms(tree: ast.Module) -> Iterator[tuple[int, str]]:
        for node in ast.walk(tree):
            word = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else ""
            if word in TERMS:
                yield getattr(node, "lineno", 0), f"{word}: use {TERMS[word]}"

    report(
        find(other_terms, sources(), except_in=("graders/integrations/reward_functions", "mathppo/conformance")),
        "expected the terms of this project",
    )


def _texts() -> list[Path]:
    """Return all text files, except hostile completions in tests/security."""
    kinds = (".py", ".md", ".sh", ".toml", ".txt", ".html", ".j2")
    found = [p for p in files(*PACKAGES, "scripts", "tests", "data", suffixes=kinds) if "security" not in p.parts]
    single = ("README.md", "CHANGELOG.md", "Dockerfile", "pyproject.toml", ".ci/run", "scripts/bench")
    return found + [ROOT / name for name in single if (ROOT / name).exists()]


def test_texts_have_no_machine_specific_paths_or_open_tasks() -> None:
    faults = [
        f"{name_of(path)}:{number}: {line.strip()[:100]}"
        for path in _texts()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if MACHINE_SPECIFIC.search(line) or UNFINISHED.search(line)
    ]
    report(faults, "expected no machine-specific path, no registry address, no note of unfinished work")


def _writes(call: ast.Call) -> bool:
    """Return True if a call opens a file for writing or writes one."""
    function = ast.unparse(call.func)
    owner, _, name = function.rpartition(".")
    if name in WRITING_CALLS:
        return True
    if name in ("save", "dump"):
        return owner in ("torch", "np", "numpy", "json", "pickle")
    if function == "os.open":
        opened = ast.unparse(call)
        return "devnull" not in opened and bool(re.search(r"O_(?:WRONLY|RDWR|CREAT|APPEND|TRUNC)", opened))
    if name not in ("open", "fdopen"):
        return False
    # The mode is the second argument of open(path, mode), gzip.open and os.fdopen, the first of path.open(mode).
    position = 1 if owner in ("", "io", "gzip", "bz2", "lzma", "os") else 0
    modes = [ast.unparse(k.value) for k in call.keywords if k.arg == "mode"]
    modes += [ast.unparse(mode) for mode in call.args[position : position + 1]]
    return any(set("wax+") & set(mode.strip("'\"")) for mode in modes)


def test_only_listed_files_write_files() -> None:
    def written(tree: ast.Module) -> Iterator[tuple[int, str]]:
        return ((call.lineno, ast.unparse(call)[:90]) for call in calls(tree) if _writes(call))

    report(find(written, sources(), except_in=WRITERS), f"expected no file writes outside {', '.join(WRITERS)}")


def test_write_calls_are_detected() -> None:
    writing = ("open(p, 'w')", "open(p, mode='ab')", "p.open('r+')", "os.open(p, os.O_WRONLY)", "torch.save(x, p)")
    reading = ("open(p)", "open(p, 'rb')", "p.open()", "p.open('rb')", "os.open(p, os.O_RDONLY)", "shelf.save(x)")
    assert all(_writes(call) for text in writing for call in calls(ast.parse(text)))
    assert not any(_writes(call) for text in reading for call in calls(ast.parse(text)))


def test_only_listed_files_read_argv_and_the_environment() -> None:
    surroundings = {"os.environ", "os.environb", "os.getenv", "os.putenv", "sys.argv"}

    def read(tree: ast.Module) -> Iterator[tuple[int, str]]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in surroundings:
                yield node.lineno, ast.unparse(node)

    report(
        find(read, sources(), except_in=ENVIRONMENT_READERS), f"expected it in {', '.join(ENVIRONMENT_READERS)} only"
    )


def test_global_random_generators_are_not_used() -> None:
    shared = re.compile(
        r"torch(?:\.cuda)?\.(?:manual_seed|manual_seed_all|seed)"
        r"|random\.(?!Random$|SystemRandom$)\w+"
        r"|(?:np|numpy)\.random\.(?!default_rng$|Generator$|SeedSequence$|PCG64$|Philox$)\w+"
    )

    def drawn(tree: ast.Module) -> Iterator[tuple[int, str]]:
        # Inside fork_rng a seed for a library that uses the global generator is allowed; the old state is restored.
        forks = [n for n in ast.walk(tree) if isinstance(n, ast.With) and "fork_rng" in ast.unparse(n.items[0])]
        forked = {id(inner) for fork in forks for inner in ast.walk(fork)}
        for call in calls(tree):
            if shared.fullmatch(ast.unparse(call.func)) and id(call) not in forked:
                yield call.lineno, ast.unparse(call.func)

    report(find(drawn, sources()), "expected seeds and generators as arguments")


def test_broad_excepts_are_only_in_the_sandbox() -> None:
    def broad(tree: ast.Module) -> Iterator[tuple[int, str]]:
        for node in ast.walk(tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            is_reraised = any(
                isinstance(inner, ast.Raise) and (not inner.exc or inner.cause) for inner in ast.walk(node)
            )
            if (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")) and not is_reraised:
                yield node.lineno, "except " + (ast.unparse(node.type) if node.type else "")

    report(find(broad, sources(), except_in=("graders/sandbox/",)), "expected to catch only named exceptions")


def test_modules_have_no_mutable_state() -> None:
    def shared(tree: ast.Module) -> Iterator[tuple[int, str]]:
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.List | ast.Dict | ast.Set):
                target = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
                if target != "__all__" and not target.lstrip("_").isupper():
                    yield node.lineno, target
        yield from ((n.lineno, f"global {', '.join(n.names)}") for n in ast.walk(tree) if isinstance(n, ast.Global))

    report(find(shared, sources(), except_in=WITH_STATE), "expected no mutable state at module level")
