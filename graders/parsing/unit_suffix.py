r"""Where the number ends and its unit begins: `20 cm^2`, `5 m/s`, `15\mbox{ cm}^2`, `1/3 of the total`."""

from graders.parsing.tokens import Token
from graders.parsing.units import MULTIPLIERS, ORDINALS, SINGLE_LETTER_UNITS, canonical_unit, known_symbol

DENIALS = frozenset("not no never isn't neither nor false wrong except".split())
_UNIT_SIGNS = frozenset("/^.")
_BINDING = frozenset({"sq", "cu", "of", "per"})
_DESCRIBING = frozenset("red new old big hot dry ice pet toy".split())
"""Words as short as a product of names that begin a phrase such as "red apples"."""


def without_label(tokens: list[Token]) -> list[Token]:
    """The tokens after a label in words, as in "Area = 12"."""
    at = 0
    if any(token.text.lower() in DENIALS for token in tokens[:6]):
        return tokens
    while tokens[at].kind in ("text", "word") and len(tokens[at].text) > 3 and not tokens[at].text.isupper():
        at += 1
    return tokens[at + 1 :] if at and tokens[at][:2] == ("op", "=") else tokens


def split_unit(tokens: list[Token]) -> tuple[list[Token], str | None]:
    """The tokens before a unit phrase at the end, and the unit; all of them and None where there is none."""
    end = len(tokens) - 1
    first = end
    while first > 1 and _may_be_unit(tokens[first - 1], tokens[first - 2]):
        first -= 1
    while first < end and not _starts_unit(tokens, first):
        first += 1
    if first == end:
        return tokens, None
    words = "".join(_unit_text(token) for token in tokens[first:end]).strip()
    multiplier, _, rest = words.partition(" ")
    value = tokens[:first]
    if multiplier.lower() in MULTIPLIERS:
        times, number = Token("op", "*", -1, False), Token("number", MULTIPLIERS[multiplier.lower()], -1, False)
        value, words = [*value, times, number], rest
        if not words:
            return [*value, tokens[end]], None
    unit = canonical_unit(words)
    return (tokens, None) if unit is None else ([*value, tokens[end]], unit)


def _may_be_unit(token: Token, before: Token) -> bool:
    """Whether the token can belong to a unit phrase, given the one before it."""
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
