r"""Operand parser: numbers, names, functions, brackets, LaTeX commands and environments, and their powers."""

import abc
import re

from graders.parsing.cursor import Cursor
from graders.parsing.text import NEGATION
from graders.parsing.tokens import ParseError
from graders.parsing.tree import (
    Apply,
    Builder,
    Cases,
    Interval,
    List,
    Matrix,
    Name,
    Node,
    Number,
    Quantity,
    Relation,
    Set,
    Text,
    Tuple,
)
from graders.parsing.words import ACCENTS

_COUNTED = {"C": "binomial", "P": "permutations"}
_CALLED = frozenset({"f", "g", "h"})
_INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot", "sec": "arcsec", "csc": "arccsc"}
_INVERSES |= {"sinh": "arsinh", "cosh": "arcosh", "tanh": "artanh"}
_MARKS = {"∘": "degree", "°": "degree", "'": "prime", "*": "star", "''": "primeprime"}
_MANY = 100
_ARITIES = {"log": (1, 2), "binomial": (2, 2), "mod": (2, 2), "min": (1, _MANY), "max": (1, _MANY)}
_ARITIES |= {"gcd": (1, _MANY), "lcm": (1, _MANY)}
_ROMAN = re.compile(r"[IVX]{2,8}")
_ARGUMENT_STARTS = frozenset({"number", "name", "command"})
_ENGLISH = frozenset(
    "of the is may in to for if not are was by it at on no as so an but all any one two can its has".split()
)
_CLOSERS = {"(": ")]", "[": "])", "\\{": ("\\}",), "⌊": "⌋", "⌈": "⌉", "⟨": "⟩"}
_MATRIX_ENVIRONMENTS = frozenset("matrix pmatrix bmatrix Bmatrix vmatrix Vmatrix smallmatrix array".split())
_LINE_ENVIRONMENTS = frozenset("aligned align split gathered gather eqnarray alignat equation".split())
_FRACTIONS = frozenset("frac dfrac tfrac cfrac nicefrac sfrac flatfrac".split())
_BINOMIALS = frozenset("binom dbinom tbinom".split())
MAX_LETTERS_IN_PRODUCT = 3


