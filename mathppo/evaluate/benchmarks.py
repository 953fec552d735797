"""Benchmarks as data cards: the source of a set, the fields of its rows, and its known label faults.

A card is a TOML file; the shipped ones are in `cards/`. A custom card needs five lines:

    name = "mine"
    file = "mine.jsonl"
    question = "problem"
    answer = "answer"
    licence = "ours"

No problems are shipped with the cards: rows are read from a local file, or from the hub through `datasets`. The
committed equation sets are benchmarks too, under their names.
"""

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from mathppo.errors import BadInput, BadSetting
from mathppo.evaluate.reference_answers import AnswerFormat, read_reference_answer, with_tolerance, with_unit
from mathppo.problems import HELD_OUT_COUNTS, load_held_out
from mathppo.problems.dataset_rows import read_rows
from mathppo.records import Problem

CARDS = Path(__file__).parent / "cards"

GoldChoice = Literal["corrected", "official"]
"""Correct known label faults, or keep them for parity with published numbers."""


class Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names of the fields of a row; "" if there is no such field.

    Args:
        question: field of the question, or several fields whose texts are joined by a space.
        answer: field of the reference answer.
        gold: format of the reference answer in that field.
        id: field of the id; "" numbers the rows from 0.
        subject: field of the subject.
        level: field of the difficulty.
        unit: field of the unit of the answer; rows may omit it.
        tolerance: field of the largest accepted difference, in the unit of the answer; rows may omit it.
    """

    question: str | list[str]
    answer: str
    gold: AnswerFormat = AnswerFormat.PLAIN
    id: str = ""
    subject: str = ""
    level: str = ""
    unit: str = ""
    tolerance: str = ""


class Hub(Fields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set on the `datasets` hub.

    Args:
        name: hub id, `owner/name`.
        split: split of the set.
        subset: configuration of the set; "" for the default.
    """

    name: str
    split: str
    subset: str = ""


class LabelFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reference answer that is known to be wrong.

    Args:
        id: id of the problem.
        official: the answer in the set.
        corrected: the correct answer.
        why: the evidence.
    """

    id: str
    official: str
    corrected: str
    why: str


class Card(Fields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A benchmark; its own field names are those of the local file.

    Args:
        name: name in `--benchmarks`, and of files in the evaluation folder, so it must not contain a path.
        file: local file within the folder of benchmarks: JSON, CSV, Parquet or Arrow, or a folder that `datasets`
            wrote.
        licence: licence of the data.
        title: display name.
        purpose: `training` sets are for contamination checks and are rejected as benchmarks.
        count: number of problems; 0 if not stated.
        sha256: `content_hash` of the problems with official answers; "" if not stated.
        notes: caveats for readers of its numbers.
        faults: known label faults.
        hub: the set on the hub; None if it is only available as a file.
    """

    name: Annotated[str, Meta(pattern=r"^\w[\w .+-]{0,99}\Z")]
    file: Annotated[str, Meta(pattern=r"^[^\x00]*\Z")]
    licence: str
    title: str = ""
    purpose: Literal["evaluation", "training"] = "evaluation"
    count: Annotated[int, Meta(ge=0)] = 0
    sha256: str = ""
    notes: list[str] = []
    faults: list[LabelFault] = []
    hub: Hub | None = None


class Benchmark(NamedTuple):
    """A loaded set.

    Args:
        card: its card.
        problems: problems in the order of the set.
        corrected: ids of problems whose reference answer was corrected.
        as_stated: True if problems and official answers match the hash of the card; None if the card has no hash.
    """

    card: Card
    problems: list[Problem]
    corrected: list[str]
    as_stated: bool | None


def list_cards() -> list[str]:
    """Return the names of the shipped cards and of the committed equation sets."""
    return sorted({*(path.stem for path in CARDS.glob("*.toml")), *HELD_OUT_COUNTS})


