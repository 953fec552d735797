"""The walkthrough in docs/: its functions exist, run in its order, and its numbers are right."""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path
from types import FrameType

import msgspec
from source_tree import ROOT, parse
from tiny_runs import tiny_config

from mathppo.config import LearnerSettings
from mathppo.generator.hf.hf_generator import HFGenerator
from mathppo.learner.backend import models
from mathppo.learner.learner import Learner
from mathppo.learner.load_learner import start_critic
from mathppo.pipeline.stages.generate import generate, make_requests, sampling_of
from mathppo.pipeline.stages.grade import BackgroundGrader, grade, open_pool
from mathppo.pipeline.stages.learn import learn
from mathppo.prompts import build_equation_tokenizer, special_ids
from mathppo.records import Problem

DOCUMENT = ROOT / "docs" / "walkthrough.md"
MAX_FILES, MAX_LINES, MAX_CONTAINERS = 14, 800, 5

Place = tuple[str, str]
"""File and qualified name."""


def places(pattern: str) -> list[Place]:
    return re.findall(pattern, DOCUMENT.read_text("utf-8"), re.MULTILINE)


def functions() -> list[Place]:
    """Return the functions of the numbered steps, in order."""
    return places(r"^\d+\. `([\w/]+\.py)::([\w.]+)`")


def containers() -> list[Place]:
    return places(r"^\| `([\w/]+\.py)::([\w.]+)`")


def definition(place: Place) -> ast.FunctionDef | ast.ClassDef:
    body: list[ast.stmt] = parse(ROOT / place[0]).body
    found = None
    for name in place[1].split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        found = next((node for node in body if isinstance(node, kinds) and node.name == name), None)
        assert found is not None, f"{DOCUMENT.name} names {place[0]}::{place[1]}, which does not exist"
        body = found.body
    assert isinstance(found, ast.FunctionDef | ast.ClassDef)
    return found


def code_lines(place: Place) -> int:
    """Count the lines of a function with code: without blank lines, comments and the docstring."""
    node = definition(place)
    first, last = node.lineno, node.end_lineno
    assert last is not None
    text = "\n".join((ROOT / place[0]).read_text("utf-8").splitlines()[first - 1 : last]) + "\n"
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines |= set(range(token.start[0], token.end[0] + 1))
    if ast.get_docstring(node) is not None:
        lines -= set(range(node.body[0].lineno - first + 1, (node.body[0].end_lineno or 0) - first + 2))
    return len(lines)


def run_iteration(folder: Path) -> None:
    """Sample, grade and learn from a few rollouts of a tiny model, as `train` does."""
    config = tiny_config(("learner.micro_batch_size", "4"), ("grader.num_workers", "1"))
    config = msgspec.structs.replace(config, learner=LearnerSettings(minibatches=2))
    tokenizer = build_equation_tokenizer()
    ids = special_ids(tokenizer)
    policy = models.build_policy(
        config.model, vocab_size=len(tokenizer), bos_id=ids.bos, eos_id=ids.eos, pad_id=ids.pad, seed=0
    )
    critic = start_critic(policy, config.learner)
    learner = Learner(policy, critic, None, config.learner, temperature=config.generator.temperature)
    problems = [Problem(id=f"p{i}", question=f"{i}x=6", reference=str(6 // i)) for i in (1, 2, 3)]
    requests = make_requests(problems, tokenizer, config, samples=2, purpose=("sample",))
    with open_pool(config.grader) as pool:
        grader = BackgroundGrader(pool, {problem.id: problem for problem in problems}, config.problems.template)
        rollouts = generate(
            HFGenerator(policy, tokenizer), requests, sampling_of(config, tokenizer), folder / "rollouts",
            made_from="tiny", on_rollout=grader.add,
        )  # fmt: skip
        scored = grade(grader, rollouts, config, folder / "scored", source=folder / "rollouts", made_from="tiny")
    assert learn(learner, scored, config, tokenizer)["num_updates_skipped"] == 0.0


def first_calls(folder: Path) -> list[Place]:
    """Return the functions of this repository that an iteration calls, in the order of their first calls."""
    called: dict[Place, None] = {}

    def record(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(ROOT)):
            called.setdefault((Path(path).relative_to(ROOT).as_posix(), frame.f_code.co_qualname), None)

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        run_iteration(folder)
    finally:
        sys.setprofile(before)
    return list(called)


def test_functions_are_called_in_the_order_of_the_walkthrough(tmp_path: Path) -> None:
    wanted = functions()
    for place in wanted:
        definition(place)
    called = [place for place in first_calls(tmp_path) if place in wanted]
    assert called == wanted


def test_stated_numbers_are_right_and_within_the_goal() -> None:
    text = " ".join(DOCUMENT.read_text("utf-8").split())
    stated = re.search(r"(\d+) functions in (\d+) files, (\d+) lines of code .*? and (\d+) containers", text)
    assert stated is not None
    walk, files = functions(), {file for file, _ in functions()}
    found = (len(walk), len(files), sum(map(code_lines, walk)), len(containers()))
    assert tuple(map(int, stated.groups())) == found, (
        f"write {found} (functions, files, lines, containers) in {DOCUMENT.name}"
    )
    assert len(files) <= MAX_FILES
    assert found[2] <= MAX_LINES
    assert len(containers()) <= MAX_CONTAINERS


def test_containers_are_records_or_dataclasses() -> None:
    for place in containers():
        node = definition(place)
        assert isinstance(node, ast.ClassDef)
        is_record = any(ast.unparse(base) == "Record" for base in node.bases)
        assert is_record or any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def test_comments_and_docstrings_are_not_counted_as_code() -> None:
    assert code_lines(("tests/meta/test_walkthrough.py", "containers")) == 2
    assert code_lines(("tests/meta/test_walkthrough.py", "functions")) == 2
