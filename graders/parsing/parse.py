r"""Answer text to tree: LaTeX, plain and Python-style, typed, bounded, in linear time, never by evaluating it.

The whole text is read or none of it: a text that is not mathematics to its last character is words (`Text`), or is
refused with the position at which it stopped making sense. Option letters, clock times and units are told apart first.
"""

import re

import msgspec

from graders.parsing.forms import choice, circled, clock, compound, lettered_numeral, words
from graders.parsing.grammar import Grammar
from graders.parsing.text import canonical_text, cleaned, without_markup
from graders.parsing.tokens import ParseError, Token, tokenize
from graders.parsing.tree import Apply, Cases, List, Name, Node, Number, Quantity, Relation, Text, names
from graders.parsing.unit_suffix import split_unit, without_label
from graders.parsing.units import known_symbol

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
_BRACKET = re.compile(r"[({\[)}\]]")
_LABELLED = re.compile(r"(\\?[A-Za-z][A-Za-z_]{0,12}\([^()=]{1,40}\))\s*=\s*([^=]+)", re.DOTALL)
_GLOSS = re.compile(r"\b(?:where|for (?:all|any|every|each|some)|with|such that)\b(.+)", re.DOTALL)
_INTEGER_CLAUSE = re.compile(r"\s*\(?\s*([a-zA-Z]) (?:is |are )?(?:an |any |some )?(?:arbitrary )?integers?[\s).]*")
_CURRENCY = re.compile(r"(-?)\s*(\\\$|[$€£¥₹]|Rs\.?|USD|US\\?\$)\s*(?=[\d.(\\])")


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
    answer = cleaned(text)
    if not answer:
        raise ParseError("expected an answer, got nothing", 0)
    if len(answer) <= limits.max_digits and _PLAIN_NUMBER.fullmatch(answer):
        return Apply("neg", (Number(answer[1:]),)) if answer[0] == "-" else Number(answer)

    def read(part: str) -> Node | None:
        try:
            return parse(part, limits)
        except ParseError:
            return None

    form = choice(answer, read) or clock(answer) or compound(answer) or circled(answer) or lettered_numeral(answer)
    form = form or words(answer, read)
    return form or _mathematics(answer, limits)


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
        tokens, unit = split_unit(without_label(tokens))
        node = Grammar(tokens, limits.max_depth).parse()
        return node if unit is None else _quantity(node, unit)
    except ParseError:
        found = _glossed(text, limits) or _labelled(text, limits)
        if found is not None:
            return found
        if any(token.kind in ("text", "word") and len(token.text) > 1 for token in tokens):
            return Text(canonical_text(text))
        raise


def _labelled(text: str, limits: Limits) -> Node | None:
    """`P(A|B) = 1/2`, where the label itself is no expression known here."""
    match = _LABELLED.fullmatch(text)
    if match is None:
        return None
    value = _mathematics(match[2], limits)
    return None if isinstance(value, Text) else Relation(("=",), (Text(canonical_text(match[1])), value))


def _glossed(text: str, limits: Limits) -> Node | None:
    """`x = 3k, where k is an integer`: the clause says what the names in front of it are; numbers take none.

    A clause that is no membership of the integers is kept as the one case in which the value is given.
    """
    match = _GLOSS.search(text)
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
    parameter = _INTEGER_CLAUSE.fullmatch(without_markup(match[1]).replace("$", ""))
    if parameter is None:
        return Cases(((value, Text(canonical_text(match[1]))),))
    return List((value, Relation(("∈",), (Name(parameter[1]), Name("bb Z")))))


def _quantity(node: Node, unit: str) -> Node:
    return Quantity(node.value if isinstance(node, Quantity) else node, unit)
