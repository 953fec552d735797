r"""Tokenizer of LaTeX, plain and Python-style mathematics: one pass, linear in the length of the text.

A token is `(kind, text, at, spaced)`. Kinds: `number name word func text op open close group command begin end stop`,
where `group` is a LaTeX brace, `open` and `close` are printed brackets, `begin` and `end` delimit an environment.
"""

import re
from typing import NamedTuple

from graders.errors import GraderError
from graders.parsing.units import is_unit
from graders.parsing.words import (
    BRACKETS,
    CONNECTIVES,
    CONSTANTS,
    FUNCTIONS,
    GREEK,
    LATEX_FUNCTIONS,
    OPERATORS,
    RELATIONS,
)


class ParseError(GraderError):
    """The text is not an answer in a known notation.

    Args:
        message: what was expected and what was found.
        at: position in the cleaned text; -1 inside a font command.
    """

    def __init__(self, message: str, at: int) -> None:
        super().__init__(f"answer text, character {at}: {message}")
        self.at = at


class Token(NamedTuple):
    """A token: `at` is its position in the cleaned text, -1 inside a font command; `spaced` if a space precedes it."""

    kind: str
    text: str
    at: int
    spaced: bool


_GAP = r"(?:,|\{,\}|,\\!\s?|\\,|\\[ ;:]|~|\s)"
_EXPONENT = r"(?:[eE][+-]?\d+(?![\d.]))?"
_REPEAT = r"(?:\\dot\s*\{?\d\}?\d*\\dot\s*\{?\d\}?|\\(?:overline|bar|dot)\s*\{?\d+\}?|\(\d+\)(?![\d(]))"
_NUMBER_DEEP = re.compile(rf"(?:\d+(?:(?:\{{,\}}|,\\!\s?)\d{{3}}(?!\d))*(?:\.\d*)?|\.\d+){_EXPONENT}")
_NUMBER_TOP = re.compile(rf"\d{{1,3}}(?:{_GAP}\d{{3}}(?!\d))+(?:\.\d+)?{_EXPONENT}")
_DECIMAL_COMMA = re.compile(r"(?:0\{,\}\d+|\d+\{,\}\d{1,2})(?![\d.]|\{,\})")
"""Numerals whose comma is in braces and is not a thousands separator."""
_CLOSING = re.compile(r"\s*(?:\\right\s*)?(?:[)\]]|\\\})")
_COMMA, _SPACE = re.compile(r"\{,\}|,\\!\s?"), re.compile(r"\\[,;: ]|\s|~")
"""Thousands separators; commas and spaces in one numeral are rejected, because the comma may be a decimal comma."""
_NUMBER_REPEATING = re.compile(rf"\d*\.\d*{_REPEAT}")
_SKIP = re.compile(
    r"(?:\s|\\[,;:!> ]|~|\$|\\[()\[\]]|\\(?:left|right|middle)\s*\.|\\(?:left|right|middle|[bB]igg?[lrm]?|q?quad|"
    r"displaystyle|textstyle|limits|nolimits|mathop|strut|thinspace|boxed|fbox|framebox|hfill|large|Large|rm|bf|it)"
    r"(?![A-Za-z])|\\(?:hspace|vspace|phantom|label|tag)\*?\s*\{[^{}]*\}|\*\*(?=\s*\Z)|&(?=\s*[=<>]))+"
)
_FONT_COMMAND = re.compile(
    r"\\(text(?:bf|rm|it|sf|tt|normal|up|sc)?|mbox|hbox|mathrm|mathsf|mathit|mathbf|mathtt|boldsymbol|bm|pmb|"
    r"operatorname\*?|mathbb|mathcal|mathscr|mathfrak|Bbb|bold|emph|underline|mathnormal)(?![A-Za-z])\s*(\{?)"
)
_ENVIRONMENT = re.compile(r"\\(begin|end)\s*\{\s*([A-Za-z]+)\*?\s*\}(?:\s*\{[lcr|@ ]*\}(?=.))?")
_COMMAND = re.compile(r"\\([A-Za-z]+)\*?|\\(.)", re.DOTALL)
_WORD = re.compile(r"(?:(?:np|numpy|math|sympy|sp|cmath)\.(?=[a-z]))?[A-Za-z]+\d*(?=\()|[A-Za-z]+")
_OPERATOR = re.compile(r"\*\*|<=|>=|!=|==|=<|=>|\+-|\+/-|->|''|&&|\|\||.", re.DOTALL)
_SYNONYMS = {
    "**": "^",
    "<=": "≤",
    ">=": "≥",
    "!=": "≠",
    "==": "=",
    "=<": "≤",
    "+-": "±",
    "+/-": "±",
    "||": "‖",
    "~": "∼",
}
_TEXT_COMMANDS = frozenset(
    {"text", "mbox", "hbox", "textbf", "textrm", "textit", "textsf", "textnormal", "emph", "textup"}
)
_JOINED = re.compile(r"([A-Za-z]+) (and|or)", re.IGNORECASE)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_TIGHT_LIST = re.compile(r"\d,(?:\d{1,2}|\d{4,})(?![\d.])")
MAX_TOKENS = 4_000
MAX_EXPONENT_DIGITS = 6


