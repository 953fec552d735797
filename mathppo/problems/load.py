"""Problem loader: files, hub data sets and the committed held-out sets."""

import math
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from mathppo.errors import BadInput, BadSetting
from mathppo.problems.dataset_rows import Row, read_rows
from mathppo.problems.held_out import load_held_out
from mathppo.records import Problem

ReferenceFormat = Literal["plain", "gsm8k"]
"""`plain`: the field is the answer. `gsm8k`: the answer follows the last `####`; commas are removed."""


def load_problems(
    source: str,
    *,
    question_field: str = "question",
    reference_field: str = "reference",
    id_field: str | None = None,
    family_field: str | None = None,
    level_field: str | None = None,
    reference_format: ReferenceFormat = "plain",
    split: str = "test",
    subset: str | None = None,
) -> list[Problem]:
    """Read every problem of a source.

    Args:
        source: a file, folder or hub id as for `read_rows`, or `held_out:NAME` for a committed set. Rows that are
            already problem records are used unchanged.
        question_field: field of the question.
        reference_field: field of the answer: text, an integer, or a finite float.
        id_field: field of the id; None numbers the rows from 1.
        family_field: field of the kind or subject; None leaves the family empty.
        level_field: field of the difficulty: a number, or text with one, such as `Level 3`.
        reference_format: format of the reference field.
        split: split of a folder or hub id.
        subset: subset of a folder or hub id; None for its only or default subset.

    Raises:
        BadSetting: an unknown reference format.
        BadInput: the source is missing, empty or unreadable, a row lacks a field, or two rows have the same id.
    """
    if reference_format not in ("plain", "gsm8k"):
        raise BadSetting(f"reference_format: expected 'plain' or 'gsm8k', got {reference_format!r}")
    kind, _, name = source.partition(":")
    if kind == "held_out" and name:
        return load_held_out(name)
    fields = _Fields(question_field, reference_field, id_field, family_field, level_field, reference_format)
    prefix = Path(source).stem
    seen: dict[str, str] = {}
    problems = []
    for number, (where, row) in enumerate(read_rows(source, split, subset), start=1):
        problem = _to_problem(row, where, f"{prefix}-{number}", fields)
        if problem.id in seen:
            raise BadInput(
                f"{where}: expected a unique id, got {problem.id!r}, the id of {seen[problem.id]}; "
                "make the ids unique or set another id field"
            )
        seen[problem.id] = where
        problems.append(problem)
    if not problems:
        raise BadInput(f"{source}: expected at least one problem, got none; check the source")
    return problems


class _Fields(msgspec.Struct, frozen=True):
    question: str
    reference: str
    id: str | None
    family: str | None
    level: str | None
    reference_format: ReferenceFormat


def _to_problem(row: Row, where: str, numbered_id: str, fields: _Fields) -> Problem:
    if str(row.get("schema", "")).startswith("problem/"):
        try:
            return msgspec.convert(row, Problem)
        except msgspec.ValidationError as error:
            raise BadInput(f"{where}: expected a problem record, got {error}; run prepare again") from error
    question, reference = _field(row, fields.question, where), _field(row, fields.reference, where)
    if not isinstance(question, str) or not question.strip():
        raise BadInput(f"{where}: expected text in field {fields.question!r}, got {question!r}; fix the row")
    return Problem(
        id=numbered_id if fields.id is None else str(_field(row, fields.id, where)),
        question=question,
        reference=_reference(reference, where, fields),
        family="" if fields.family is None else str(_field(row, fields.family, where)),
        level=0 if fields.level is None else _level(_field(row, fields.level, where), where),
    )


def _field(row: Row, name: str, where: str) -> Any:
    if row.get(name) is None:
        raise BadInput(
            f"{where}: expected a field {name!r}, got {', '.join(map(repr, row)) or 'none'}; set another field "
            "(problems.question_field, problems.reference_field)"
        )
    return row[name]


def _reference(value: Any, where: str, fields: _Fields) -> str:
    if isinstance(value, float) and math.isfinite(value):
        value = int(value) if value.is_integer() else value
    elif isinstance(value, bool) or not isinstance(value, int | str):
        raise BadInput(
            f"{where}: expected text or a finite number in field {fields.reference!r}, got {value!r}; fix the row"
        )
    text = str(value).strip()
    if fields.reference_format == "gsm8k":
        _, mark, text = text.rpartition("####")
        text = text.strip().replace(",", "") if mark else ""
    if not text:
        expected = "an answer after ####" if fields.reference_format == "gsm8k" else "an answer"
        raise BadInput(f"{where}: expected {expected} in field {fields.reference!r}, got {value!r}; fix the row")
    return text


def _level(value: Any, where: str) -> int:
    digits = re.search(r"\d+", str(value))
    if digits is None:
        raise BadInput(f"{where}: expected a level with a number, got {value!r}; set another level field")
    return int(digits.group())
