r"""What stands between operators: names, functions, LaTeX commands with arguments, brackets, matrices, cases.

Touches: nothing.
"""

import contextlib
import re
from collections.abc import Iterator

from graders.parse_tokens import ParseError, Token
from graders.parse_words import ACCENTS
from graders.tree import Apply, Builder, Cases, List, Matrix, Name, Node, Number, Relation, Set, Text

_CALLED = frozenset({"f", "g", "h"})
_MATRIX_ENVIRONMENTS = frozenset("matrix pmatrix bmatrix Bmatrix vmatrix Vmatrix smallmatrix array".split())
_LINE_ENVIRONMENTS = frozenset("aligned align align* split gathered gather gather* eqnarray alignat".split())
_FRACTIONS = frozenset("frac dfrac tfrac cfrac nicefrac sfrac flatfrac".split())
_BINOMIALS = frozenset("binom dbinom tbinom".split())
_INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot", "sec": "arcsec", "csc": "arccsc"}
_INVERSES |= {"sinh": "arsinh", "cosh": "arcosh", "tanh": "artanh"}
_ROMAN = re.compile(r"[IVX]{2,8}")
_ARGUMENT_STARTS = frozenset({"number", "name", "command"})
MAX_LETTERS_IN_PRODUCT = 3
_ENGLISH = frozenset(
    "of the is in to for if not are was by it at on no as so an but all any one two can its has".split()
)