def tokenize(text: str, max_digits: int) -> list[Token]:
    """Return the tokens of a cleaned text and one of kind `stop`.

    Raises:
        ParseError: a numeral is too long, there are too many tokens, or a font command is not closed.
    """
    tokens: list[Token] = []
    at, end = 0, len(text)
    depth = 1 if _TIGHT_LIST.search(text) else 0  # the commas of `27,54,108` are not thousands separators
    while at < end:
        skip = _SKIP.match(text, at)
        spaced = skip is not None
        if skip is not None:
            at = skip.end()
            if at >= end:
                break
        at = _next_token(text, at, spaced, depth, max_digits, tokens)
        if len(tokens) > MAX_TOKENS:
            raise ParseError(f"expected at most {MAX_TOKENS} tokens", at)
        if tokens and tokens[-1].at >= 0:
            depth += {"open": 1, "close": -1}.get(tokens[-1].kind, 0)
    tokens.append(Token("stop", "", end, False))
    return tokens


def _next_token(text: str, at: int, spaced: bool, depth: int, max_digits: int, tokens: list[Token]) -> int:
    """Append the token that begins at `at` and return its end."""
    char = text[at]
    if char.isdigit() or (char == "." and text[at + 1 : at + 2].isdigit()) or text.startswith(".\\overline", at):
        return _number(text, at, spaced, depth, max_digits, tokens)
    if char == "\\":
        command = _FONT_COMMAND.match(text, at)
        if command is not None:
            return _font_command(text, command, spaced, max_digits, tokens)
        environment = _ENVIRONMENT.match(text, at)
        if environment is not None:
            tokens.append(Token(environment.group(1), environment.group(2), at, spaced))
            return environment.end()
        return _command(text, at, spaced, tokens)
    if char.isalpha():
        word = _WORD.match(text, at)
        if word is None:
            tokens.append(Token("text", char, at, spaced))
            return at + 1
        tokens.append(_word_token(word.group(), at, spaced))
        return word.end()
    if char in "{}":
        tokens.append(Token("group", char, at, spaced))
    elif char in "([":
        tokens.append(Token("open", char, at, spaced))
    elif char in ")]":
        tokens.append(Token("close", char, at, spaced))
    else:
        match = _OPERATOR.match(text, at)
        sign = match.group() if match else char
        tokens.append(Token("op", _SYNONYMS.get(sign, sign), at, spaced))
        return at + len(sign)
    return at + 1


def _number(text: str, at: int, spaced: bool, depth: int, max_digits: int, tokens: list[Token]) -> int:
    match = _NUMBER_REPEATING.match(text, at)
    if match is not None:
        written = _repeating_decimal(match.group())
        written = f"0{written}" if written.startswith(".") else written
    elif (match := _DECIMAL_COMMA.match(text, at)) is not None and not _is_bracketed(text, at, match.end()):
        written = match.group().replace("{,}", ".")
    else:
        match = (_NUMBER_TOP.match(text, at) if depth == 0 else None) or _NUMBER_DEEP.match(text, at)
        if match is None:
            raise ParseError(f"expected a numeral, got {text[at : at + 10]!r}", at)
        plain = _COMMA.sub(",", match.group())
        written = _SPACE.sub("", plain).lower()
        if "," in written and len(written) < len(plain):
            raise ParseError(f"expected digits grouped in one way, got {match.group()!r:.60}", at)
        if len(plain) < len(match.group()):
            written = written.replace(",", "")
    if len(written.partition("e")[2].lstrip("+-")) > MAX_EXPONENT_DIGITS:
        raise ParseError(f"expected an exponent of at most {MAX_EXPONENT_DIGITS} digits", at)
    if len(written) > max_digits:
        raise ParseError(f"expected a numeral of at most {max_digits} digits, got {len(written)}", at)
    tokens.append(Token("number", written, at, spaced))
    return match.end()


def _is_bracketed(text: str, at: int, end: int) -> bool:
    r"""Return True if brackets hold only `text[at:end]`: `(1{,}2)` is a pair, not a number."""
    return text[max(0, at - 2) : at].rstrip()[-1:] in ("(", "[", "{") and _CLOSING.match(text, end) is not None


