"""The files that `evaluate --benchmarks` leaves: where each lies, and its readers and writers."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from mathppo.errors import BadArtefact, BadInput
from mathppo.evaluate.result import Result, problems_hash
from mathppo.records import Problem
from mathppo.storage import store


def read_results(folder: Path) -> list[Result]:
    """Read the results of an output folder, or of one policy's folder within it, by name.

    Raises:
        BadArtefact: there is none, or one that cannot be read.
    """
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*.json"))
    results = []
    for path in paths:
        content = path.read_bytes()
        if b'"result/1"' not in content[:200]:
            continue
        try:
            results.append(msgspec.json.decode(content, type=Result))
        except (msgspec.DecodeError, BadInput) as error:
            raise BadArtefact(f"{path}: expected a result of evaluate, got: {error}; run evaluate again") from None
    if not results:
        raise BadArtefact(
            f"{folder}: expected results of evaluate, found none; run `mathppo evaluate` with --out, for score "
            "and export with --benchmarks too"
        )
    return results


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Write one record for a person to read."""
    store.write_file(path, msgspec.json.format(msgspec.json.encode(record)))


def problems_folder(out: Path, benchmark: str, golds: str) -> Path:
    """Give where an evaluation keeps the problems as it asked them."""
    return out / "problems" / f"{benchmark}.{golds}"


def policy_folder(step: int, weights: str) -> str:
    """Give the name of a policy's own folder among the results."""
    return f"step{step:06d}-{weights[:8]}"


def prompts_file(out: Path, result: Result) -> Path:
    """Give where an evaluation keeps its prompts as the model saw them, by problem id."""
    name = f"{result.benchmark}.{result.template}.{result.prompts_sha256[:8]}.json"
    return out / "prompts" / name


def keep_problems(out: Path, name: str, golds: str, problems: Sequence[Problem]) -> None:
    """Keep the problems as they were asked; those that are there already are left alone."""
    made_from, path = problems_hash(problems), problems_folder(out, name, golds)
    if not store.is_finished(path, store.PROBLEMS, made_from):
        store.write_artefact(path, store.PROBLEMS, problems, made_from)
