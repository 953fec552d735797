"""Reference answers of benchmarks: their formats, units and tolerances, and their types."""

import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from mathppo.errors import BadInput


class AnswerFormat(StrEnum):
    """Format of a reference answer within its field."""

    PLAIN = "plain"
    """The field is the answer; enclosing dollar signs are removed."""
    HASHES = "hashes"
    """The text after the last `####`, without thousands separators (GSM8K)."""
    BOXED = "boxed"
    """The last `\\boxed{}` of a worked solution (MATH, Minerva)."""
    FIRST = "first"
    """The first entry of a list (OlympiadBench)."""
    INTEGER = "integer"
    """An integer in any notation: `025`, `27.0` (AIME, AMC)."""
    BEFORE_BRACKET = "before_bracket"
    """The text before a unit in parentheses: `9 (apples)` (ASDiv)."""


class AnswerType(StrEnum):
    """Type of a reference answer, derived from its notation."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    FRACTION = "fraction"
    CHOICE = "choice"
    TUPLE = "tuple"
    """A point, an interval, or several answers separated by commas."""
    EXPRESSION = "expression"
    TEXT = "text"


def read_reference_answer(value: Any, answer_format: AnswerFormat, where: str) -> str:
    """Return the reference answer in a field.

    Args:
        value: value of the field: text, a finite number, or a list for `first`.
        answer_format: format of the answer in it.
        where: the row, for the error message.

    Raises:
        BadInput: the field has no answer in that format.

    >>> read_reference_answer("4 + 4 = 8\\n#### 1,080", AnswerFormat.HASHES, "row 1")
    '1080'
    >>> read_reference_answer("027", AnswerFormat.INTEGER, "row 1")
    '27'
    """
    entry = value
    if answer_format is AnswerFormat.FIRST and isinstance(value, list | tuple):
        entry = next(iter(value), None)
    text = _READERS[answer_format](_as_text(entry))
    if not text:
        raise BadInput(f"{where}: expected an answer ({answer_format}), got {value!r}; choose another field or format")
    return text


def with_unit(reference: str, unit: str) -> str:
    """Return a reference answer with its unit, which an answer may omit but not contradict.

    >>> with_unit("45", "minutes") == r"45 \\text{ minutes}"
    True
    """
    bare = unit.strip().strip("$").strip()
    if not bare:
        return reference
    end = "\\%" if bare == "%" else bare if bare[0] in "\\^" else f" \\text{{ {bare}}}"
    # Each of several answers gets the unit; commas within brackets or between thousands do not separate answers.
    return ",".join(part + end for part in re.split(r",(?!\d{3}(?!\d))(?![^(\[{]*[)\]}])", reference))


def with_tolerance(reference: str, tolerance: str, unit: str, where: str) -> str:
    """Return the accepted range of values, in the form that graders read.

    Raises:
        BadInput: the answer or its tolerance is not a finite number, or the tolerance is below 0.

    >>> with_tolerance("4.2", "1e-1", "", "row 1")
    '{"from": "4.1", "to": "4.3"}'
    """
    try:
        middle, radius = Decimal(reference), Decimal(tolerance)
    except InvalidOperation:
        middle = radius = Decimal("nan")
    if not (middle.is_finite() and radius.is_finite() and radius >= 0):
        raise BadInput(
            f"{where}: expected numbers for an answer with a tolerance, got {reference!r} and {tolerance!r}; correct "
            "the row"
        )
    return json.dumps({"from": with_unit(str(middle - radius), unit), "to": with_unit(str(middle + radius), unit)})


def answer_type(reference: str) -> AnswerType:
    """Return the type of a reference answer.

    >>> [str(answer_type(text)) for text in ("12", "1.5", r"\\frac{1}{2}", "B", "(1, 2)", "x^2+1", "Evelyn")]
    ['integer', 'decimal', 'fraction', 'choice', 'tuple', 'expression', 'text']
    """
    if reference.startswith('{"from"'):
        return AnswerType.DECIMAL
    text = _UNIT.sub("", reference.strip().strip("$")).strip() or reference.strip()
    text = text.strip("$").replace("\\!", "").replace("\\$", "").replace("{,}", "")
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text) if re.fullmatch(r"-?[\d,.]+", text) else text
    for kind, pattern in _KINDS.items():
        if pattern.fullmatch(text):
            return kind
    return AnswerType.EXPRESSION


_UNIT = re.compile(r"(?:\\,|\s)*(?:\\(?:text|mbox|mathrm)\{[^{}]*\}(?:\^\{?\d\}?)?|\^\{?\\circ\}?|\\?%)$")
_FRACTION = r"-?(?:\\[dt]?frac(?:\{-?\d+\}\{-?\d+\}|\d\d)|\d+\s*/\s*\d+)"
_KINDS: Mapping[AnswerType, re.Pattern[str]] = MappingProxyType(
    {
        AnswerType.INTEGER: re.compile(r"[-+]?\d+"),
        AnswerType.DECIMAL: re.compile(r"[-+]?\d*\.\d+(?:e[-+]?\d+)?|[-+]?\d+e[-+]?\d+", re.IGNORECASE),
        AnswerType.FRACTION: re.compile(_FRACTION),
        AnswerType.CHOICE: re.compile(r"\(?[A-F]\)?|\\text\{\(?[A-F]\)?\}"),
        AnswerType.TUPLE: re.compile(r"(?:\\left)?[(\[].*,.*[)\]]|[^(\[{]*,.*"),
        AnswerType.TEXT: re.compile(r"\\text\{.*\}|[A-Za-z][A-Za-z.']+(?:[ -][A-Za-z.']+)*|.*\d:\d\d.*"),
    }
)


def _as_text(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return "" if isinstance(value, float) and not math.isfinite(value) else str(value).strip()


def _after_hashes(text: str) -> str:
    _, mark, answer = text.rpartition("####")
    return answer.strip().replace(",", "") if mark else ""


def _boxed(text: str) -> str:
    """Return the content of the last `\\boxed{…}` with balanced braces."""
    for start in reversed([match.end() for match in re.finditer(r"\\boxed\s*\{", text)]):
        depth = 1
        for end in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0) if text[end - 1] != "\\" else 0
            if depth == 0:
                return text[start:end].strip()
    return ""


def _integer(text: str) -> str:
    match = re.fullmatch(r"(-?)0*(\d+)(?:\.0*)?", text.replace(",", ""))
    return "".join(match.groups()) if match else ""


def _without_dollars(text: str) -> str:
    inner = text.removeprefix("$").removesuffix("$")
    return inner.strip() if "$" not in inner else text


_READERS: Mapping[AnswerFormat, Callable[[str], str]] = MappingProxyType(
    {
        AnswerFormat.PLAIN: _without_dollars,
        AnswerFormat.FIRST: _without_dollars,
        AnswerFormat.HASHES: _after_hashes,
        AnswerFormat.BOXED: _boxed,
        AnswerFormat.INTEGER: _integer,
        AnswerFormat.BEFORE_BRACKET: lambda text: text.partition(" (")[0].strip(),
    }
)