class OperandParser(Cursor, abc.ABC):
    """Parses operands; the grammar derives from it and parses the lists and products that operands contain."""

    @abc.abstractmethod
    def listing(self) -> Node:
        """Parse the contents of brackets."""

    @abc.abstractmethod
    def product(self) -> Node:
        r"""Parse the body of a `\sum` or `\prod`."""

    # Powers and postfix signs

    def factor(self) -> Node:
        """Parse an operand with its postfix signs and powers."""
        base = self._postfix(self._operand())
        while self.peek()[:2] == ("op", "^"):
            self.advance()
            exponent = self.exponent()
            if exponent == Name("degree"):
                base = self._degrees(base)
            elif isinstance(exponent, Name) and exponent.text in ("prime", "primeprime", "star", "dagger"):
                base = Name(f"{base.text}{exponent.text}") if isinstance(base, Name) else Apply("prime", (base,))
            else:
                base = Apply("^", (base, exponent))
            base = self._postfix(base)
        return base

    def exponent(self) -> Node:
        token = self.peek()
        braced = token[:2] == ("group", "{") and self.peek(2)[:2] == ("group", "}")
        mark = self.peek(1) if braced else token
        if mark.kind == "op" and mark.text in _MARKS:
            for _ in range(3 if braced else 1):
                self.advance()
            return Name(_MARKS[mark.text])
        if token.kind == "op" and token.text in ("+", "-"):
            with self.nested():
                self.advance()
                return signed(token.text, self.exponent())
        with self.nested():
            if token[:2] == ("group", "{"):
                return self.group()
            base = self._postfix(self._operand())
            if self.peek()[:2] == ("op", "^"):
                self.advance()
                return Apply("^", (base, self.exponent()))
            return base

    def _postfix(self, node: Node) -> Node:
        while (token := self.peek()).kind == "op":
            if token.text == "!":
                self.advance()
                double = self.peek()[:2] == ("op", "!") and not self.peek().spaced
                if double:
                    self.advance()
                node = Apply("double_factorial" if double else "factorial", (node,))
            elif token.text == "%":
                self.advance()
                node = Quantity(node, "%")
            elif token.text in "°∘" and not isinstance(node, Quantity):
                self.advance()
                node = self._degrees(node)
            else:
                break
        return node

    def _degrees(self, node: Node) -> Node:
        """Parse the minutes and seconds of arc that may follow a number of degrees."""
        total = node
        for sign, scale in (("'", "60"), ("''", "3600")):
            token, after = self.peek(), self.peek(1)
            if token.kind != "number" or after[:2] != ("op", sign):
                break
            self.advance()
            self.advance()
            total = Apply("+", (total, Apply("/", (Number(token.text), Number(scale)))))
        return Quantity(total, "degree")

    def _operand(self) -> Node:
        """Parse an operand without postfix signs and powers.

        Raises:
            ParseError: the next token does not begin an operand.
        """
        token = self.peek()
        if token.kind == "number":
            self.advance()
            return self._with_base(Number(token.text)) if self.peek()[:2] == ("op", "_") else Number(token.text)
        if token.kind == "name":
            return self._name()
        if token.kind == "func":
            return self._function()
        if token.kind == "open":
            with self.nested():
                return self._with_base(self.bracket())
        if token[:2] == ("group", "{"):
            with self.nested():
                return self._with_base(self.group())
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
            if NEGATION.search(token.text):
                raise self.error(f"expected a value, got {token.text!r}")
            self.advance()
            return Text(token.text.lower())
        raise self.error(f"expected a value, got {token.text!r}" if token.text else "expected a value")

    # Arguments

    def argument(self) -> Node:
        r"""Parse one LaTeX argument: a group or a single symbol; `\frac12` takes one digit at a time."""
        token = self.peek()
        if token[:2] == ("group", "{"):
            return self.group()
        if token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.at] = token._replace(text=token.text[1:])
            return Number(token.text[0])
        if token.kind == "word":
            return Name(self.first_letter(token))
        if token.kind == "op" and token.text == "-":
            self.advance()
            return Apply("neg", (self.argument(),))
        return self._operand()

    def group(self) -> Node:
        r"""Parse a LaTeX group `{...}`, which may hold `\choose` or `\over`."""
        self.expect("group", "{")
        if self.peek()[:2] == ("group", "}"):
            raise self.error("expected something inside the braces")
        with self.inside_brackets():
            node = self.listing()
            if self.peek().kind == "op" and self.peek().text in ("choose", "over"):
                over = self.peek().text == "over"
                self.advance()
                below = self.listing()
                node = quotient(node, below) if over else Apply("binomial", (node, below))
        self.expect("group", "}")
        return node

    # Brackets

    def bracket(self) -> Node:
        """Parse brackets: a grouping, a tuple, an interval or a set."""
        opening = self.peek().text
        self.advance()
        rows = opening == "[" and self.peek().text == "["
        if opening == "\\{":
            return self._set()
        with self.inside_brackets():
            if self.peek().kind == "close":
                raise self.error("expected something inside the brackets")
            node = self.listing()
        closing = self.peek()
        if closing.kind != "close" or closing.text not in _CLOSERS[opening]:
            raise self.error(f"expected a bracket that closes {opening!r}, got {closing.text!r}")
        self.advance()
        if opening in "⌊⌈":
            return Apply("floor" if opening == "⌊" else "ceil", (node,))
        items = node.items if isinstance(node, List) else (node,)
        if opening == "⟨":
            return Tuple(items)
        square, round_ = opening == "[", closing.text == ")"
        if rows and (matrix := _matrix_of_rows(items)) is not None:
            return matrix
        if len(items) == 2 and (square or not round_):
            return Interval(items[0], items[1], square, not round_)
        if len(items) == 1 and (square == round_):
            raise self.error("expected two ends in a half-open interval")
        if len(items) > 2 and opening in "([" and square == round_:
            raise self.error("expected brackets of one kind around more than two items")
        return Tuple(items) if len(items) > 1 else node

    def _set(self) -> Node:
        """Parse a set after its opening brace: its items, or `element | conditions`."""
        if self.peek()[:2] == ("close", "\\}"):
            self.advance()
            return Set(())
        with self.inside_brackets(builder=True):
            node = self.listing()
        token = self.peek()
        if token.kind == "op" and token.text in ("|", "∣", ":"):
            self.advance()
            with self.inside_brackets():
                conditions = self.listing()
            self.expect("close", "\\}")
            return Builder(node, conditions.items if isinstance(conditions, List) else (conditions,))
        self.expect("close", "\\}")
        if isinstance(node, List):
            return Set(node.items)
        return Set(node.args if isinstance(node, Apply) and node.op in ("and", "or") else (node,))

    def _bars(self, bar: str) -> Node:
        self.expect("op", bar)
        with self.inside_brackets(bars=True):
            node = self.listing()
        self.expect("op", bar)
        return Apply("abs" if bar == "|" else "norm", (node,))

    def _with_base(self, node: Node) -> Node:
        """Parse the base of a numeral, as in `40_9` or `(1011)_2`."""
        if self.peek()[:2] != ("op", "_"):
            return node
        self.advance()
        base = self.argument()
        if isinstance(node, Number) and isinstance(base, Number):
            return Apply("base", (node, base))
        raise self.error("expected a numeral before a base")

    # Names and functions

    def _name(self) -> Node:
        name = self.peek().text
        self.advance()
        start = self.at
        name += self.subscript()
        while self.peek().kind == "op" and self.peek().text in ("'", "''"):
            name += "prime" * len(self.peek().text)
            self.advance()
        if name[:2] in ("C_", "P_", "A_") and self.peek()[:2] == ("op", "^"):
            self.at = start + 1
            return self._combination(name[0])
        if name in _COUNTED and self.peek()[:2] == ("open", "("):
            bracket = self.bracket()
            if isinstance(bracket, Tuple) and len(bracket.items) == 2:
                return Apply(_COUNTED[name], bracket.items)
            return Apply("*", (Name(name), bracket))
        at_zero = [self.peek(ahead).text for ahead in range(3)] == ["(", "0", ")"]  # `y(0)` is no product with zero
        if (name in _CALLED and self.peek().text == "(") or at_zero:
            return Apply("call", (Name(name), self.bracket()))
        return Name(name)

    def _combination(self, name: str) -> Node:
        """Parse `C_n^k` or `A_n^k` from the lower index on."""
        total = self.argument()
        self.expect("op", "^")
        return Apply("binomial" if name == "C" else "permutations", (total, self.exponent()))

    def _word(self) -> Node:
        """Parse a run of letters: a Roman numeral, or a product if the letters are few."""
        token = self.peek()
        self.advance()
        if _ROMAN.fullmatch(token.text):
            return Name(token.text)
        long = len(token.text) > MAX_LETTERS_IN_PRODUCT and not token.text.isupper()
        if long or token.text.lower() in _ENGLISH:
            raise ParseError(f"expected mathematics, got the word {token.text!r}", token.at)
        letters = [Name(letter) for letter in token.text]
        if self.peek()[:2] == ("op", "_"):
            letters[-1] = Name(letters[-1].text + self.subscript())
        if self.peek()[:2] == ("op", "^"):
            self.advance()
            return Apply("*", (*letters[:-1], Apply("^", (letters[-1], self.exponent()))))
        return Apply("*", tuple(letters)) if len(letters) > 1 else letters[0]

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
        arguments = self._function_arguments(name)
        if base is not None:
            arguments = (*arguments, base)
        least, most = _ARITIES.get(name, (1, 1))
        if not least <= len(arguments) <= most:
            raise self.error(f"expected {least} to {most} arguments of {name}, got {len(arguments)}")
        node = Apply(name, arguments)
        return node if power is None else Apply("^", (node, power))

    def _function_arguments(self, name: str) -> tuple[Node, ...]:
        token = self.peek()
        if token.text == "(" or token[:2] == ("group", "{") or (token.text == "\\{" and name in ("min", "max", "gcd")):
            if token.text == "(" and self.peek(1).text == ")":
                raise self.error(f"expected an argument of {name}")
            with self.nested():
                node = self.group() if token.kind == "group" else self.bracket()
            return node.items if isinstance(node, (Tuple, Set, List)) else (node,)
        with self.nested():
            factors: list[Node] = []
            if token[:2] == ("op", "-"):
                self.advance()
                return (Apply("neg", self._function_arguments(name)),)
            while self.peek().kind in _ARGUMENT_STARTS or self.peek()[:2] == ("group", "{"):
                factors.append(self.factor())
            if not factors and (self.peek().kind in ("func", "open") or self.peek()[:2] == ("op", "|")):
                factors.append(self.factor())
        if not factors:
            raise self.error(f"expected an argument of {name}")
        return (factors[0] if len(factors) == 1 else Apply("*", tuple(factors)),)

    # LaTeX commands and environments

    def _command(self) -> Node:
        token = self.peek()
        name = token.text
        self.advance()
        if name in _FRACTIONS:
            return quotient(self.argument(), self.argument())
        if name in _BINOMIALS:
            return Apply("binomial", (self.argument(), self.argument()))
        if name in ("sqrt", "cbrt"):
            return self._root(name)
        if name in ("sum", "prod"):
            return self._sum_or_product(name)
        if name in ACCENTS:
            letters = self.argument_text()
            arrow = "vec" if name == "overrightarrow" and len(letters) == 1 else name
            return Name(f"{arrow} {letters}" + self.subscript())
        if name in ("emptyset", "varnothing"):
            return Set(())
        if name in ("dots", "ldots", "cdots", "dotsc", "dotsb"):
            return Name("…")
        if name in ("angle", "triangle", "measuredangle"):
            return Name(f"{name} {self._points()}")
        if name == "pmod":
            return Apply("pmod", (self.argument(),))
        if name == "textdegree":
            raise ParseError("expected a value before the degree sign", token.at)
        raise ParseError(f"expected a known command, got \\{name}", token.at)

    def _points(self) -> str:
        """Parse the names of the points of an angle or triangle."""
        letters = ""
        while self.peek().kind in ("name", "word") and self.peek().text[0].isupper():
            letters += self.peek().text
            self.advance()
            letters += self.subscript()
        return letters

    def _root(self, name: str) -> Node:
        index: Node = Number("3" if name == "cbrt" else "2")
        if self.peek()[:2] == ("open", "["):
            self.advance()
            with self.inside_brackets():
                index = self.listing()
            self.expect("close", "]")
        token = self.peek()
        if token.kind != "number":
            return Apply("root", (self.argument(), index))
        self.advance()
        return Apply("root", (Number(token.text), index))

    def _sum_or_product(self, name: str) -> Node:
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
        match lower:
            case Relation(ops=("=",), terms=(Name() as index, first)) if upper is not None:
                return Apply(name, (self.product(), index, first, upper))
        raise self.error(f"expected both bounds of the {name}")

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
        r"""Parse the cells up to `\end`: `&` separates cells, `\\` separates rows."""
        rows: list[tuple[Node, ...]] = []
        row: list[Node] = []
        with self.inside_brackets():
            while (token := self.peek()).kind not in ("end", "stop"):
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
        """Parse one cell; in `cases` the second may be a condition such as "if x > 0" or "otherwise"."""
        token = self.peek()
        if token.kind in ("text", "word") and token.text.lower().strip(" ,:") in ("if", "when", "for", "where"):
            self.advance()
        node = self.listing()
        while self.peek()[:2] == ("op", ","):
            self.advance()
        return node


