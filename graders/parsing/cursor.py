"""Token cursor: the position of the parser, its nesting depth, and which `|` close an outer construct."""

import contextlib
from collections.abc import Iterator

from graders.parsing.tokens import ParseError, Token

_WHOLE_INDICES = frozenset("max min new old avg total final net out eff tot".split())


class Cursor:
    """A position in a list of tokens that ends in one of kind `stop`.

    Args:
        tokens: the tokens; a command argument that takes one letter or digit of a longer token shortens it in place.
        max_depth: maximum nesting of lists, brackets, signs and function arguments.
    """

    def __init__(self, tokens: list[Token], max_depth: int) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.max_depth = max_depth
        self.in_bars = False
        self.in_builder = False

    def peek(self, ahead: int = 0) -> Token:
        """Return the token `ahead` of the cursor; past the end, the last one."""
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def advance(self) -> None:
        self.at += 1

    def error(self, message: str) -> ParseError:
        """Return an error at the position of the next token."""
        return ParseError(message, self.peek().at)

    def expect(self, kind: str, text: str) -> None:
        """Consume the token `(kind, text)`.

        Raises:
            ParseError: the next token is another one.
        """
        if self.peek()[:2] != (kind, text):
            raise self.error(f"expected {text!r}, got {self.peek().text!r}")
        self.advance()

    def is_after_bracket(self) -> bool:
        """Return True if the token before the cursor closes a bracket."""
        before = self.tokens[self.at - 1] if self.at else self.tokens[-1]
        return before.kind == "close" or before[:2] == ("group", "}") or before[:2] == ("op", "|")

    @contextlib.contextmanager
    def nested(self) -> Iterator[None]:
        """Parse one level deeper.

        Raises:
            ParseError: the depth exceeds `max_depth`.
        """
        self.depth += 1
        if self.depth > self.max_depth:
            raise self.error(f"expected nesting of at most {self.max_depth}")
        yield
        self.depth -= 1

    @contextlib.contextmanager
    def inside_brackets(self, *, bars: bool = False, builder: bool = False) -> Iterator[None]:
        """Parse inside new brackets, where a `|` no longer closes the outer bars or set builder.

        Args:
            bars: the brackets are bars, so the next `|` closes them.
            builder: the brackets are set braces, so `|` and `:` separate the element from its conditions.
        """
        outer = self.in_bars, self.in_builder
        self.in_bars, self.in_builder = bars, builder
        yield
        self.in_bars, self.in_builder = outer

    def first_letter(self, token: Token) -> str:
        """Consume only the first letter of a run of letters, as LaTeX does."""
        self.tokens[self.at] = token._replace(text=token.text[1:], kind="word" if len(token.text) > 2 else "name")
        return token.text[0]

    def argument_text(self) -> str:
        """Consume one LaTeX argument and return its text without braces and spaces, for use in a name."""
        token = self.peek()
        if token[:2] != ("group", "{"):
            if token.kind == "stop":
                raise self.error("expected a subscript")
            if token.kind == "word" and token.text not in _WHOLE_INDICES:
                return self.first_letter(token)  # `m_pc` is m_p times c
            self.advance()
            return token.text
        self.advance()
        depth, parts = 1, []
        while depth:
            token = self.peek()
            if token.kind == "stop":
                raise self.error("expected a closing brace")
            depth += {"{": 1, "}": -1}.get(token.text, 0) if token.kind == "group" else 0
            parts.append(token.text if token.kind != "group" else "")
            self.advance()
        return "".join(parts).replace(" ", "")

    def subscript(self) -> str:
        """Consume a subscript and return it as part of a name, such as `_1`; the empty string if there is none."""
        if self.peek()[:2] != ("op", "_"):
            return ""
        self.advance()
        return "_" + self.argument_text()