class AtomReader:
    """The token cursor and the readers of atoms; `Grammar` adds the operators."""

    def __init__(self, tokens: list[Token], max_depth: int) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.max_depth = max_depth
        self.in_bars = False
        self.in_builder = False

    def listing(self) -> Node:
        raise NotImplementedError

    def relation(self) -> Node:
        raise NotImplementedError

    def product(self) -> Node:
        raise NotImplementedError

    def factor(self) -> Node:
        raise NotImplementedError

    def exponent(self) -> Node:
        raise NotImplementedError

    def bracket(self) -> Node:
        raise NotImplementedError

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

    def atom(self) -> Node:
        token = self.peek()
        if token.kind == "number":
            self.advance()
            return self._based(Number(token.text)) if self.peek()[:2] == ("op", "_") else Number(token.text)
        if token.kind == "name":
            return self._name()
        if token.kind == "func":
            return self._function()
        if token.kind == "open":
            with self.nested():
                return self._based(self.bracket())
        if token[:2] == ("group", "{"):
            with self.nested():
                return self._based(self.group())
        if token.kind == "command":
            with self.nested():
                return self._command()
        if token.kind == "begin":
            with self.nested():
                return self._environment()
        if token.kind == "op" and token.text in ("|", "‖"):
            with self.nested():
                return self._bars(token.text)
        if token.kind == "word":
            return self._word()
        if token.kind == "text":
            self.advance()
            return Text(token.text.lower())
        raise self.error(f"expected a value, got {token.text!r}" if token.text else "expected a value")

    def group(self) -> Node:
        """A LaTeX group: `{...}`, with `\\choose` and `\\over` inside it."""
        self.expect("group", "{")
        if self.peek()[:2] == ("group", "}"):
            self.advance()
            return self.atom()  # `{}_n C_k` and other empty groups carry nothing
        with self.plain():
            node = self.listing()
            if self.peek().kind == "op" and self.peek().text in ("choose", "over"):
                op = "binomial" if self.peek().text == "choose" else "/"
                self.advance()
                node = Apply(op, (node, self.listing()))
        self.expect("group", "}")
        return node

    def braces(self) -> Node:
        """A set: its items, or `{element | conditions}`; the opening brace has been read."""
        if self.peek()[:2] == ("close", "\\}"):
            self.advance()
            return Set(())
        with self.plain(builder=True):
            node = self.listing()
        token = self.peek()
        if token.kind == "op" and token.text in ("|", "∣", ":"):
            self.advance()
            with self.plain():
                conditions = self.listing()
            self.expect("close", "\\}")
            items = conditions.items if isinstance(conditions, List) else (conditions,)
            return Builder(node, items)
        self.expect("close", "\\}")
        if isinstance(node, List):
            return Set(node.items)
        return Set(node.args if isinstance(node, Apply) and node.op in ("and", "or") else (node,))

    def _bars(self, bar: str) -> Node:
        self.expect("op", bar)
        with self.plain(bars=True):
            node = self.listing()
        self.expect("op", bar)
        return Apply("abs" if bar == "|" else "norm", (node,))

    def _based(self, node: Node) -> Node:
        r"""A number with a base, `40_9`, or `(1011)_2`."""
        if self.peek()[:2] != ("op", "_"):
            return node
        self.advance()
        base = self.argument()
        if isinstance(node, Number) and isinstance(base, Number):
            return Apply("base", (node, base))
        raise self.error("expected a numeral before a base")

    def _name(self) -> Node:
        name = self.peek().text
        self.advance()
        start = self.at
        name += self._subscript()
        while self.peek().kind == "op" and self.peek().text in ("'", "''"):
            name += "prime" * len(self.peek().text)
            self.advance()
        if name[:2] in ("C_", "P_", "A_") and self.peek()[:2] == ("op", "^"):
            self.at = start + 1
            return self._combination(name[0])
        if name in _CALLED and self.peek().text == "(":
            return Apply("call", (Name(name), self.bracket()))
        return Name(name)

    def _combination(self, name: str) -> Node:
        """`C_n^k` and `A_n^k`; the cursor is at the lower index."""
        total = self.argument()
        self.expect("op", "^")
        return Apply("binomial" if name == "C" else "permutations", (total, self.exponent()))

    def _subscript(self) -> str:
        if self.peek()[:2] != ("op", "_"):
            return ""
        self.advance()
        return "_" + self.flat()

    def flat(self) -> str:
        """The text of one argument without its structure, as a name needs it."""
        if self.peek()[:2] != ("group", "{"):
            token = self.peek()
            if token.kind == "stop":
                raise self.error("expected a subscript")
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

    def _word(self) -> Node:
        """Letters in a row: a Roman numeral, or a product when they are few."""
        token = self.peek()
        self.advance()
        if _ROMAN.fullmatch(token.text):
            return Name(token.text)
        long = len(token.text) > MAX_LETTERS_IN_PRODUCT and not token.text.isupper()
        if long or token.text in _ENGLISH:
            raise ParseError(f"expected mathematics, got the word {token.text!r}", token.at)
        letters = [Name(letter) for letter in token.text]
        if self.peek()[:2] == ("op", "_"):
            letters[-1] = Name(letters[-1].text + self._subscript())
        if self.peek()[:2] == ("op", "^"):
            self.advance()
            return Apply("*", (*letters[:-1], Apply("^", (letters[-1], self.exponent()))))
        return Apply("*", tuple(letters)) if len(letters) > 1 else letters[0]

    def argument(self) -> Node:
        """One LaTeX argument: a group, or a single symbol; `\\frac12` takes one digit at a time."""
        token = self.peek()
        if token[:2] == ("group", "{"):
            return self.group()
        if token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.at] = token._replace(text=token.text[1:])
            return Number(token.text[0])
        if token.kind == "word":
            self.tokens[self.at] = token._replace(text=token.text[1:], kind="word" if len(token.text) > 2 else "name")
            return Name(token.text[0])
        if token.kind == "op" and token.text == "-":
            self.advance()
            return Apply("neg", (self.argument(),))
        return self.atom()

    def _function(self) -> Node:
        name = self.peek().text
        self.advance()
        power: Node | None = None
        base: Node | None = None
        for _ in range(2):
            if self.peek()[:2] == ("op", "^") and power is None:
                self.advance()
                power = self.exponent()
            elif self.peek()[:2] == ("op", "_") and base is None:
                self.advance()
                base = self.argument()
        if power == Apply("neg", (Number("1"),)) and name in _INVERSES:
            name, power = _INVERSES[name], None
        arguments = self._arguments(name)
        if base is not None:
            arguments = (*arguments, base)
        node = Apply(name, arguments)
        return node if power is None else Apply("^", (node, power))

    def _arguments(self, name: str) -> tuple[Node, ...]:
        token = self.peek()
        if token.text == "(" or token[:2] == ("group", "{") or (token.text == "\\{" and name in ("min", "max", "gcd")):
            if token.text == "(" and self.peek(1).text == ")":
                raise self.error(f"expected an argument of {name}")
            node = self.factor_argument()
            items = getattr(node, "items", None)
            return items if items is not None and type(node).__name__ in ("Tuple", "Set", "List") else (node,)
        with self.nested():
            factors: list[Node] = []
            if token[:2] == ("op", "-"):
                self.advance()
                return (Apply("neg", self._arguments(name)),)
            while self.peek().kind in _ARGUMENT_STARTS or self.peek()[:2] == ("group", "{"):
                factors.append(self.factor())
            if not factors and (self.peek().kind in ("func", "open") or self.peek()[:2] == ("op", "|")):
                factors.append(self.factor())
        if not factors:
            raise self.error(f"expected an argument of {name}")
        return (factors[0] if len(factors) == 1 else Apply("*", tuple(factors)),)

    def factor_argument(self) -> Node:
        """A bracketed argument, without the power that may follow the whole call."""
        with self.nested():
            return self.group() if self.peek().kind == "group" else self.bracket()

    def _command(self) -> Node:
        token = self.peek()
        name = token.text
        self.advance()
        if name in _FRACTIONS:
            return Apply("/", (self.argument(), self.argument()))
        if name in _BINOMIALS:
            return Apply("binomial", (self.argument(), self.argument()))
        if name in ("sqrt", "cbrt"):
            return self._root(name)
        if name in ("sum", "prod"):
            return self._big_operator(name)
        if name in ACCENTS:
            return self._accented(name)
        if name in ("emptyset", "varnothing"):
            return Set(())
        if name in ("dots", "ldots", "cdots", "dotsc", "dotsb"):
            return Name("…")
        if name in ("angle", "triangle", "measuredangle"):
            return Name(f"{name} {self._letters()}")
        if name == "pmod":
            return Apply("pmod", (self.argument(),))
        if name in ("textdegree",):
            raise ParseError("expected a value before the degree sign", token.at)
        raise ParseError(f"expected a known command, got \\{name}", token.at)

    def _letters(self) -> str:
        letters = ""
        while self.peek().kind in ("name", "word") and self.peek().text[0].isupper():
            letters += self.peek().text
            self.advance()
            letters += self._subscript()
        return letters

    def _accented(self, accent: str) -> Node:
        return Name(f"{accent} {self.flat()}" + self._subscript())

    def _root(self, name: str) -> Node:
        index: Node = Number("3" if name == "cbrt" else "2")
        if self.peek()[:2] == ("open", "["):
            self.advance()
            with self.plain():
                index = self.listing()
            self.expect("close", "]")
        token = self.peek()
        if token.kind == "number":
            self.advance()
            radicand: Node = Number(token.text)
        else:
            radicand = self.argument()
        return Apply("root", (radicand, index))

    def _big_operator(self, name: str) -> Node:
        lower: Node | None = None
        upper: Node | None = None
        for _ in range(2):
            sign = self.peek()
            if sign[:2] == ("op", "_"):
                self.advance()
                lower = self.argument()
            elif sign[:2] == ("op", "^"):
                self.advance()
                upper = self.exponent()
        if (
            not (isinstance(lower, Relation) and lower.ops == ("=",) and isinstance(lower.terms[0], Name))
            or upper is None
        ):
            raise self.error(f"expected both bounds of the {name}")
        return Apply(name, (self.product(), lower.terms[0], lower.terms[1], upper))

    def _environment(self) -> Node:
        name = self.peek().text
        self.advance()
        rows = self._rows()
        self.expect("end", name)
        if name in _MATRIX_ENVIRONMENTS:
            if len({len(row) for row in rows}) != 1:
                raise self.error("expected matrix rows of equal length")
            matrix = Matrix(tuple(rows))
            return Apply("det", (matrix,)) if name == "vmatrix" else matrix
        if name in ("cases", "dcases", "rcases"):
            if all(len(row) == 2 for row in rows):
                return Cases(tuple((row[0], row[1]) for row in rows))
            return Apply("and", tuple(item for row in rows for item in row))
        if name in _LINE_ENVIRONMENTS:
            return List(tuple(item for row in rows for item in row))
        raise self.error(f"expected a known environment, got {name!r}")

    def _rows(self) -> list[tuple[Node, ...]]:
        r"""The cells up to `\end`: `&` between cells, `\\` between rows."""
        rows: list[tuple[Node, ...]] = []
        row: list[Node] = []
        with self.plain():
            while True:
                token = self.peek()
                if token.kind in ("end", "stop"):
                    break
                if token[:2] == ("command", "hline") or token[:2] == ("op", "&"):
                    self.advance()
                elif token[:2] == ("op", "\\\\"):
                    self.advance()
                    if row:
                        rows.append(tuple(row))
                    row = []
                else:
                    row.append(self._cell())
        if row:
            rows.append(tuple(row))
        return rows

    def _cell(self) -> Node:
        """One cell; in `cases` the second may be a condition such as "if x > 0" or "otherwise"."""
        token = self.peek()
        if token.kind in ("text", "word") and token.text.lower().strip(" ,:") in ("if", "when", "for", "where"):
            self.advance()
        node = self.listing()
        while self.peek()[:2] == ("op", ","):
            self.advance()
        return node
