"""Benchmarks as data cards: where a set lies, how it is read, what is known to be wrong with it.

A card is a TOML file; the shipped ones stand in `cards/`. A file of one's own needs five lines:

    name = "mine"
    file = "mine.jsonl"
    question = "problem"
    answer = "answer"
    licence = "ours"

No problem is shipped: rows are read from a local file, or from the hub through `datasets`. The committed equation sets
are benchmarks too, by their own names.
"""

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from mathppo.errors import BadInput, BadSetting
from mathppo.evaluate.reference_answers import GoldReading, read_gold, with_tolerance, with_unit
from mathppo.problems import HELD_OUT_COUNTS, load_held_out
from mathppo.problems.rows import read_rows
from mathppo.records import Problem

CARDS = Path(__file__).parent / "cards"

GoldChoice = Literal["corrected", "official"]
"""Whether known label faults are mended, or kept for parity with published numbers."""


class Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which field of a row holds what.

    Args:
        question: field of the question, or several whose texts are joined by a space.
        answer: field of the right answer.
        gold: where in it the answer stands.
        id: field of the id; "" numbers the rows from 0.
        subject: field of the subject; "" where there is none.
        level: field of the difficulty; "" where there is none.
        unit: field of the answer's unit, which rows may leave out; "" where there is none.
        tolerance: field of the largest difference that still counts as right, in the answer's unit; rows may leave it
            out; "" where there is none.
    """

    question: str | list[str]
    answer: str
    gold: GoldReading = GoldReading.PLAIN
    id: str = ""
    subject: str = ""
    level: str = ""
    unit: str = ""
    tolerance: str = ""


class Hub(Fields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The set on the `datasets` hub.

    Args:
        name: hub id, `owner/name`.
        split: of the set.
        subset: its configuration; "" for the only or default one.
    """

    name: str
    split: str
    subset: str = ""


class LabelFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A right answer that is known to be wrong.

    Args:
        id: of the problem.
        official: the answer as the set has it.
        corrected: what is right.
        why: how one knows.
    """

    id: str
    official: str
    corrected: str
    why: str


class Card(Fields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A benchmark; the fields named at the top are those of the local file.

    Args:
        name: as in `--benchmarks`; also of files within the evaluation's folder, so that it can lead to no other.
        file: name of the local file, within the folder of benchmarks: JSON, CSV, Parquet or Arrow, or a folder that
            `datasets` wrote.
        licence: of the data.
        title: for a person.
        purpose: training sets serve contamination checks and are refused as benchmarks.
        count: number of problems; 0 where not stated.
        sha256: `content_hash` of the problems with official answers; "" where not stated.
        notes: what a reader of its numbers should know.
        faults: label faults.
        hub: where else it is; None where the file is the only place.
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
        card: what it was loaded by.
        problems: in the set's order.
        corrected: ids of problems whose right answer was mended.
        as_stated: whether problems and official answers are those that the card's hash states; None if it states none.
    """

    card: Card
    problems: list[Problem]
    corrected: list[str]
    as_stated: bool | None


def list_cards() -> list[str]:
    """Names of the shipped cards and of the committed equation sets."""
    return sorted({*(path.stem for path in CARDS.glob("*.toml")), *HELD_OUT_COUNTS})


def find_card(name: str) -> Card:
    """Read a card.

    Args:
        name: of a shipped card, of a committed equation set, or path of a card's TOML file.

    Raises:
        BadSetting: there is none, or it is no card.
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
    # The file of a card of one's own lies beside the card.
    return (
        card if path.parent == CARDS else msgspec.structs.replace(card, file=str((path.parent / card.file).resolve()))
    )


def parse_benchmarks(text: str) -> list[tuple[Card, int]]:
    """Read `gsm8k,math500:4` as cards, each with its samples a problem.

    Raises:
        BadSetting: an unknown name, a name twice, or a number that is none.

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
            raise BadSetting(f"--benchmarks: {card.name} is a training set, which measures nothing; choose another")
        chosen[card.name] = card, int(number)
    if not chosen:
        raise BadSetting(f"--benchmarks: expected names such as gsm8k,math500:4, got {text!r}")
    return list(chosen.values())


def load_benchmark(card: Card, folder: Path | None = None, *, golds: GoldChoice = "corrected") -> Benchmark:
    """Load a benchmark from the folder's file, or from the hub where no folder is given.

    Args:
        card: what to load.
        folder: where the local files lie.
        golds: `corrected` mends the card's label faults, `official` keeps them.

    Raises:
        BadInput: the file or set is missing, a row lacks a field, or the count is not the card's.
    """
    if card.name in HELD_OUT_COUNTS and not card.file:
        problems = load_held_out(card.name)
        return Benchmark(card, problems, [], None)
    problems = _read(card, folder)
    if card.count and len(problems) != card.count:
        raise BadInput(
            f"{card.name}: expected {card.count} problems as its card says, got {len(problems)}; get the whole set, "
            "or write a card of your own for this one"
        )
    as_stated = content_hash(problems) == card.sha256 if card.sha256 else None
    if golds == "official":
        return Benchmark(card, problems, [], as_stated)
    faults = {fault.id: fault for fault in card.faults}
    mended = [p.id for p in problems if p.id in faults and faults[p.id].official == p.reference]
    problems = [
        msgspec.structs.replace(p, reference=faults[p.id].corrected) if p.id in set(mended) else p for p in problems
    ]
    return Benchmark(card, problems, mended, as_stated)


def content_hash(problems: Sequence[Problem]) -> str:
    """Sha256 of questions and answers in order, whatever file format or ids they came with."""
    digest = hashlib.sha256()
    for problem in problems:
        digest.update(msgspec.json.encode([problem.question.strip(), problem.reference]) + b"\n")
    return digest.hexdigest()


def _read(card: Card, folder: Path | None) -> list[Problem]:
    if folder is not None or Path(card.file).is_absolute():
        path = (folder or Path()) / card.file
        if not path.exists():
            raise BadInput(
                f"{card.name}: expected the file {path}, found none; put it there, or leave --benchmark-dir out to "
                "load the set from the hub"
            )
        return _problems(card.name, card, read_rows(str(path), card.hub.split if card.hub else "test", None))
    if card.hub is None:
        raise BadInput(f"{card.name}: expected --benchmark-dir with {card.file} in it; this set is on no hub")
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
            raise BadInput(f"{where}: expected an id of its own, got {problem.id!r} again; name another id field")
        problems[problem.id] = problem
    if not problems:
        raise BadInput(f"{name}: expected at least one problem, got none; check its file")
    return list(problems.values())


def _reference(row: Mapping[str, Any], fields: Fields, where: str) -> str:
    """Give a row's right answer as graders read one, its unit and tolerance included."""
    reference = read_gold(_field(row, fields.answer, where), fields.gold, where)
    unit, tolerance = (str(row.get(name) or "").strip() if name else "" for name in (fields.unit, fields.tolerance))
    return with_tolerance(reference, tolerance, unit, where) if tolerance else with_unit(reference, unit)


def _field(row: Mapping[str, Any], name: str, where: str) -> Any:
    if row.get(name) is None:
        raise BadInput(f"{where}: expected a field {name!r}, got {', '.join(map(repr, row))}; name another in the card")
    return row[name]


def _level(value: Any, where: str) -> int:
    digits = "".join(character for character in str(value) if character.isdecimal())
    if not digits:
        raise BadInput(f"{where}: expected a level with a number, got {value!r}; name another field in the card")
    return int(digits)
