r"""Tokens to tree: a precedence parser for the mathematics that answers are written in.

    listing    items joined by , ; and or
    relation   chains of = < ≤ ∈ ...
    setwise    ∪ ∩ ∖            ratio  a : b
    sum        + - ±            product  * / and juxtaposition
    factor     powers, postfix ! % °, then an atom

Each token is read once and nesting is bounded, so parsing is linear. Nothing is computed here.
"""

import re

from graders.parsing.arguments import derivative, group
from graders.parsing.atoms import atom, braces
from graders.parsing.cursor import Cursor
from graders.parsing.tokens import Token
from graders.parsing.tree import Apply, Interval, List, Matrix, Name, Node, Number, Quantity, Ratio, Relation, Tuple
from graders.parsing.units import canonical_unit

_RELATION_SIGNS = frozenset("= < > ≤ ≥ ≠ ≈ ∈ ≡ ≅ ∼ ⊂ ⊆ ∝ ∉ ⊥ ∥".split())
_SET_SIGNS = {"∪": "union", "∩": "intersection", "∖": "difference"}
_MARKS = {"∘": "degree", "°": "degree", "'": "prime", "*": "star", "''": "primeprime"}
_FACTOR_STARTS = frozenset({"number", "name", "func", "open", "command", "word", "begin"})
_CLOSERS = {"(": ")]", "[": "])", "\\{": ("\\}",), "⌊": "⌋", "⌈": "⌉", "⟨": "⟩"}
_DIGITS = re.compile(r"\d+")


