r"""Answers of fixed form, recognised before the grammar: option letters, times of day, compound units, words.

Each function returns None if the answer is not of its form.
"""

import re
from collections.abc import Callable

from graders.parsing.text import NEGATION, canonical_text, strip_markup
from graders.parsing.tree import Apply, Choice, Clock, List, Name, Node, Number, Quantity, Text
from graders.parsing.units import MULTIPLIERS, canonical_unit, conversion, known_symbol
from graders.parsing.words import CONNECTIVES, CONSTANTS, GREEK, NUMBER_WORDS, SPECIAL_TEXTS

_WRAPPED = r"(?:\\(?:text|textbf|mathrm|mathbf|mbox|textit|rm|bf|boldsymbol|textrm)\s*)?\{?\s*"
_OPTION = re.compile(
    rf"(?:{_WRAPPED}\(\s*(?P<bracketed>[A-Za-z])\s*\)\s*\}}?|(?P<lower>[a-j])(?=\))"
    rf"|{_WRAPPED}(?P<bare>[A-Z])\s*\}}?(?:[.:)]|(?=\s*\Z)))[.:)]?"
    r"(?P<content>(?:(?:(?:\s|\\[ ,;:]|~|\\q?quad)+|(?<=\)\})(?=[\d$]|\\[a-z]))"
    r"(?![-+*/^=<>,]|(?:\\text\s*\{\s*)?(?:and|or)\b).+|))",
    re.DOTALL,
)
_NO_CONTENT = re.compile(
    r"(?:[}\s]|\\text\s*\{)*(?:is (?:wrong|false|incorrect|not)\b|[A-E](?:[\s,;/]+[A-E]){0,9}[\s.}]*\Z)"
    r"|.*?(?:(?<![(\w])[B-J][.:)]|\([B-J]\))\s+(?!and\b|or\b|are\b|is\b)\S",
    re.DOTALL,
)
"""Text beside a letter that is not the text of an option: a negation, or more letters."""
_LETTER_AFTER = re.compile(r"(?:\\text\w{0,2}\s?\{)?\s?\(([A-J])\)\s?\}?\Z")
_CLOCK = re.compile(
    r"(\d{1,2}):([0-5]\d)(?::([0-5]\d))?\s?([ap]\.?\s?m\.?)?|(\d{1,2})\s?([ap]\.?\s?m\.?)", re.IGNORECASE
)
_PART = r"(\d+(?:\.\d+)?) ?([A-Za-z]+)"
_COMPOUND = re.compile(rf"{_PART},? (?:and )?{_PART}(?:,? (?:and )?{_PART})?")
_WORDS_ONLY = re.compile(r"[A-Za-z\u00c0-\u024f][A-Za-z\u00c0-\u024f\s'’.,!\-]*")
_ROMAN_NUMERAL = re.compile(r"[IVX]+")
_CIRCLED = "①②③④⑤⑥⑦⑧⑨⑩"
_PARTS = "half third quarter fourth fifth sixth seventh eighth ninth tenth".split()
_FRACTION_WORDS = re.compile(
    rf"(?:([a-z]+(?: [a-z]+)?) and )?(?:an? |([a-z]+) )?({'|'.join(_PARTS)}|halve)s?(?: of .*)?"
)
_DENOMINATORS = dict(zip(_PARTS, (2, 3, 4, 4, 5, 6, 7, 8, 9, 10), strict=True)) | {"halve": 2}
_LETTERED = re.compile(r"\(?((?=[0-9A-Fa-f]*[A-Fa-f])(?=[0-9A-Fa-f]*\d)[0-9A-Fa-f]{2,16})\)?_\{?(1[1-6])\}?")
MAX_CLOCK_CHARS = 60

ParsePart = Callable[[str], Node | None]


def option(text: str, parse_part: ParsePart) -> Node | None:
    """Parse an option letter, alone or with the text of the option: `B`, `(B)`, `B. 12`, `12 (B)`."""
    match = _OPTION.fullmatch(text)
    if match is not None:
        letter = match["bracketed"] or match["lower"] or match["bare"]
        content = match["content"].strip().strip("~").strip()
        return None if _NO_CONTENT.match(content) else _with_content(letter.upper(), content, parse_part)
    after = _LETTER_AFTER.search(text, max(0, len(text) - 20))
    if after is None or not (before := text[: after.start()].strip().removesuffix("\\")):
        return None
    if before[-1] in "+-*/^=<>,(_{" or NEGATION.search(before):
        return None
    return _with_content(after[1], before, parse_part)


def _with_content(letter: str, content: str, parse_part: ParsePart) -> Choice:
    return Choice(letter, (parse_part(content) or Text(canonical_text(content))) if content else None)