def _word_token(word: str, at: int, spaced: bool) -> Token:
    bare = word.rpartition(".")[2]
    if bare in FUNCTIONS:
        return Token("func", FUNCTIONS[bare], at, spaced)
    if bare in CONSTANTS:
        return Token("name", CONSTANTS[bare], at, spaced)
    if bare.lower() in CONNECTIVES:
        return Token("op", bare.lower(), at, spaced)
    if bare in GREEK and len(bare) > 2:
        return Token("name", bare, at, spaced)
    return Token("name" if len(bare) == 1 else "word", bare, at, spaced)


def _command(text: str, at: int, spaced: bool, tokens: list[Token]) -> int:
    match = _COMMAND.match(text, at)
    if match is None:
        raise ParseError("expected a command after the backslash", at)
    name, sign = match.group(1), match.group(2)
    if name is None:
        bracket = sign in "{}"
        kind = ("open" if sign == "{" else "close") if bracket else "op"
        tokens.append(Token(kind, "\\" + sign if sign in "{}\\|" else sign, at, spaced))
        return match.end()
    if name in BRACKETS:
        tokens.append(Token("close" if name[0] == "r" else "open", BRACKETS[name], at, spaced))
    elif name in LATEX_FUNCTIONS:
        tokens.append(Token("func", FUNCTIONS[name], at, spaced))
    elif name in CONSTANTS:
        tokens.append(Token("name", CONSTANTS[name], at, spaced))
    elif name in RELATIONS or name in OPERATORS:
        tokens.append(Token("op", RELATIONS.get(name) or OPERATORS[name], at, spaced))
    elif name in GREEK:
        tokens.append(Token("name", name, at, spaced))
    else:
        tokens.append(Token("command", name, at, spaced))
    return match.end()


def _font_command(text: str, command: re.Match[str], spaced: bool, max_digits: int, tokens: list[Token]) -> int:
    r"""Append the tokens of `\text{...}` or another font command: one for words, else those of its contents."""
    at, name = command.start(), command.group(1)
    if not command.group(2):
        return command.end()
    close = matching_brace(text, command.end() - 1)
    content = text[command.end() : close]
    bare = content.strip().strip("~").strip()
    after_value = bool(tokens) and (tokens[-1].kind in ("number", "close") or tokens[-1].text in ("}", "pi"))
    if name in ("mathbb", "Bbb"):
        tokens.append(Token("name", f"bb {bare}", at, spaced))
    elif bare.lower().strip(" ,") in CONNECTIVES:
        tokens.append(Token("op", bare.lower().strip(" ,"), at, spaced))
    elif bare in ("i", "e"):
        tokens.append(Token("name", bare, at, spaced))
    elif bare.isalpha() and len(bare) == 1 and (name == "mathrm" or name in _TEXT_COMMANDS):
        tokens.append(Token("text" if after_value else "name", bare, at, spaced))
    elif after_value and is_unit(bare):
        tokens.append(Token("text", bare, at, spaced))
    elif bare.isalpha() and len(bare) > 1:
        token = _word_token(bare, at, spaced)
        tokens.append(Token("text", bare, at, spaced) if token.kind == "word" else token)
    elif name in _TEXT_COMMANDS and (joined := _JOINED.fullmatch(bare)) is not None:
        tokens.append(Token("text", joined[1], at, spaced))
        tokens.append(Token("op", joined[2].lower(), at, True))
    elif name in _TEXT_COMMANDS and re.search(r"[A-Za-z]{2}", bare) and not re.search(r"\\(?!\W)|\$", bare):
        tokens.append(Token("text", bare, at, spaced))
    else:
        inner = tokenize(content, max_digits)[:-1]
        tokens.extend(Token(token.kind, token.text, -1, token.spaced) for token in inner)
    return close + 1


def matching_brace(text: str, at: int) -> int:
    """Return the position of the `}` that closes the `{` at `at`.

    Raises:
        ParseError: the brace is not closed.
    """
    depth = 0
    for match in _BRACE.finditer(text, at):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.start()
    raise ParseError("expected a closing brace", at)


def _repeating_decimal(text: str) -> str:
    r"""Return `0.\overline{36}` or `0.\dot{3}\dot{6}` with its repeating block in parentheses: `0.(36)`."""
    block = re.search(r"\\dot\s*\{?(\d)\}?(\d*)\\dot\s*\{?(\d)\}?", text)
    if block is not None:
        return f"{text[: block.start()]}({block[1]}{block[2]}{block[3]})"
    return re.sub(r"\\[a-z]+\s*\{?(\d+)\}?", r"(\1)", text)
