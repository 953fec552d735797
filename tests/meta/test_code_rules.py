"""The rules of the house, read off the source itself: what stands where, in which words, and who touches what.

A rule is a table at the top and a test below; what a test refuses it names by file and line.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from source_tree import LEFTOVERS, PACKAGES, ROOT, calls, files, find, name_of, refuse, sources

TOP_LEVEL = {
    *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Dockerfile"),
    *("mathppo", "graders", "data", "tests", "scripts", "docs", "examples", "CONTRIBUTING.md"),
}
MAX_LINES = 550

WRITERS = (
    *("mathppo/storage/", "mathppo/metrics", "mathppo/learner/backend/checkpoint", "mathppo/report/"),
    *("mathppo/generator/weights", "mathppo/generator/shm_cleanup", "mathppo/importers/import_gguf"),
    *("graders/sandbox/", "graders/cli"),
)
"""Files that may write files: records, the metrics log, checkpoints, weights for an engine, reports, a command's."""

READERS_OF_ARGV = ("mathppo/config", "mathppo/cli", "graders/cli", "graders/sandbox/", "mathppo/generator/vllm/")
"""Files that may read argv and the environment; vLLM takes some settings from nowhere else."""

WRITING_CALLS = {
    *("write_text", "write_bytes", "savefig", "save_pretrained", "save_file", "save_model", "to_csv", "to_parquet"),
    *("to_json", "tofile", "savez", "savetxt", "mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryDirectory"),
}
"""What writes a file under any owner; `open` and `X.save` are told apart in `_writes`."""

EMPTY_WORDS = re.compile(r"(?:^|_)(?:utils?|helpers?|managers?|info|misc|common)(?:_|$)", re.IGNORECASE)
OUR_WORDS = {
    "response_mask": "completion_mask or loss_mask",
    "action_mask": "completion_mask",
    "pi_old_logprobs": "old_logprobs",
    "new_logprobs": "logprobs",
    "rollout_log_probs": "behaviour_logprobs",
    "inference_logprobs": "behaviour_logprobs",
    "vpred": "values",
    "dones": "terminated or truncated",
}
"""Other projects' words, and the word here; adapters speak the others' language."""

WARM = ("graders/sandbox/host/pool",)
"""Files that may keep state in the module: the one-call `grade` keeps its pool for the next call."""

OF_ONE_MACHINE = re.compile(
    r"(?<![\w.])/(?:home|root|Users|opt|srv|mnt|work|workspace|content)/[\w.-]"
    r"|(?:pypi|pythonhosted|npmjs|pytorch)\.org/(?:simple|packages|whl)"
)
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X])\b")


def test_the_top_level_holds_only_what_is_named() -> None:
    found = {p.name for p in ROOT.iterdir() if not p.name.startswith(".") and p.suffix != ".egg-info"}
    assert found - LEFTOVERS <= TOP_LEVEL


def test_a_file_fits_a_sitting() -> None:
    lengths = {name_of(p): len(p.read_text("utf-8").splitlines()) for p in files(*PACKAGES, "tests", "scripts", "data")}
    refuse(
        [f"{name}: {length} lines" for name, length in lengths.items() if length > MAX_LINES],
        f"expected at most {MAX_LINES} lines per file; split by concept, unless the parts would import each other",
    )


def test_modules_and_definitions_have_names_that_say_what_they_are() -> None:
    def empty(tree: ast.Module) -> Iterator[tuple[int, str]]:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and EMPTY_WORDS.search(node.name):
                yield node.lineno, node.name

    modules = [name_of(p) for p in files(*PACKAGES, "tests", "scripts") if EMPTY_WORDS.search(p.stem)]
    refuse(modules + find(empty, sources()), "expected names that say what a thing holds or does")


def test_quantities_have_the_words_of_the_house() -> None:
    def foreign(tree: ast.Module) -> Iterator[tuple[int, str]]:
        for node in ast.walk(tree):
            word = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else ""
            if word in OUR_WORDS:
                yield getattr(node, "lineno", 0), f"{word}: the word here is {OUR_WORDS[word]}"

    refuse(
        find(foreign, sources(), except_in=("graders/integrations/reward_functions", "mathppo/conformance")),
        "expected the house's words",
    )


