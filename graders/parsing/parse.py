r"""Parser of answers: LaTeX, plain or Python-style text to a typed, bounded tree, in linear time, without `eval`.

The whole text is parsed, or `ParseError` is raised with a position. In this order:

    1. `text.clean` removes what surrounds an answer and rewrites rare spellings
    2. a plain numeral
    3. `forms`: option letters, times of day, compound units, circled numerals, numerals with letters, words
    4. mathematics: currency before the value, label before it, unit after it, and `grammar` for the rest
    5. mathematics with a clause after it, or a statement such as `P(A|B) = 1/2`
    6. text with words in it, as `Text`
"""

import re

import msgspec

from graders.parsing.forms import circled, clock, compound, lettered_numeral, option, words
from graders.parsing.grammar import Grammar
from graders.parsing.text import canonical_text, clean, strip_markup
from graders.parsing.tokens import ParseError, Token, tokenize
from graders.parsing.tree import Apply, Cases, List, Name, Node, Number, Quantity, Relation, Text, names
from graders.parsing.units import MULTIPLIERS, ORDINALS, SINGLE_LETTER_UNITS, canonical_unit, known_symbol

__all__ = ["Limits", "ParseError", "canonical_text", "parse"]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds on an answer.

    Args:
        max_chars: maximum length of the text.
        max_depth: maximum nesting of brackets.
        max_digits: maximum digits of one numeral.
    """

    max_chars: int = 20_000
    max_depth: int = 40
    max_digits: int = 2_000


DEFAULT_LIMITS = Limits()

_PLAIN_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_BRACKET = re.compile(r"[({\[)}\]]")
_LABELLED = re.compile(r"(\\?[A-Za-z][A-Za-z_]{0,12}\([^()=]{1,40}\))\s*=\s*([^=]+)", re.DOTALL)
_CLAUSE = re.compile(r"\b(?:where|for (?:all|any|every|each|some)|with|such that)\b(.+)", re.DOTALL)
_INTEGER_CLAUSE = re.compile(r"\s*\(?\s*([a-zA-Z]) (?:is |are )?(?:an |any |some )?(?:arbitrary )?integers?[\s).]*")
_CURRENCY = re.compile(r"(-?)\s*(\\\$|[$€£¥₹]|Rs\.?|USD|US\\?\$)\s*(?=[\d.(\\])")
_NEGATIONS = frozenset("not no never isn't neither nor false wrong except".split())
_UNIT_SIGNS = frozenset("/^.")
_BINDING = frozenset({"sq", "cu", "of", "per"})
_DESCRIBING = frozenset("red new old big hot dry ice pet toy".split())
"""Short words that begin a phrase such as "red apples" and are not products of names."""


def parse(text: str, limits: Limits = DEFAULT_LIMITS) -> Node:
    """Parse an answer.

    Args:
        text: the answer alone, with or without `$` around it.
        limits: bounds that are checked before anything is parsed.

    Raises:
        ParseError: the text exceeds a limit, is empty, or is incomplete or unknown mathematics; has the position.
    """
    if len(text) > limits.max_chars:
        raise ParseError(f"expected at most {limits.max_chars} characters, got {len(text)}", limits.max_chars)
    _check_nesting(text, limits.max_depth)
    answer = clean(text)
    if not answer:
        raise ParseError("expected an answer, got nothing", 0)
    if len(answer) <= limits.max_digits and _PLAIN_NUMBER.fullmatch(answer):
        return Apply("neg", (Number(answer[1:]),)) if answer[0] == "-" else Number(answer)

    def parse_part(part: str) -> Node | None:
        try:
            return parse(part, limits)
        except ParseError:
            return None

    return (
        option(answer, parse_part)
        or clock(answer)
        or compound(answer)
        or circled(answer)
        or lettered_numeral(answer)
        or words(answer, parse_part)
        or _mathematics(answer, limits)
    )


def _check_nesting(text: str, max_depth: int) -> None:
    depth = 0
    for match in _BRACKET.finditer(text):
        depth += 1 if match.group() in "({[" else -1
        if depth > max_depth:
            raise ParseError(f"expected nesting of at most {max_depth}", match.start())


def _mathematics(text: str, limits: Limits) -> Node:
    currency = _CURRENCY.match(text)
    if currency is not None:
        node = _mathematics(currency[1] + text[currency.end() :], limits)
        symbol = known_symbol(currency[2].strip("\\.US") or "$") or "$"
        return node if isinstance(node, Quantity) and node.unit != symbol else _quantity(node, symbol)
    tokens: list[Token] = []
    try:
        tokens = tokenize(text, limits.max_digits)
        tokens, unit = _split_unit(_strip_label(tokens))
        node = Grammar(tokens, limits.max_depth).parse()
        return node if unit is None else _quantity(node, unit)
    except ParseError:
        found = _with_clause(text, limits) or _labelled(text, limits)
        if found is not None:
            return found
        if any(token.kind in ("text", "word") and len(token.text) > 1 for token in tokens):
            return Text(canonical_text(text))
        raise


def _labelled(text: str, limits: Limits) -> Node | None:
    """Parse `P(A|B) = 1/2`, whose left side the grammar does not accept; None for text of another form."""
    match = _LABELLED.fullmatch(text)
    if match is None:
        return None
    value = _mathematics(match[2], limits)
    return None if isinstance(value, Text) else Relation(("=",), (Text(canonical_text(match[1])), value))


def _with_clause(text: str, limits: Limits) -> Node | None:
    """Parse `x = 3k, where k is an integer`; None without a clause, or if the value before it has no names.

    A clause that a name is an integer becomes a membership; any other becomes the condition of a single case.
    """
    match = _CLAUSE.search(text)
    if match is None:
        return None
    head = text[: match.start()].rstrip(" \t\n,(")
    if head.endswith("{") and (before := head[:-1].rstrip()).endswith("\\text"):
        head = before.removesuffix("\\text").rstrip(" \t\n,(")
    if not head:
        return None
    value = _mathematics(head, limits)
    if isinstance(value, Text) or not names(value):
        return None
    parameter = _INTEGER_CLAUSE.fullmatch(strip_markup(match[1]).replace("$", ""))
    if parameter is None:
        return Cases(((value, Text(canonical_text(match[1]))),))
    return List((value, Relation(("∈",), (Name(parameter[1]), Name("bb Z")))))


def _quantity(node: Node, unit: str) -> Node:
    return Quantity(node.value if isinstance(node, Quantity) else node, unit)


def _strip_label(tokens: list[Token]) -> list[Token]:
    """Return the tokens after a label in words, as in "Area = 12"."""
    at = 0
    if any(token.text.lower() in _NEGATIONS for token in tokens[:6]):
        return tokens
    while tokens[at].kind in ("text", "word") and len(tokens[at].text) > 3 and not tokens[at].text.isupper():
        at += 1
    return tokens[at + 1 :] if at and tokens[at][:2] == ("op", "=") else tokens


def _split_unit(tokens: list[Token]) -> tuple[list[Token], str | None]:
    r"""Split off the unit phrase at the end: `20 cm^2`, `5 m/s`, `15\mbox{ cm}^2`, `1/3 of the total`.

    Returns:
        The tokens before the unit and its canonical form, or all tokens and None if there is no unit.
    """
    end = len(tokens) - 1
    first = end
    while first > 1 and _may_be_unit(tokens[first - 1], tokens[first - 2]):
        first -= 1
    while first < end and not _starts_unit(tokens, first):
        first += 1
    if first == end:
        return tokens, None
    phrase = "".join(_unit_text(token) for token in tokens[first:end]).strip()
    multiplier, _, rest = phrase.partition(" ")
    value = tokens[:first]
    if multiplier.lower() in MULTIPLIERS:
        times, number = Token("op", "*", -1, False), Token("number", MULTIPLIERS[multiplier.lower()], -1, False)
        value, phrase = [*value, times, number], rest
        if not phrase:
            return [*value, tokens[end]], None
    unit = canonical_unit(phrase)
    return (tokens, None) if unit is None else ([*value, tokens[end]], unit)


def _may_be_unit(token: Token, before: Token) -> bool:
    """Return True if a unit phrase may contain the token, given the token before it."""
    if token.kind in ("text", "word"):
        return True
    if token.kind == "group":
        return token.text == "{" or before.kind in ("number", "text", "word")
    if token.kind == "number":
        return token.text in ("1", "2", "3") and before.text in ("^", "{", "-")
    if token.kind == "name":
        single = token.text in SINGLE_LETTER_UNITS
        return single and (before.text in ("/", "*") or before.kind in ("number", "group"))
    if token.text == "-":
        return before.text in ("^", "{")
    if token.text == "*":
        return before.kind == "text"
    return token.text in _UNIT_SIGNS if token.kind == "op" else known_symbol(token.text) is not None


def _starts_unit(tokens: list[Token], first: int) -> bool:
    """Return True if a unit phrase may begin at `first`."""
    token, before, after = tokens[first], tokens[first - 1], tokens[first + 1]
    if token.kind == "name":
        over = after[:2] == ("op", "/") and tokens[first + 2].text in SINGLE_LETTER_UNITS
        return over and token.text in SINGLE_LETTER_UNITS and before.kind in ("number", "group")
    if before.kind == "op" and before.text in ("_", "^"):
        return False
    if sum({"{": 1, "}": -1}.get(other.text, 0) for other in tokens[first:] if other.kind == "group"):
        return False
    if token.text in _DESCRIBING and after.kind in ("word", "text"):
        token = after
    return _is_unit_word(after if token[:2] == ("group", "{") else token)


def _is_unit_word(token: Token) -> bool:
    if token.kind == "text":
        return True
    known = known_symbol(token.text) is not None or token.text in ORDINALS or token.text in _BINDING
    unknown = len(token.text) > 3 and not token.text.isupper()
    return token.kind in ("word", "func") and (known or unknown)


def _unit_text(token: Token) -> str:
    if token.kind == "group":
        return ""
    return token.text if token.kind in ("op", "number") else f" {token.text}"