def clock(text: str) -> Node | None:
    """Parse a time of day: with seconds, with a.m. or p.m., or in five characters such as `08:30`."""
    if len(text) > MAX_CLOCK_CHARS:
        return None
    bare = strip_markup(text).replace("\\", " ")
    match = _CLOCK.fullmatch(bare)
    if match is None or not (match[3] or match[4] or match[6] or (len(bare) == 5 and bare[0] in "012")):
        return None
    hours, minutes, seconds = int(match[1] or match[5]), int(match[2] or 0), int(match[3] or 0)
    half = (match[4] or match[6] or "").lower().replace(".", "").replace(" ", "")
    if hours > 24 or (half and hours > 12):
        return None
    hours = hours % 12 + (12 if half == "pm" else 0) if half else hours
    return Clock(3600 * hours + 60 * minutes + seconds, half)


def compound(text: str) -> Node | None:
    """Parse `3 hours 20 minutes` or `5 feet 6 inches` as one value in the first unit."""
    if len(text) > 4 * MAX_CLOCK_CHARS or not text[0].isdigit():
        return None
    match = _COMPOUND.fullmatch(" ".join(strip_markup(text).replace("\\", " ").split()))
    unit = known_symbol(match[2]) if match is not None else None
    if match is None or unit is None:
        return None
    total: Node = Number(match[1])
    for value, word in ((match[3], match[4]), (match[5], match[6])):
        if value is None:
            continue
        smaller = known_symbol("inch" if word == "in" else word)
        factor = conversion(smaller, unit) if smaller is not None else None
        if factor is None or factor.numerator != 1 or factor.denominator == 1:
            return None
        total = Apply("+", (total, Apply("/", (Number(value), Number(str(factor.denominator))))))
    return Quantity(total, unit)


def circled(text: str) -> Node | None:
    """Parse the circled numerals of statements, `①③` or `①, ③`, as a list."""
    if text[0] not in _CIRCLED and text[-1:] not in _CIRCLED:
        return None
    marks = [sign for sign in strip_markup(text) if sign in _CIRCLED]
    if re.sub(rf"[{_CIRCLED}\s,;、.]|and", "", strip_markup(text)):
        return None
    return Name(marks[0]) if len(marks) == 1 else List(tuple(Name(mark) for mark in marks))


def lettered_numeral(text: str) -> Node | None:
    """Parse a numeral with letters as digits and its base, such as `2A_{16}`."""
    match = _LETTERED.fullmatch(text) if "_" in text else None
    return None if match is None else Apply("base", (Text(match[1].lower()), Number(match[2])))


def _fraction_in_words(canonical: str) -> Node | None:
    """Parse `three quarters` or `one and a half`; an ordinal alone, such as "fifth", is not a fraction."""
    match = _FRACTION_WORDS.fullmatch(canonical)
    if match is None or (canonical == match[3] and match[3] != "half"):
        return None
    whole, top = NUMBER_WORDS.get(match[1] or "zero"), NUMBER_WORDS.get(match[2] or "one")
    if whole is None or top is None:
        return None
    part = Apply("/", (Number(str(top)), Number(str(_DENOMINATORS[match[3]]))))
    return Apply("+", (Number(str(whole)), part)) if whole else part


def words(text: str, parse_part: ParsePart) -> Node | None:
    """Parse an answer in words only: a number, a named answer such as "no solution", a letter, or other text."""
    bare = strip_markup(text)
    if "\\" in bare or text.count("{") != text.count("}") or not _WORDS_ONLY.fullmatch(bare):
        return None
    canonical = canonical_text(bare)
    if bare.lower() in CONSTANTS:
        return Name(CONSTANTS[bare.lower()])
    if (value := NUMBER_WORDS.get(canonical)) is not None:
        return Number(str(value))
    if (part := _fraction_in_words(canonical)) is not None:
        return part
    first, _, rest = canonical.partition(" ")
    if first in ("negative", "minus") and (value := NUMBER_WORDS.get(rest)) is not None:
        return Apply("neg", (Number(str(value)),))
    if rest and (value := NUMBER_WORDS.get(first)) is not None and (unit := canonical_unit(rest)) is not None:
        multiplier = MULTIPLIERS.get(rest)
        return Number(str(value * int(multiplier))) if multiplier else Quantity(Number(str(value)), unit)
    if canonical in SPECIAL_TEXTS and len(canonical) > 1:
        return Text(canonical)
    parts = [word for word in re.split(r"[\s'.,!-]+", bare) if word]
    if all(len(word) == 1 or word.lower() in CONNECTIVES or _ROMAN_NUMERAL.fullmatch(word) for word in parts):
        return None if bare == text else parse_part(bare)
    symbol = len(bare) == 2 or bare in GREEK or _ROMAN_NUMERAL.fullmatch(bare) is not None
    return None if len(parts) == 1 and "\\" not in text and symbol else Text(canonical)