class Grammar:
    """A parser over one list of tokens."""

    def __init__(self, tokens: list[Token], max_depth: int) -> None:
        self.cursor = Cursor(tokens, max_depth)

    def whole(self) -> Node:
        """The tree of all the tokens.

        Raises:
            ParseError: something is left over, or nothing is there.
        """
        node = self.listing()
        if self.cursor.peek().kind != "stop":
            raise self.cursor.error(f"expected the end of the answer, got {self.cursor.peek().text!r}")
        return node

    def listing(self) -> Node:
        """Relations joined by separators; a single one stands for itself."""
        with self.cursor.nested():
            items = [self.relation()]
            words: set[str] = set()
            while self._separator(words) or self._at_membership():
                items.append(self.relation())
        if len(items) == 1:
            return items[0]
        if "or" in words:
            return Apply("or", tuple(items))
        return Apply("and", tuple(items)) if "and" in words else List(tuple(items))

    def _at_membership(self) -> bool:
        """Whether a clause such as `(k ∈ Z)` stands at the cursor."""
        opening, name, sign = (self.cursor.peek(ahead) for ahead in range(3))
        return opening.kind == "open" and name.kind == "name" and sign[:2] == ("op", "∈")

    def _separator(self, words: set[str]) -> bool:
        token = self.cursor.peek()
        found = False
        while token.kind == "op" and token.text in (",", ";", "and", "or", "&&"):
            after = self.cursor.peek(1)
            if after.kind == "end" or (after.kind == "op" and after.text in ("&", "\\\\")):
                break  # a comma that closes a cell
            found = True
            if token.text in ("and", "or"):
                words.add(token.text)
            self.cursor.advance()
            token = self.cursor.peek()
        return found

    def relation(self) -> Node:
        terms, signs = [self.with_unit(self.setwise())], []
        while (token := self.cursor.peek()).kind == "op" and token.text in _RELATION_SIGNS:
            self.cursor.advance()
            signs.append(token.text)
            terms.append(self.with_unit(self.setwise()))
        return Relation(tuple(signs), tuple(terms)) if signs else terms[0]

    def with_unit(self, value: Node) -> Node:
        """The value with the unit in words behind it, if it is one item among several: `3 cm, 4 cm`."""
        token = self.cursor.peek()
        unit = canonical_unit(token.text) if token.kind == "text" else None
        if unit is None:
            return value
        self.cursor.advance()
        return Quantity(value, unit)

    def setwise(self) -> Node:
        left = self.ratio()
        while True:
            token = self.cursor.peek()
            if not (token.kind == "op" and token.text in _SET_SIGNS) and not self._is_plain_union(token):
                return left
            self.cursor.advance()
            left = Apply(_SET_SIGNS.get(token.text, "union"), (left, self.ratio()))

    def _is_plain_union(self, token: Token) -> bool:
        """Whether the letter U stands between two brackets, as in `(0, 1) U (2, 3)`."""
        between = self.cursor.after_close() and self.cursor.peek(1).kind == "open"
        small = token.text == "u" and token.spaced and self.cursor.peek(1).spaced  # `(1 - t) u(t)` is a product
        return between and token.kind == "name" and (token.text == "U" or small)

    def ratio(self) -> Node:
        items = [self.sum()]
        while self.cursor.peek()[:2] == ("op", ":") and not self.cursor.in_builder:
            self.cursor.advance()
            items.append(self.sum())
        return Ratio(tuple(items)) if len(items) > 1 else items[0]

    def sum(self) -> Node:
        terms: list[Node] = []
        token = self.cursor.peek()
        sign = ""
        if token.kind == "op" and token.text in "+-±∓":
            sign = token.text
            self.cursor.advance()
        first = self.product()
        terms.append(_signed(sign, first))
        while (token := self.cursor.peek()).kind == "op" and token.text in ("+", "-", "±", "∓"):
            self.cursor.advance()
            term = self.product()
            if token.text in "±∓":
                left = terms[0] if len(terms) == 1 else Apply("+", tuple(terms))
                terms = [Apply("pm" if token.text == "±" else "mp", (left, term))]
            else:
                terms.append(_signed(token.text, term))
        return terms[0] if len(terms) == 1 else Apply("+", tuple(terms))

    def product(self) -> Node:
        factors: list[Node] = [self.signed_factor()]
        while True:
            token = self.cursor.peek()
            if token.kind == "op" and token.text in ("*", "/", "mod"):
                self.cursor.advance()
                right = self.signed_factor()
                if token.text == "*":
                    factors.append(right)
                elif token.text == "/" and (named := derivative(factors[-1], right)) is not None:
                    factors[-1] = named
                else:
                    left = factors[0] if len(factors) == 1 else Apply("*", tuple(factors))
                    factors = [Apply(token.text, (left, right))]
            elif self.starts_factor(token):
                factors.append(self._juxtaposed(factors, token))
            else:
                return factors[0] if len(factors) == 1 else Apply("*", tuple(factors))

    def _juxtaposed(self, factors: list[Node], token: Token) -> Node:
        """The next factor of an implicit product; `3 1/2` and `3\\frac12` are mixed numbers."""
        previous = factors[-1]
        if isinstance(previous, Number):
            whole = _DIGITS.fullmatch(previous.text) is not None
            if token.kind == "number":
                return self._plain_mixed(factors, whole)
            if whole and token.text in ("frac", "dfrac", "tfrac", "cfrac"):
                fraction = self.signed_factor()
                bare = fraction.value if isinstance(fraction, Quantity) else fraction
                if not _is_proper(bare):
                    return fraction
                mixed = Apply("+", (factors.pop(), bare))
                return Quantity(mixed, fraction.unit) if isinstance(fraction, Quantity) else mixed
        elif token.kind == "number" and not isinstance(previous, (Apply, Name)) and not self.cursor.after_close():
            raise self.cursor.error("expected an operator between two numbers")
        return self.signed_factor()

    def _plain_mixed(self, factors: list[Node], whole: bool) -> Node:
        top, slash, bottom = self.cursor.peek(), self.cursor.peek(1), self.cursor.peek(2)
        written = whole and slash[:2] == ("op", "/") and bottom.kind == "number"
        fraction = Apply("/", (Number(top.text), Number(bottom.text)))
        if not (written and top.spaced and _is_proper(fraction)):
            raise self.cursor.error("expected an operator between two numbers")
        for _ in range(3):
            self.cursor.advance()
        return Apply("+", (factors.pop(), fraction))

    def starts_factor(self, token: Token) -> bool:
        if token.kind == "group":
            return token.text == "{"
        if token.kind == "op":
            return token.text in ("|", "‖") and not self.cursor.in_bars and not self.cursor.in_builder
        return token.kind in _FACTOR_STARTS and not self._is_plain_union(token) and not self._at_membership()

    def signed_factor(self) -> Node:
        token = self.cursor.peek()
        if token.kind == "op" and token.text in ("-", "+"):
            with self.cursor.nested():
                self.cursor.advance()
                return _signed(token.text, self.signed_factor())
        return self.factor()

    def atom(self) -> Node:
        """What stands between two operators."""
        return atom(self)

    def factor(self) -> Node:
        """An atom with its postfix signs and powers."""
        base = self.postfix(self.atom())
        while self.cursor.peek()[:2] == ("op", "^"):
            self.cursor.advance()
            exponent = self.exponent()
            if exponent == Name("degree"):
                base = self.degrees(base)
            elif isinstance(exponent, Name) and exponent.text in ("prime", "primeprime", "star", "dagger"):
                base = Name(f"{base.text}{exponent.text}") if isinstance(base, Name) else Apply("prime", (base,))
            else:
                base = Apply("^", (base, exponent))
            base = self.postfix(base)
        return base

    def exponent(self) -> Node:
        token = self.cursor.peek()
        braced = token[:2] == ("group", "{") and self.cursor.peek(2)[:2] == ("group", "}")
        mark = self.cursor.peek(1) if braced else token
        if mark.kind == "op" and mark.text in _MARKS:
            for _ in range(3 if braced else 1):
                self.cursor.advance()
            return Name(_MARKS[mark.text])
        if token.kind == "op" and token.text in ("+", "-"):
            with self.cursor.nested():
                self.cursor.advance()
                return _signed(token.text, self.exponent())
        with self.cursor.nested():
            if token[:2] == ("group", "{"):
                return group(self)
            base = self.postfix(self.atom())
            if self.cursor.peek()[:2] == ("op", "^"):
                self.cursor.advance()
                return Apply("^", (base, self.exponent()))
            return base

    def postfix(self, node: Node) -> Node:
        while (token := self.cursor.peek()).kind == "op":
            if token.text == "!":
                self.cursor.advance()
                double = self.cursor.peek()[:2] == ("op", "!") and not self.cursor.peek().spaced
                if double:
                    self.cursor.advance()
                node = Apply("double_factorial" if double else "factorial", (node,))
            elif token.text == "%":
                self.cursor.advance()
                node = Quantity(node, "%")
            elif token.text in "°∘" and not isinstance(node, Quantity):
                self.cursor.advance()
                node = self.degrees(node)
            else:
                break
        return node

    def degrees(self, node: Node) -> Node:
        """Degrees, with the minutes and seconds of arc that may follow."""
        total = node
        for sign, scale in (("'", "60"), ("''", "3600")):
            token, after = self.cursor.peek(), self.cursor.peek(1)
            if token.kind != "number" or after[:2] != ("op", sign):
                break
            self.cursor.advance()
            self.cursor.advance()
            total = Apply("+", (total, Apply("/", (Number(token.text), Number(scale)))))
        return Quantity(total, "degree")

    def bracket(self) -> Node:
        """What stands in brackets: a grouping, a tuple, an interval or a set."""
        opening = self.cursor.peek().text
        self.cursor.advance()
        rows = opening == "[" and self.cursor.peek().text == "["
        if opening == "\\{":
            return braces(self)
        with self.cursor.plain():
            if self.cursor.peek().kind == "close":
                raise self.cursor.error("expected something inside the brackets")
            node = self.listing()
        closing = self.cursor.peek()
        if closing.kind != "close" or closing.text not in _CLOSERS[opening]:
            raise self.cursor.error(f"expected a bracket that closes {opening!r}, got {closing.text!r}")
        self.cursor.advance()
        if opening in "⌊⌈":
            return Apply("floor" if opening == "⌊" else "ceil", (node,))
        items = node.items if isinstance(node, List) else (node,)
        if opening == "⟨":
            return Tuple(items)
        square, round_ = opening == "[", closing.text == ")"
        if rows and (matrix := _matrix(items)) is not None:
            return matrix
        if len(items) == 2 and (square or not round_):
            return Interval(items[0], items[1], square, not round_)
        if len(items) == 1 and (square == round_):
            raise self.cursor.error("expected two ends in a half-open interval")
        if len(items) > 2 and opening in "([" and square == round_:
            raise self.cursor.error("expected brackets of one kind around more than two items")
        return Tuple(items) if len(items) > 1 else node


def _matrix(items: tuple[Node, ...]) -> Matrix | None:
    """The matrix of the rows of `[[1, 2], [3, 4]]`; None where they are not rows of one length."""
    rows = [(item.low, item.high) if isinstance(item, Interval) else getattr(item, "items", ()) for item in items]
    return Matrix(tuple(rows)) if rows[0] and len({len(row) for row in rows}) == 1 else None


def _signed(sign: str, node: Node) -> Node:
    if sign == "-":
        return Apply("neg", (node,))
    if sign in ("±", "∓"):
        return Apply("pm" if sign == "±" else "mp", (Number("0"), node))
    return node


def _is_proper(node: Node) -> bool:
    """Whether the node is a fraction of plain integers below one."""
    if not (isinstance(node, Apply) and node.op == "/"):
        return False
    top, bottom = node.args
    return (
        isinstance(top, Number)
        and isinstance(bottom, Number)
        and _DIGITS.fullmatch(top.text) is not None
        and _DIGITS.fullmatch(bottom.text) is not None
        and (len(top.text), top.text) < (len(bottom.text), bottom.text)
    )
