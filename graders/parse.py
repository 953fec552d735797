r"""Answer text to tree: LaTeX, plain and Python-style, typed, bounded, in linear time, never by evaluating it.

The whole text is read or none of it: a text that is not mathematics to its last character is words (`Text`), or is
refused with the position at which it stopped making sense. Option letters, clock times and units are told apart first.

Touches: nothing.
"""

import re

import msgspec

from graders.parse_grammar import Grammar
from graders.parse_tokens import ParseError, Token, tokenize
from graders.parse_unicode import normalise
from graders.parse_words import CONNECTIVES, CONSTANTS, GREEK, NUMBER_WORDS, SPECIAL_TEXTS
from graders.tree import Apply, Choice, Clock, Name, Node, Number, Quantity, Relation, Text
from graders.units import ORDINALS, SINGLE_LETTER_UNITS, canonical_unit, known_symbol

__all__ = ["Limits", "ParseError", "canonical_text", "parse"]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an answer may be at most.

    Args:
        max_chars: characters of text.
        max_depth: brackets within brackets.
        max_digits: digits of one numeral.
    """

    max_chars: int = 20_000
    max_depth: int = 40
    max_digits: int = 2_000


DEFAULT_LIMITS = Limits()

_PLAIN_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_WRAPPED = r"(?:\\(?:text|textbf|mathrm|mathbf|mbox|textit|rm|bf|boldsymbol|textrm)\s*)?\{?\s*"
_CHOICE = re.compile(
    rf"(?:{_WRAPPED}\(\s*(?P<bracketed>[A-Za-z])\s*\)\s*\}}?|(?P<lower>[a-j])(?=\))|{_WRAPPED}(?P<bare>[A-Z])\s*\}}?(?:[.:)]|(?=\s*\Z)))"
    r"[.:)]?(?P<content>(?:(?:\s|\\[ ,;:]|~|\\q?quad)+(?![-+*/^=<>,]).+|))",
    re.DOTALL,
)
_CLOCK = re.compile(
    r"(\d{1,2}):([0-5]\d)(?::([0-5]\d))?\s*([ap]\.?\s?m\.?)?|(\d{1,2})\s*([ap]\.?\s?m\.?)", re.IGNORECASE
)
_TEXT_COMMAND = re.compile(r"\\(?:text(?:bf|rm|it|sf|tt|normal)?|mbox|mathrm|mathbf|operatorname|emph)\s*(?=\{)")
_NOISE = re.compile(r"[\\{}$~\"“”`*?;:()\[\]]+|[.,](?!\d)|(?<!\d)!|'(?=s?\b)")
_HYPHEN = re.compile(r"(?<=[A-Za-z])-(?=[A-Za-z])")
_ARTICLE = re.compile(r"^(?:the|a|an)\s+|\s+(?:answer|is correct)$")
_WORDS_ONLY = re.compile(r"(?:[A-Za-z\u00c0-\u024f]+[\s'’.,!\-]*)+")
_ROMAN_NUMERAL = re.compile(r"[IVX]+")
_LABEL = re.compile(
    r"(?:the )?(?:final |correct )?answers? (?:is|are|=):?\s*"
    r"|\\text\s*\{\s*(?:the )?(?:final |correct )?answers? (?:is|are|=):?\s*\}\s*"
    r"|(?:thus|so|therefore|hence|answer|ans|final answer|solution)\s*[:,=]\s*(?=\S)",
    re.IGNORECASE,
)
_CURRENCY = re.compile(r"(-?)\s*(\\\$|[$€£¥₹]|Rs\.?|USD|US\\?\$)\s*(?=[\d.(\\])")
_TAIL = re.compile(r"(?:[\s.;,:]|\\[,;: ]|~|\\\\)+\Z")
_HEAD = re.compile(
    r"(?:[\s;,:]|\\[,;: ]|\\q?quad(?![A-Za-z])|~|\\displaystyle(?![A-Za-z])|\\(?:approx|simeq)(?![A-Za-z])|≈)+"
)


def parse(text: str, limits: Limits = DEFAULT_LIMITS) -> Node:
    r"""The tree of an answer.

    Args:
        text: the answer alone, with or without `$` around it.
        limits: what is refused before anything is read.

    Raises:
        ParseError: the text exceeds a limit, is empty, or is mathematics broken off or unknown, with its position.
    """
    if len(text) > limits.max_chars:
        raise ParseError(f"expected at most {limits.max_chars} characters, got {len(text)}", limits.max_chars)
    _check_nesting(text, limits.max_depth)
    cleaned = _clean(normalise(text))
    if not cleaned:
        raise ParseError("expected an answer, got nothing", 0)
    if _PLAIN_NUMBER.fullmatch(cleaned) and len(cleaned) <= limits.max_digits:
        return Apply("neg", (Number(cleaned[1:]),)) if cleaned[0] == "-" else Number(cleaned)
    return _choice(cleaned, limits) or _clock(cleaned) or _words(cleaned, limits) or _mathematics(cleaned, limits)


def canonical_text(text: str) -> str:
    """Words without case, markup, punctuation and articles: how texts are compared."""
    text = _TEXT_COMMAND.sub(" ", normalise(text)).replace("\\ ", " ").replace("\\,", " ")
    text = _HYPHEN.sub(" ", text)
    text = " ".join(_NOISE.sub(" ", text).lower().split())
    return _ARTICLE.sub("", text)


def _check_nesting(text: str, max_depth: int) -> None:
    depth = 0
    for match in re.finditer(r"[({\[)}\]]", text):
        depth += 1 if match.group() in "({[" else -1
        if depth > max_depth:
            raise ParseError(f"expected nesting of at most {max_depth}", match.start())


def _clean(text: str) -> str:
    """The text without math delimiters, closing punctuation, and a leading "The answer is"."""
    text = text.strip()
    dollars = text.count("$") - text.count("\\$")
    if dollars and (dollars % 2 == 0 or text.endswith("$")) and not re.match(r"\$\d[\d,.]*\s*\Z", text):
        text = re.sub(r"(?<!\\)\$", " ", text)
    head = _HEAD.match(text)
    text = _TAIL.sub("", text[head.end() :] if head else text)
    label = _LABEL.match(text)
    return text[label.end() :].strip() if label else text.strip()


def _choice(text: str, limits: Limits) -> Node | None:
    match = _CHOICE.fullmatch(text)
    if match is None:
        return None
    letter = match["bracketed"] or match["lower"] or match["bare"]
    content = match["content"].strip().strip("~").strip()
    if not content:
        return Choice(letter.upper())
    try:
        return Choice(letter.upper(), parse(content, limits))
    except ParseError:
        return Choice(letter.upper(), Text(canonical_text(content)))


def _clock(text: str) -> Node | None:
    bare = " ".join(_TEXT_COMMAND.sub(" ", text).replace("{", " ").replace("}", " ").replace("\\", " ").split())
    match = _CLOCK.fullmatch(bare)
    if match is None or not (match[3] or match[4] or match[6] or (len(bare) == 5 and bare[0] in "012")):
        return None
    hours, minutes, seconds = int(match[1] or match[5]), int(match[2] or 0), int(match[3] or 0)
    half = (match[4] or match[6] or "").lower().replace(".", "").replace(" ", "")
    if hours > 24 or (half and hours > 12):
        return None
    hours = hours % 12 + (12 if half == "pm" else 0) if half else hours
    return Clock(3600 * hours + 60 * minutes + seconds, half)


def _words(text: str, limits: Limits) -> Node | None:
    """An answer that is words only: a number in words, or the canonical text."""
    bare = " ".join(_TEXT_COMMAND.sub(" ", text).replace("{", " ").replace("}", " ").replace("\\ ", " ").split())
    if not _WORDS_ONLY.fullmatch(bare) or "\\" in bare:
        return None
    canonical = canonical_text(bare)
    if bare.lower() in CONSTANTS:
        return Name(CONSTANTS[bare.lower()])
    if (value := NUMBER_WORDS.get(canonical)) is not None:
        return Number(str(value))
    first, _, rest = canonical.partition(" ")
    if rest and (value := NUMBER_WORDS.get(first)) is not None and (unit := canonical_unit(rest)) is not None:
        return Quantity(Number(str(value)), unit)
    words = [word for word in re.split(r"[\s'.,!-]+", bare) if word]
    if canonical in SPECIAL_TEXTS and len(canonical) > 1:
        return Text(canonical)
    if all(len(word) == 1 or word.lower() in CONNECTIVES for word in words):
        return None if bare == text else parse(bare, limits)
    if len(words) == 1 and "\\" not in text and (len(bare) == 2 or bare in GREEK or _ROMAN_NUMERAL.fullmatch(bare)):
        return None
    return Text(canonical)


def _mathematics(text: str, limits: Limits) -> Node:
    currency = _CURRENCY.match(text)
    if currency is not None:
        node = _mathematics(currency[1] + text[currency.end() :], limits)
        symbol = known_symbol(currency[2].strip("\\.US") or "$") or "$"
        return node if isinstance(node, Quantity) and node.unit != symbol else _quantity(node, symbol)
    tokens: list[Token] = []
    try:
        tokens = tokenize(text, limits.max_digits)
        tokens, unit = _split_unit(_without_label(tokens))
        node = Grammar(tokens, limits.max_depth).whole()
        return node if unit is None else _quantity(node, unit)
    except ParseError as error:
        prose = [token for token in tokens if token.kind in ("text", "word") and len(token.text) > 1]
        if prose or (not tokens and _reads_as_words(text)):
            return Text(canonical_text(text))
        raise ParseError(str(error).partition(": ")[2], error.at) from error


def _reads_as_words(text: str) -> bool:
    return sum(len(word) > 2 for word in re.findall(r"[A-Za-z]+", text)) >= 2


def _quantity(node: Node, unit: str) -> Node:
    return Quantity(node.value if isinstance(node, Quantity) else node, unit)


def _without_label(tokens: list[Token]) -> list[Token]:
    """The tokens after a label in words, as in "Area = 12"."""
    at = 0
    while tokens[at].kind in ("text", "word") and len(tokens[at].text) > 3 and not tokens[at].text.isupper():
        at += 1
    return tokens[at + 1 :] if at and tokens[at][:2] == ("op", "=") else tokens


def _split_unit(tokens: list[Token]) -> tuple[list[Token], str | None]:
    """The tokens before a unit phrase at the end, and the unit; all of them and None where there is none."""
    end = len(tokens) - 1
    first = end
    while first > 0 and _may_be_unit(tokens[first - 1], tokens[first - 2] if first > 1 else None):
        first -= 1
    while first < end and not _starts_unit(tokens, first):
        first += 1
    if first in (0, end):
        return tokens, None
    unit = canonical_unit("".join(_unit_text(token) for token in tokens[first:end]))
    if unit is None:
        return tokens, None
    return [*tokens[:first], tokens[end]], unit


def _starts_unit(tokens: list[Token], first: int) -> bool:
    token = tokens[first]
    if tokens[first - 1].kind == "op" and tokens[first - 1].text in ("_", "^"):
        return False
    if sum({"{": 1, "}": -1}.get(other.text, 0) for other in tokens[first:] if other.kind == "group"):
        return False
    if token.kind == "group":
        return token.text == "{" and tokens[first + 1].kind in ("text", "word") and _is_unit_word(tokens[first + 1])
    return _is_unit_word(token)


def _is_unit_word(token: Token) -> bool:
    if token.kind == "text":
        return True
    known = known_symbol(token.text) is not None or token.text in ORDINALS or token.text in ("sq", "cu", "of", "per")
    unknown = len(token.text) > 3 and not token.text.isupper()
    return token.kind in ("word", "func") and (known or unknown)


def _may_be_unit(token: Token, before: Token | None) -> bool:
    if token.kind in ("text", "word", "group") or token[:2] in (("op", "/"), ("op", "^"), ("op", "."), ("op", "-")):
        return token.text != "}" or (before is not None and before.kind in ("number", "text", "word"))
    if token.kind == "number":
        return token.text in ("1", "2", "3") and before is not None and before.text in ("^", "{", "-")
    if token.kind == "func":
        return token.text in ("deg", "rad", "min", "gal")
    return token.kind == "name" and token.text in SINGLE_LETTER_UNITS and before is not None and before.text == "/"


def _unit_text(token: Token) -> str:
    if token.kind == "group":
        return ""
    return token.text if token.kind in ("op", "number") else f" {token.text}"


def is_assignment(node: Node) -> bool:
    """Whether the node is `left = right` and no longer chain."""
    return isinstance(node, Relation) and node.ops == ("=",)