def signed(sign: str, node: Node) -> Node:
    """Return a term with the sign before it: `+`, `-`, `±`, `∓`, or the empty string."""
    if sign == "-":
        return Apply("neg", (node,))
    if sign in ("±", "∓"):
        return Apply("pm" if sign == "±" else "mp", (Number("0"), node))
    return node


def quotient(top: Node, bottom: Node) -> Node:
    """Return a fraction; a derivative such as `dy/dx` is one name, because its d does not cancel."""
    return derivative(top, bottom) or Apply("/", (top, bottom))


def derivative(top: Node, bottom: Node) -> Name | None:
    """Return the name of `dy/dx` or `∂f/∂x`, or None for another fraction."""
    match top, bottom:
        case (
            Apply(op="*", args=(Name(text="d" | "partial" as sign), Name(text=above))),
            Apply(op="*", args=(Name(text=other), Name(text=below))),
        ) if sign == other:
            return Name(f"{sign}{above}/{sign}{below}")
    return None


def _matrix_of_rows(items: tuple[Node, ...]) -> Matrix | None:
    """Return the matrix of `[[1, 2], [3, 4]]`, or None if the items are not rows of one length."""
    rows = [(item.low, item.high) if isinstance(item, Interval) else getattr(item, "items", ()) for item in items]
    return Matrix(tuple(rows)) if rows[0] and len({len(row) for row in rows}) == 1 else None
