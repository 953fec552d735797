"""A cursor over tokens, and what the readers of atoms need of the grammar around them."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from graders.parsing.tokens import ParseError, Token
from graders.parsing.tree import Node


class Cursor:
    """Where the parser stands: the tokens, the depth, and which outer signs mean nothing here."""

    def __init__(self, tokens: list[Token], max_depth: int) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.max_depth = max_depth
        self.in_bars = False
        self.in_builder = False

    def peek(self, ahead: int = 0) -> Token:
        """The token `ahead` of the cursor; past the end, the last one."""
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def advance(self) -> None:
        self.at += 1

    def error(self, message: str) -> ParseError:
        return ParseError(message, self.peek().at)

    def expect(self, kind: str, text: str) -> None:
        if self.peek()[:2] != (kind, text):
            raise self.error(f"expected {text!r}, got {self.peek().text!r}")
        self.advance()

    def after_close(self) -> bool:
        """Whether the token before the cursor closes a bracket."""
        before = self.tokens[self.at - 1] if self.at else self.tokens[-1]
        return before.kind == "close" or before[:2] == ("group", "}") or before[:2] == ("op", "|")

    @contextlib.contextmanager
    def nested(self) -> Iterator[None]:
        """One level deeper, refused beyond the limit."""
        self.depth += 1
        if self.depth > self.max_depth:
            raise self.error(f"expected nesting of at most {self.max_depth}")
        yield
        self.depth -= 1

    @contextlib.contextmanager
    def plain(self, *, bars: bool = False, builder: bool = False) -> Iterator[None]:
        """Inside new brackets, where an outer `|` means nothing."""
        outer = self.in_bars, self.in_builder
        self.in_bars, self.in_builder = bars, builder
        yield
        self.in_bars, self.in_builder = outer


class Reader(Protocol):
    """The grammar, as the readers of atoms and of LaTeX commands see it."""

    cursor: Cursor

    def listing(self) -> Node: ...

    def product(self) -> Node: ...

    def factor(self) -> Node: ...

    def exponent(self) -> Node: ...

    def bracket(self) -> Node: ...

    def atom(self) -> Node: ...
