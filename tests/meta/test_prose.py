"""Plain English: a word list for docstrings, comments, help texts, messages, test names and manuals.

Each pattern has a plain replacement, shown in the failure. A quotation of a user's or model's text is not prose:
string literals are read only where they look like sentences.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
from source_tree import PACKAGES, ROOT, files, name_of

WORDS = {
    r"^(?:What|How|Whether|Where|Who|Why)\b(?!.*\?$)": "name the thing: 'Worker supervisor: …', 'Return the …'",
    r"^(?:Give|Say|Tell|Have|Put|Let)s?\b": "'Return …', 'Report …', 'Run …', 'Write …'",
    r"\b(?:whatever|whoever|whichever|whomever)\b": "'any …', or name the thing",
    r"\bof (?:its|their|our|your|one's|his|my) own\b": "'separate', 'its', or leave it out",
    r"\bso that no(?:ne|body|thing)\b": "'so no … can'",
    r"\b(?:go|goes|going|gone|went) on\b": "'continue', 'resume'",
    r"\bbegun? anew\b|\b(?:starts?|started|made|makes?) anew\b": "'start again', 'rebuild'",
    r"\bstand(?:s|ing)? (?:beside|in for|in the|above|alone|by|for)\b|\bstood\b": "'is', 'replaces', 'represents'",
    r"\b(?:held|holds?|holding) (?:\w+ ){0,3}against\b": "'compare with', 'check against'",
    r"\bstrangers?\b": "'third-party'",
    r"\bbears?\b|\bborne\b": "'has', 'tolerates'",
    r"\bparts? (?:by|with)\b|\bparted\b": "'differ by', 'separate', 'release'",
    r"\bfound out\b|\bfinds? out\b": "'detect'",
    r"\bhas (?:a|no) say\b": "'is ignored', 'matters'",
    r"\bnobody\b|\bnoone\b|\beveryone\b|\bsomebody\b": "name the caller, user or process",
    r"\b(?:crews?|rosters?|ledgers?|nursery|stillborn|unborn|mourn\w*|bury|buries|buried|culprits?)\b": (
        "'worker group', 'supervisor', 'task queue', 'spawn failed', 'reap', 'offending task'"
    ),
    r"\b(?:rooms?|house) (?:of|in|for|that|is|may|holds?)\b|\bthe house\b|\bof the house\b": "'package', 'project'",
    r"\b(?:iterations?|problems?|completions?|tokens?|samples?|rows?|seconds?|nats|steps?|prompts?|bits|items|calls|"
    r"answers|lines|rollouts|verdicts|workers|updates|passes|files|requests|bytes|times) an? "
    r"(?:iteration|problem|token|second|minute|step|completion|run|worker|batch|row|sample|prompt|rollout|line|file|"
    r"process|rank|pass|chunk|layer|request|task|day|update|group)\b": "'per'",
    r"\bset beside\b|\blaid beside\b|\bput beside\b": "'compared with'",
    r"\b(?:told|tell|tells|telling) apart\b|\btaken apart\b|\btake apart\b": "'distinguish', 'split'",
    r"\bput (?:\w+ )?together again\b": "'gather', 'merge'",
    r"\b(?:lies|lie|lay) (?:beside|in|on|at|under|one|next)\b": "'is in', 'are stored in'",
    r"\bhurried\b|\bunder the eye\b|\bin turn\b(?! to)": "'one after another', 'each'",
    r"\bill\b|\bmends?\b|\bmended\b": "'fix'",
    r"\bsuch as it is\b|\bas it stands\b|\bas they stand\b|\bnor any\b": "say it directly",
    r"\b(?:seldom|hence|thereby|wherein|thereof|hereafter|nought|to and fro)\b": "'rarely', 'so'",
    r"\bsomeone else's\b|\banyone's\b|\bsomeone's\b": "'third-party', 'the user's'",
    r"\ba person\b|\bone of those\b|\bpeople's\b": "'the user', 'the reader'",
    r"\b(?:lose patience|must not cost|costs? nobody|do(?:es)? no harm|speaks?|spoken)\b": "say what happens",
    r"\brefusal\b|\brefuses? to\b": "'reject', 'raise'",
}
"""Regular expression on a piece of prose (case is ignored except in leading words), and the plain replacement."""

PATTERNS = [
    (re.compile(pattern if pattern.startswith("^") else "(?i)" + pattern), fix) for pattern, fix in WORDS.items()
]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
MANUALS = ("README.md", "CONTRIBUTING.md", "graders/README.md", "graders/RULES.md", "graders/DESIGN.md")
MANUALS += ("mathppo/DESIGN.md", "docs/walkthrough.md")


def prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, prose) for each docstring, comment, sentence-like string and definition name of a module."""
    tree = ast.parse(text)
    docstrings = set()
    for node in ast.walk(tree):
        first = node.body[0] if isinstance(node, DOCUMENTED) and node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            docstrings.add(id(first.value))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.removeprefix("test_").replace("_", " ").lower()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_prose = id(node) in docstrings or re.search(r"[a-z]{2,} [a-z]{2,} [a-z]{2,}", node.value)
            if is_prose:
                yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# type", "# fmt")):
            yield token.start[0], token.string.lstrip("# ")


def mannerisms(path: Path) -> list[str]:
    """Return `file:line: phrase (write …)` for each hit of the word list in a file."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        prose = prose_of_python(text)
    else:
        prose = ((number, line.lstrip("#-*> ")) for number, line in enumerate(text.splitlines(), start=1))
    found = []
    for line, passage in prose:
        without_code = re.sub(r"`[^`]*`", "`…`", passage)
        for pattern, fix in PATTERNS:
            for hit in pattern.finditer(without_code):
                found.append(f"{name_of(path)}:{line}: {hit[0]!r}; write {fix}")
    return found


FOLDERS = sorted({name_of(p.parent) for p in files(*PACKAGES, "scripts", "tests")})


def folder_faults(folder: str) -> list[str]:
    paths = [path for path in sorted((ROOT / folder).glob("*.py")) if path.name != "test_prose.py"]
    return [fault for path in paths for fault in mannerisms(path)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_code_is_written_in_plain_english(folder: str) -> None:
    faults = folder_faults(folder)
    assert not faults, f"{len(faults)} phrases\n  " + "\n  ".join(faults)


@pytest.mark.parametrize("manual", [m for m in MANUALS if (ROOT / m).exists()])
def test_manuals_are_written_in_plain_english(manual: str) -> None:
    faults = mannerisms(ROOT / manual)
    assert not faults, f"{len(faults)} phrases\n  " + "\n  ".join(faults)


def test_the_word_list_finds_a_phrase_in_each_place() -> None:
    module = (
        '"""What a worker is."""\n# nobody waits\n'
        'raise ValueError("the run goes on with this file")\ndef test_it_parts_with_it(): ...\n'
    )
    passages = [passage for _, passage in prose_of_python(module)]
    assert len(passages) == 4
    for passage in passages:
        assert any(pattern.search(passage) for pattern, _ in PATTERNS), passage


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        target = ROOT / argument
        print("\n".join(mannerisms(target) if target.is_file() else folder_faults(argument)))
