r"""Names, functions and brackets: what stands between operators, but for LaTeX commands with arguments."""

import re

from graders.parsing.arguments import argument, group, subscript
from graders.parsing.commands import command, environment
from graders.parsing.cursor import Reader
from graders.parsing.text import DENIED
from graders.parsing.tokens import ParseError
from graders.parsing.tree import Apply, Builder, List, Name, Node, Number, Set, Text, Tuple

_COUNTED = {"C": "binomial", "P": "permutations"}
_CALLED = frozenset({"f", "g", "h"})
_INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot", "sec": "arcsec", "csc": "arccsc"}
_INVERSES |= {"sinh": "arsinh", "cosh": "arcosh", "tanh": "artanh"}
_MANY = 100
_ARITIES = {"log": (1, 2), "binomial": (2, 2), "mod": (2, 2), "min": (1, _MANY), "max": (1, _MANY)}
_ARITIES |= {"gcd": (1, _MANY), "lcm": (1, _MANY)}
_ROMAN = re.compile(r"[IVX]{2,8}")
_ARGUMENT_STARTS = frozenset({"number", "name", "command"})
_ENGLISH = frozenset(
    "of the is may in to for if not are was by it at on no as so an but all any one two can its has".split()
)
MAX_LETTERS_IN_PRODUCT = 3


def atom(reader: Reader) -> Node:
    """What stands between two operators."""
    cursor = reader.cursor
    token = cursor.peek()
    if token.kind == "number":
        cursor.advance()
        return based(reader, Number(token.text)) if cursor.peek()[:2] == ("op", "_") else Number(token.text)
    if token.kind == "name":
        return _name(reader)
    if token.kind == "func":
        return _function(reader)
    if token.kind == "open":
        with cursor.nested():
            return based(reader, reader.bracket())
    if token[:2] == ("group", "{"):
        with cursor.nested():
            return based(reader, group(reader))
    if token.kind == "command":
        with cursor.nested():
            return command(reader)
    if token.kind == "begin":
        with cursor.nested():
            return environment(reader)
    if token.kind == "op" and token.text in ("|", "‖"):
        with cursor.nested():
            return _bars(reader, token.text)
    if token.kind == "word":
        return _word(reader)
    if token.kind == "text":
        if DENIED.search(token.text):
            raise cursor.error(f"expected a value, got {token.text!r}")
        cursor.advance()
        return Text(token.text.lower())
    raise cursor.error(f"expected a value, got {token.text!r}" if token.text else "expected a value")


def braces(reader: Reader) -> Node:
    """A set: its items, or `{element | conditions}`; the opening brace has been read."""
    cursor = reader.cursor
    if cursor.peek()[:2] == ("close", "\\}"):
        cursor.advance()
        return Set(())
    with cursor.plain(builder=True):
        node = reader.listing()
    token = cursor.peek()
    if token.kind == "op" and token.text in ("|", "∣", ":"):
        cursor.advance()
        with cursor.plain():
            conditions = reader.listing()
        cursor.expect("close", "\\}")
        items = conditions.items if isinstance(conditions, List) else (conditions,)
        return Builder(node, items)
    cursor.expect("close", "\\}")
    if isinstance(node, List):
        return Set(node.items)
    return Set(node.args if isinstance(node, Apply) and node.op in ("and", "or") else (node,))


def _bars(reader: Reader, bar: str) -> Node:
    cursor = reader.cursor
    cursor.expect("op", bar)
    with cursor.plain(bars=True):
        node = reader.listing()
    cursor.expect("op", bar)
    return Apply("abs" if bar == "|" else "norm", (node,))


def based(reader: Reader, node: Node) -> Node:
    r"""A number with a base, `40_9`, or `(1011)_2`."""
    cursor = reader.cursor
    if cursor.peek()[:2] != ("op", "_"):
        return node
    cursor.advance()
    base = argument(reader)
    if isinstance(node, Number) and isinstance(base, Number):
        return Apply("base", (node, base))
    raise cursor.error("expected a numeral before a base")


