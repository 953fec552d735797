r"""Recursive-descent parser from tokens to a tree, from the loosest operators to the tightest.

    listing         items separated by , ; and or
    relation        chains of = < ≤ ∈ ...
    set_expression  ∪ ∩ ∖
    ratio           a : b
    sum             + - ±
    product         * / and juxtaposition
    factor          powers and postfix ! % ° (`operands.OperandParser`)

Each token is read once and nesting is bounded, so parsing is linear. The parser computes nothing.
"""

import re

from graders.parsing.operands import OperandParser, derivative, signed
from graders.parsing.tokens import Token
from graders.parsing.tree import Apply, List, Name, Node, Number, Quantity, Ratio, Relation
from graders.parsing.units import canonical_unit

_RELATION_SIGNS = frozenset("= < > ≤ ≥ ≠ ≈ ∈ ≡ ≅ ∼ ⊂ ⊆ ∝ ∉ ⊥ ∥".split())
_SET_SIGNS = {"∪": "union", "∩": "intersection", "∖": "difference"}
_FACTOR_STARTS = frozenset({"number", "name", "func", "open", "command", "word", "begin"})
_DIGITS = re.compile(r"\d+")


class Grammar(OperandParser):
    """Parser of one list of tokens: `Grammar(tokens, max_depth).parse()`."""

    def parse(self) -> Node:
        """Parse all tokens.

        Raises:
            ParseError: the tokens are not one list of relations; the error has the position.
        """
        node = self.listing()
        if self.peek().kind != "stop":
            raise self.error(f"expected the end of the answer, got {self.peek().text!r}")
        return node

    def listing(self) -> Node:
        """Parse relations joined by separators; a single relation is returned as it is."""
        with self.nested():
            items = [self._relation()]
            words: set[str] = set()
            while self._separator(words) or self._at_membership():
                items.append(self._relation())
        if len(items) == 1:
            return items[0]
        if "or" in words:
            return Apply("or", tuple(items))
        return Apply("and", tuple(items)) if "and" in words else List(tuple(items))

    def _at_membership(self) -> bool:
        """Return True if the next tokens begin a clause such as `(k ∈ Z)`."""
        opening, name, sign = (self.peek(ahead) for ahead in range(3))
        return opening.kind == "open" and name.kind == "name" and sign[:2] == ("op", "∈")

    def _separator(self, words: set[str]) -> bool:
        """Consume the separators at the cursor, add "and" or "or" to `words`, and return True if there were any."""
        token = self.peek()
        found = False
        while token.kind == "op" and token.text in (",", ";", "and", "or", "&&"):
            after = self.peek(1)
            if after.kind == "end" or (after.kind == "op" and after.text in ("&", "\\\\")):
                break  # a comma that closes a cell
            found = True
            if token.text in ("and", "or"):
                words.add(token.text)
            self.advance()
            token = self.peek()
        return found

    def _relation(self) -> Node:
        terms, signs = [self._with_unit(self._set_expression())], []
        while (token := self.peek()).kind == "op" and token.text in _RELATION_SIGNS:
            self.advance()
            signs.append(token.text)
            terms.append(self._with_unit(self._set_expression()))
        return Relation(tuple(signs), tuple(terms)) if signs else terms[0]

    def _with_unit(self, value: Node) -> Node:
        """Parse the unit of one item of a list, as in `3 cm, 4 cm`."""
        token = self.peek()
        unit = canonical_unit(token.text) if token.kind == "text" else None
        if unit is None:
            return value
        self.advance()
        return Quantity(value, unit)

    def _set_expression(self) -> Node:
        left = self._ratio()
        while True:
            token = self.peek()
            if not (token.kind == "op" and token.text in _SET_SIGNS) and not self._is_plain_union(token):
                return left
            self.advance()
            left = Apply(_SET_SIGNS.get(token.text, "union"), (left, self._ratio()))

    def _is_plain_union(self, token: Token) -> bool:
        """Return True if the token is a letter U between two brackets, as in `(0, 1) U (2, 3)`."""
        between = self.is_after_bracket() and self.peek(1).kind == "open"
        small = token.text == "u" and token.spaced and self.peek(1).spaced  # `(1 - t) u(t)` is a product
        return between and token.kind == "name" and (token.text == "U" or small)

    def _ratio(self) -> Node:
        items = [self._sum()]
        while self.peek()[:2] == ("op", ":") and not self.in_builder:
            self.advance()
            items.append(self._sum())
        return Ratio(tuple(items)) if len(items) > 1 else items[0]

    def _sum(self) -> Node:
        token = self.peek()
        sign = ""
        if token.kind == "op" and token.text in "+-±∓":
            sign = token.text
            self.advance()
        terms: list[Node] = [signed(sign, self.product())]
        while (token := self.peek()).kind == "op" and token.text in ("+", "-", "±", "∓"):
            self.advance()
            term = self.product()
            if token.text in "±∓":
                left = terms[0] if len(terms) == 1 else Apply("+", tuple(terms))
                terms = [Apply("pm" if token.text == "±" else "mp", (left, term))]
            else:
                terms.append(signed(token.text, term))
        return terms[0] if len(terms) == 1 else Apply("+", tuple(terms))

    def product(self) -> Node:
        factors: list[Node] = [self._signed_factor()]
        while True:
            token = self.peek()
            if token.kind == "op" and token.text in ("*", "/", "mod"):
                self.advance()
                right = self._signed_factor()
                if token.text == "*":
                    factors.append(right)
                elif token.text == "/" and (named := derivative(factors[-1], right)) is not None:
                    factors[-1] = named
                else:
                    left = factors[0] if len(factors) == 1 else Apply("*", tuple(factors))
                    factors = [Apply(token.text, (left, right))]
            elif self._starts_factor(token):
                factors.append(self._juxtaposed(factors, token))
            else:
                return factors[0] if len(factors) == 1 else Apply("*", tuple(factors))

    def _juxtaposed(self, factors: list[Node], token: Token) -> Node:
        r"""Parse the next factor of an implicit product; `3 1/2` and `3\frac12` are mixed numbers."""
        previous = factors[-1]
        if isinstance(previous, Number):
            whole = _DIGITS.fullmatch(previous.text) is not None
            if token.kind == "number":
                return self._plain_mixed(factors, whole)
            if whole and token.text in ("frac", "dfrac", "tfrac", "cfrac"):
                fraction = self._signed_factor()
                bare = fraction.value if isinstance(fraction, Quantity) else fraction
                if not _is_proper(bare):
                    return fraction
                mixed = Apply("+", (factors.pop(), bare))
                return Quantity(mixed, fraction.unit) if isinstance(fraction, Quantity) else mixed
        elif token.kind == "number" and not isinstance(previous, (Apply, Name)) and not self.is_after_bracket():
            raise self.error("expected an operator between two numbers")
        return self._signed_factor()

    def _plain_mixed(self, factors: list[Node], whole: bool) -> Node:
        """Parse the fraction of a mixed number such as `3 1/2`; no other two numbers may be side by side."""
        top, slash, bottom = self.peek(), self.peek(1), self.peek(2)
        written = whole and slash[:2] == ("op", "/") and bottom.kind == "number"
        fraction = Apply("/", (Number(top.text), Number(bottom.text)))
        if not (written and top.spaced and _is_proper(fraction)):
            raise self.error("expected an operator between two numbers")
        for _ in range(3):
            self.advance()
        return Apply("+", (factors.pop(), fraction))

    def _starts_factor(self, token: Token) -> bool:
        if token.kind == "group":
            return token.text == "{"
        if token.kind == "op":
            return token.text in ("|", "‖") and not self.in_bars and not self.in_builder
        return token.kind in _FACTOR_STARTS and not self._is_plain_union(token) and not self._at_membership()

    def _signed_factor(self) -> Node:
        token = self.peek()
        if token.kind == "op" and token.text in ("-", "+"):
            with self.nested():
                self.advance()
                return signed(token.text, self._signed_factor())
        return self.factor()


def _is_proper(node: Node) -> bool:
    """Return True if the node is a fraction of integers below one."""
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
