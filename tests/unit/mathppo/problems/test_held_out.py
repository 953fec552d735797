"""Committed held-out sets: content, reproducibility, and separation from the training problems."""

import hashlib
import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest
from oracles_equations import equation_key, expression_key, fact_key, system_key

from mathppo.errors import BadInput, BadSetting
from mathppo.problems import HELD_OUT_COUNTS, LINEAR_MIX, load_held_out, sample_problems, split_of
from mathppo.problems.families import family_named
from mathppo.problems.held_out import read_held_out

ROOT = Path(__file__).parents[4]
KEYS = {
    "linear": equation_key,
    "degenerate": equation_key,
    "system": system_key,
    "quadratic": equation_key,
    "simplify": expression_key,
    "arithmetic": expression_key,
    "facts": fact_key,
}


def _body(question: str) -> str:
    return question.partition(": ")[2]


def test_linear_set_has_2000_equations_of_five_levels() -> None:
    problems = load_held_out("linear")
    assert Counter(problem.level for problem in problems) == {1: 349, 2: 64, 3: 304, 4: 642, 5: 641}


@pytest.mark.parametrize("name", HELD_OUT_COUNTS)
def test_set_is_complete_unique_and_on_its_side_of_the_split(name: str) -> None:
    problems = load_held_out(name)
    assert len(problems) == HELD_OUT_COUNTS[name]
    assert len({problem.id for problem in problems}) == len(problems)
    assert len({KEYS[name](_body(problem.question)) for problem in problems}) == len(problems)
    for problem in problems:
        item = family_named(name).parse(problem.question)
        assert (item.reference, item.canonical) == (problem.reference, problem.canonical)
        assert item.derivation() == problem.demonstration
        assert (problem.family, split_of(problem.canonical)) == (name, "held_out")


@pytest.mark.parametrize("name", HELD_OUT_COUNTS)
def test_prefix_of_a_set_mixes_the_levels(name: str) -> None:
    problems = load_held_out(name)
    shares, head = (Counter(problem.level for problem in part) for part in (problems, problems[:100]))
    for level, count in shares.items():
        assert head[level] == pytest.approx(count / len(problems) * 100, abs=15)


@pytest.mark.parametrize("name", ["linear", "degenerate", "quadratic"])
def test_no_training_equation_reordered_or_scaled_is_held_out(name: str) -> None:
    """Compare every possible training equation with every committed one by the oracle's keys."""
    held_out = {key for problem in load_held_out(name) for key in equation_key(_body(problem.question))}
    family = family_named(name)
    for level in family.axes:
        trained = {item.question for item in family.space(level) if split_of(item.canonical) == "train"}
        assert trained
        for question in sorted(trained):
            assert not equation_key(_body(question)) & held_out, question


@pytest.mark.parametrize("name", ["system", "simplify", "arithmetic"])
def test_no_sampled_training_problem_of_a_large_family_is_held_out(name: str) -> None:
    held_out = {KEYS[name](_body(problem.question)) for problem in load_held_out(name)}
    mix = [(name, level, 1.0) for level in family_named(name).axes]
    for problem in sample_problems(mix, 2_000, seed=11):
        assert KEYS[name](_body(problem.question)) not in held_out, problem.question


def test_leak_search_finds_swapped_and_scaled_equations() -> None:
    """Control: the oracle's keys recognise a held-out equation after a swap and a scaling."""
    held_out = {key for problem in load_held_out("linear") for key in equation_key(_body(problem.question))}
    for problem in load_held_out("linear")[:200]:
        left, right = _body(problem.question).split("=")
        assert equation_key(f"3({right})=3({left})") & held_out
        assert equation_key(f"-2({left})=-2({right})") & held_out


def test_training_covers_the_held_out_levels() -> None:
    trained = {problem.question for problem in sample_problems(LINEAR_MIX, 5_000, seed=0)}
    held_out = {problem.question for problem in load_held_out("linear")}
    assert len(trained) > 2_000
    assert not trained & held_out


def test_make_data_reproduces_the_files_and_the_hashes_of_the_readme(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_data", ROOT / "scripts" / "make_data.py")
    assert spec
    assert spec.loader
    make_data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_data)
    make_data.main(tmp_path)
    readme = (ROOT / "data" / "README.md").read_text("utf-8")
    for name in HELD_OUT_COUNTS:
        content = (tmp_path / f"{name}.jsonl").read_bytes()
        assert content == (ROOT / "data" / "held_out" / f"{name}.jsonl").read_bytes()
        assert re.search(rf"`held_out/{name}.jsonl` \|.*`{hashlib.sha256(content).hexdigest()}`", readme)


def test_load_held_out_rejects_unknown_names() -> None:
    with pytest.raises(BadSetting, match=r"held-out set: expected one of linear, .*, got 'poetry'"):
        load_held_out("poetry")


def test_missing_damaged_or_short_file_is_rejected_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "linear.jsonl"
    with pytest.raises(BadInput, match=r"linear\.jsonl: expected a file, got FileNotFoundError; reinstall mathppo"):
        read_held_out(path, 1)
    lines = (ROOT / "data" / "held_out" / "linear.jsonl").read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:40])
    with pytest.raises(BadInput, match=r"linear\.jsonl line 2: expected a problem, got "):
        read_held_out(path, 2)
    path.write_bytes(lines[0])
    with pytest.raises(BadInput, match=r"linear\.jsonl: expected 2 problems, got 1; reinstall"):
        read_held_out(path, 2)