def find_card(name: str) -> Card:
    """Read a card.

    Args:
        name: name of a shipped card or of a committed equation set, or path of a card's TOML file.

    Raises:
        BadSetting: the card does not exist or is invalid.
    """
    if name in HELD_OUT_COUNTS:
        notes = ["generated; no training problem of the built-in families shares a canonical form with it"]
        return Card(
            name=name, file="", question="question", answer="reference", licence="Apache-2.0",
            title=f"held-out {name}", count=HELD_OUT_COUNTS[name], notes=notes,
        )  # fmt: skip
    path = Path(name) if name.endswith(".toml") else CARDS / f"{name}.toml"
    try:
        card = msgspec.convert(tomllib.loads(path.read_text("utf-8")), Card)
    except FileNotFoundError:
        raise BadSetting(
            f"benchmark: expected one of {', '.join(list_cards())}, or a card's .toml file, got {name!r}"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadSetting(f"card {path}: expected name, file, question, answer and licence, got: {error}") from None
    # The file of a custom card is relative to the card.
    return (
        card if path.parent == CARDS else msgspec.structs.replace(card, file=str((path.parent / card.file).resolve()))
    )


def parse_benchmarks(text: str) -> list[tuple[Card, int]]:
    """Parse a list such as `gsm8k,math500:4` into cards and their numbers of samples per problem.

    Raises:
        BadSetting: a name is unknown or repeated, or a number is invalid.

    >>> [(card.name, samples) for card, samples in parse_benchmarks("gsm8k,math500:4")]
    [('gsm8k', 1), ('math500', 4)]
    """
    chosen: dict[str, tuple[Card, int]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = part.rpartition(":") if ":" in part else (part, "", "1")
        if not (number.isdecimal() and int(number) >= 1):
            raise BadSetting(f"--benchmarks: expected NAME or NAME:SAMPLES with at least one sample, got {part!r}")
        card = find_card(name)
        if card.name in chosen:
            raise BadSetting(f"--benchmarks: expected each set once, got {card.name!r} twice")
        if card.purpose == "training":
            raise BadSetting(f"--benchmarks: expected evaluation sets, got {card.name}, a training set; choose another")
        chosen[card.name] = card, int(number)
    if not chosen:
        raise BadSetting(f"--benchmarks: expected names such as gsm8k,math500:4, got {text!r}")
    return list(chosen.values())


def load_benchmark(card: Card, folder: Path | None = None, *, golds: GoldChoice = "corrected") -> Benchmark:
    """Load a benchmark from a local file, or from the hub if there is no folder.

    Args:
        card: card of the benchmark.
        folder: folder of the local files.
        golds: `corrected` corrects the known label faults, `official` keeps them.

    Raises:
        BadInput: the file or set is missing, a row lacks a field, or the number of problems differs from the card.
    """
    if card.name in HELD_OUT_COUNTS and not card.file:
        problems = load_held_out(card.name)
        return Benchmark(card, problems, [], None)
    problems = _read(card, folder)
    if card.count and len(problems) != card.count:
        raise BadInput(
            f"{card.name}: expected {card.count} problems as in its card, got {len(problems)}; get the complete set, "
            "or write a separate card for this one"
        )
    as_stated = content_hash(problems) == card.sha256 if card.sha256 else None
    if golds == "official":
        return Benchmark(card, problems, [], as_stated)
    faults = {fault.id: fault for fault in card.faults}
    corrected = [p.id for p in problems if p.id in faults and faults[p.id].official == p.reference]
    problems = [
        msgspec.structs.replace(p, reference=faults[p.id].corrected) if p.id in set(corrected) else p for p in problems
    ]
    return Benchmark(card, problems, corrected, as_stated)


def content_hash(problems: Sequence[Problem]) -> str:
    """Return the SHA-256 of questions and answers in order, which does not depend on file format or ids."""
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(msgspec.json.encode([problem.question.strip(), problem.reference]) + b"\n")
    return digest.hexdigest()


def _read(card: Card, folder: Path | None) -> list[Problem]:
    if folder is not None or Path(card.file).is_absolute():
        path = (folder or Path()) / card.file
        if not path.exists():
            raise BadInput(
                f"{card.name}: expected the file {path}, found none; put it there, or omit --benchmark-dir to "
                "load the set from the hub"
            )
        return _problems(card.name, card, read_rows(str(path), card.hub.split if card.hub else "test", None))
    if card.hub is None:
        raise BadInput(
            f"{card.name}: expected --benchmark-dir with {card.file} in it, because this set is not on the hub"
        )
    hub = card.hub
    return _problems(card.name, hub, read_rows(hub.name, hub.split, hub.subset or None))


def _problems(name: str, fields: Fields, rows: Any) -> list[Problem]:
    problems: dict[str, Problem] = {}
    for number, (where, row) in enumerate(rows):
        parts = [fields.question] if isinstance(fields.question, str) else fields.question
        question = " ".join(str(_field(row, part, where)).strip() for part in parts)
        problem = Problem(
            id=str(_field(row, fields.id, where)) if fields.id else f"{name}-{number:04d}",
            question=question,
            reference=_reference(row, fields, where),
            family=str(_field(row, fields.subject, where)) if fields.subject else "",
            level=_level(_field(row, fields.level, where), where) if fields.level else 0,
        )
        if problem.id in problems:
            raise BadInput(f"{where}: expected unique ids, got {problem.id!r} again; choose another id field")
        problems[problem.id] = problem
    if not problems:
        raise BadInput(f"{name}: expected at least one problem, got none; check its file")
    return list(problems.values())


def _reference(row: Mapping[str, Any], fields: Fields, where: str) -> str:
    """Return the reference answer of a row in the form that graders read, including unit and tolerance."""
    reference = read_reference_answer(_field(row, fields.answer, where), fields.gold, where)
    unit, tolerance = (str(row.get(name) or "").strip() if name else "" for name in (fields.unit, fields.tolerance))
    return with_tolerance(reference, tolerance, unit, where) if tolerance else with_unit(reference, unit)


def _field(row: Mapping[str, Any], name: str, where: str) -> Any:
    if row.get(name) is None:
        raise BadInput(f"{where}: expected a field {name!r}, got {', '.join(map(repr, row))}; correct the card")
    return row[name]


def _level(value: Any, where: str) -> int:
    digits = "".join(character for character in str(value) if character.isdecimal())
    if not digits:
        raise BadInput(
            f"{where}: expected a level that contains a number, got {value!r}; choose another field in the card"
        )
    return int(digits)