def _name(reader: Reader) -> Node:
    cursor = reader.cursor
    name = cursor.peek().text
    cursor.advance()
    start = cursor.at
    name += subscript(reader)
    while cursor.peek().kind == "op" and cursor.peek().text in ("'", "''"):
        name += "prime" * len(cursor.peek().text)
        cursor.advance()
    if name[:2] in ("C_", "P_", "A_") and cursor.peek()[:2] == ("op", "^"):
        cursor.at = start + 1
        return _combination(reader, name[0])
    if name in _COUNTED and cursor.peek()[:2] == ("open", "("):
        bracket = reader.bracket()
        if isinstance(bracket, Tuple) and len(bracket.items) == 2:
            return Apply(_COUNTED[name], bracket.items)
        return Apply("*", (Name(name), bracket))
    at_zero = [cursor.peek(ahead).text for ahead in range(3)] == ["(", "0", ")"]  # nobody writes a product with zero
    if (name in _CALLED and cursor.peek().text == "(") or at_zero:
        return Apply("call", (Name(name), reader.bracket()))
    return Name(name)


def _combination(reader: Reader, name: str) -> Node:
    """`C_n^k` and `A_n^k`; the cursor is at the lower index."""
    total = argument(reader)
    reader.cursor.expect("op", "^")
    return Apply("binomial" if name == "C" else "permutations", (total, reader.exponent()))


def _word(reader: Reader) -> Node:
    """Letters in a row: a Roman numeral, or a product when they are few."""
    cursor = reader.cursor
    token = cursor.peek()
    cursor.advance()
    if _ROMAN.fullmatch(token.text):
        return Name(token.text)
    long = len(token.text) > MAX_LETTERS_IN_PRODUCT and not token.text.isupper()
    if long or token.text.lower() in _ENGLISH:
        raise ParseError(f"expected mathematics, got the word {token.text!r}", token.at)
    letters = [Name(letter) for letter in token.text]
    if cursor.peek()[:2] == ("op", "_"):
        letters[-1] = Name(letters[-1].text + subscript(reader))
    if cursor.peek()[:2] == ("op", "^"):
        cursor.advance()
        return Apply("*", (*letters[:-1], Apply("^", (letters[-1], reader.exponent()))))
    return Apply("*", tuple(letters)) if len(letters) > 1 else letters[0]


def _function(reader: Reader) -> Node:
    cursor = reader.cursor
    name = cursor.peek().text
    cursor.advance()
    power: Node | None = None
    base: Node | None = None
    for _ in range(2):
        if cursor.peek()[:2] == ("op", "^") and power is None:
            cursor.advance()
            power = reader.exponent()
        elif cursor.peek()[:2] == ("op", "_") and base is None:
            cursor.advance()
            base = argument(reader)
    if power == Apply("neg", (Number("1"),)) and name in _INVERSES:
        name, power = _INVERSES[name], None
    arguments = _arguments(reader, name)
    if base is not None:
        arguments = (*arguments, base)
    least, most = _ARITIES.get(name, (1, 1))
    if not least <= len(arguments) <= most:
        raise cursor.error(f"expected {least} to {most} arguments of {name}, got {len(arguments)}")
    node = Apply(name, arguments)
    return node if power is None else Apply("^", (node, power))


def _arguments(reader: Reader, name: str) -> tuple[Node, ...]:
    cursor = reader.cursor
    token = cursor.peek()
    if token.text == "(" or token[:2] == ("group", "{") or (token.text == "\\{" and name in ("min", "max", "gcd")):
        if token.text == "(" and cursor.peek(1).text == ")":
            raise cursor.error(f"expected an argument of {name}")
        with cursor.nested():
            node = group(reader) if token.kind == "group" else reader.bracket()
        return node.items if isinstance(node, (Tuple, Set, List)) else (node,)
    with cursor.nested():
        factors: list[Node] = []
        if token[:2] == ("op", "-"):
            cursor.advance()
            return (Apply("neg", _arguments(reader, name)),)
        while cursor.peek().kind in _ARGUMENT_STARTS or cursor.peek()[:2] == ("group", "{"):
            factors.append(reader.factor())
        if not factors and (cursor.peek().kind in ("func", "open") or cursor.peek()[:2] == ("op", "|")):
            factors.append(reader.factor())
    if not factors:
        raise cursor.error(f"expected an argument of {name}")
    return (factors[0] if len(factors) == 1 else Apply("*", tuple(factors)),)