def _texts() -> list[Path]:
    """Every text that is shipped or read by a person; hostile completions in tests/security name what they like."""
    kinds = (".py", ".md", ".sh", ".toml", ".txt", ".html", ".j2")
    found = [p for p in files(*PACKAGES, "scripts", "tests", "data", suffixes=kinds) if "security" not in p.parts]
    single = ("README.md", "CHANGELOG.md", "Dockerfile", "pyproject.toml", ".ci/run", "scripts/bench")
    return found + [ROOT / name for name in single if (ROOT / name).exists()]


def test_texts_are_of_no_machine_and_finished() -> None:
    faults = [
        f"{name_of(path)}:{number}: {line.strip()[:100]}"
        for path in _texts()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if OF_ONE_MACHINE.search(line) or UNFINISHED.search(line)
    ]
    refuse(faults, "expected no path of one machine, no address of a registry, no note of work left to do")


def _writes(call: ast.Call) -> bool:
    """Tell whether a call opens a file for writing, or writes one."""
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


def test_only_the_writers_write() -> None:
    def written(tree: ast.Module) -> Iterator[tuple[int, str]]:
        return ((call.lineno, ast.unparse(call)[:90]) for call in calls(tree) if _writes(call))

    refuse(find(written, sources(), except_in=WRITERS), f"expected no writing outside {', '.join(WRITERS)}")


def test_the_search_for_writing_finds_it() -> None:
    writing = ("open(p, 'w')", "open(p, mode='ab')", "p.open('r+')", "os.open(p, os.O_WRONLY)", "torch.save(x, p)")
    reading = ("open(p)", "open(p, 'rb')", "p.open()", "p.open('rb')", "os.open(p, os.O_RDONLY)", "shelf.save(x)")
    assert all(_writes(call) for text in writing for call in calls(ast.parse(text)))
    assert not any(_writes(call) for text in reading for call in calls(ast.parse(text)))


def test_only_the_settings_read_argv_and_the_environment() -> None:
    surroundings = {"os.environ", "os.environb", "os.getenv", "os.putenv", "sys.argv"}

    def read(tree: ast.Module) -> Iterator[tuple[int, str]]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in surroundings:
                yield node.lineno, ast.unparse(node)

    refuse(find(read, sources(), except_in=READERS_OF_ARGV), f"expected it in {', '.join(READERS_OF_ARGV)} only")


def test_nothing_seeds_or_draws_globally() -> None:
    shared = re.compile(
        r"torch(?:\.cuda)?\.(?:manual_seed|manual_seed_all|seed)"
        r"|random\.(?!Random$|SystemRandom$)\w+"
        r"|(?:np|numpy)\.random\.(?!default_rng$|Generator$|SeedSequence$|PCG64$|Philox$)\w+"
    )

    def drawn(tree: ast.Module) -> Iterator[tuple[int, str]]:
        # A library that draws from the global generator is given a seed inside fork_rng, which puts the old state back.
        forks = [n for n in ast.walk(tree) if isinstance(n, ast.With) and "fork_rng" in ast.unparse(n.items[0])]
        forked = {id(inner) for fork in forks for inner in ast.walk(fork)}
        for call in calls(tree):
            if shared.fullmatch(ast.unparse(call.func)) and id(call) not in forked:
                yield call.lineno, ast.unparse(call.func)

    refuse(find(drawn, sources()), "expected seeds and generators as arguments")


def test_broad_excepts_stand_at_the_sandbox_edge_only() -> None:
    def broad(tree: ast.Module) -> Iterator[tuple[int, str]]:
        for node in ast.walk(tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            passes_on = any(isinstance(inner, ast.Raise) and (not inner.exc or inner.cause) for inner in ast.walk(node))
            if (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")) and not passes_on:
                yield node.lineno, "except " + (ast.unparse(node.type) if node.type else "")

    refuse(
        find(broad, sources(), except_in=("graders/sandbox/",)), "expected to catch only what can be named and answered"
    )


def test_modules_share_no_state() -> None:
    def shared(tree: ast.Module) -> Iterator[tuple[int, str]]:
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.List | ast.Dict | ast.Set):
                target = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
                if target != "__all__" and not target.lstrip("_").isupper():
                    yield node.lineno, target
        yield from ((n.lineno, f"global {', '.join(n.names)}") for n in ast.walk(tree) if isinstance(n, ast.Global))

    refuse(find(shared, sources(), except_in=WARM), "expected no mutable state at module level")
