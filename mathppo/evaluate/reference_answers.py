"""How a benchmark writes its right answers, and what kind of answer each is."""

import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from mathppo.errors import BadInput


class GoldReading(StrEnum):
    """Where in its field a right answer stands."""

    PLAIN = "plain"
    """The field is the answer; dollar signs around it are taken off."""
    HASHES = "hashes"
    """It follows the last `####`, thousands' commas left out (GSM8K)."""
    BOXED = "boxed"
    """The last `\\boxed{}` of a worked solution (MATH, Minerva)."""
    FIRST = "first"
    """The first entry of a list (OlympiadBench)."""
    INTEGER = "integer"
    """A whole number, whatever its writing: `025`, `27.0` (AIME, AMC)."""
    BEFORE_BRACKET = "before_bracket"
    """What stands before the unit in brackets: `9 (apples)` (ASDiv)."""


class AnswerType(StrEnum):
    """What kind of thing a right answer is, by its writing."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    FRACTION = "fraction"
    CHOICE = "choice"
    TUPLE = "tuple"
    """A point, an interval, or several answers with commas between them."""
    EXPRESSION = "expression"
    TEXT = "text"


def read_gold(value: Any, reading: GoldReading, where: str) -> str:
    """Give the right answer that stands in a field.

    Args:
        value: what the field holds: text, a finite number, or for `first` a list.
        reading: where the answer stands in it.
        where: the row, for the message.

    Raises:
        BadInput: the field holds no answer of that reading.

    >>> read_gold("4 + 4 = 8\\n#### 1,080", GoldReading.HASHES, "row 1")
    '1080'
    >>> read_gold("027", GoldReading.INTEGER, "row 1")
    '27'
    """
    text = _READERS[reading](_as_text(value[0] if reading is GoldReading.FIRST and _filled(value) else value))
    if not text:
        raise BadInput(f"{where}: expected an answer ({reading}), got {value!r}; name another field or reading")
    return text


def with_unit(reference: str, unit: str) -> str:
    """Give a right answer with its unit, which an answer may then leave out but not contradict.

    >>> with_unit("45", "minutes") == r"45 \\text{ minutes}"
    True
    """
    bare = unit.strip().strip("$").strip()
    if not bare:
        return reference
    end = "\\%" if bare == "%" else bare if bare[0] in "\\^" else f" \\text{{ {bare}}}"
    # Of several answers each has the unit; a comma within brackets, or one that groups thousands, parts none.
    return ",".join(part + end for part in re.split(r",(?!\d{3}(?!\d))(?![^(\[{]*[)\]}])", reference))


def with_tolerance(reference: str, tolerance: str, unit: str, where: str) -> str:
    """Give the range of values that count as right, in the form in which graders read one.

    Raises:
        BadInput: the answer or its tolerance is no finite number, or the tolerance is below 0.

    >>> with_tolerance("4.2", "1e-1", "", "row 1")
    '{"from": "4.1", "to": "4.3"}'
    """
    try:
        middle, reach = Decimal(reference), Decimal(tolerance)
    except InvalidOperation:
        middle = reach = Decimal("nan")
    if not (middle.is_finite() and reach.is_finite() and reach >= 0):
        raise BadInput(
            f"{where}: expected numbers for an answer with a tolerance, got {reference!r} and {tolerance!r}; repair "
            "the row"
        )
    return json.dumps({"from": with_unit(str(middle - reach), unit), "to": with_unit(str(middle + reach), unit)})


def answer_type(reference: str) -> AnswerType:
    """Tell what kind of answer a reference is.

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


def _filled(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0


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
    """The content of the last `\\boxed{…}` whose braces balance."""
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


_READERS: Mapping[GoldReading, Callable[[str], str]] = MappingProxyType(
    {
        GoldReading.PLAIN: _without_dollars,
        GoldReading.FIRST: _without_dollars,
        GoldReading.HASHES: _after_hashes,
        GoldReading.BOXED: _boxed,
        GoldReading.INTEGER: _integer,
        GoldReading.BEFORE_BRACKET: lambda text: text.partition(" (")[0].strip(),
    }
)
