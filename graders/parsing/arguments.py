r"""Arguments of commands and indices of names: a group, or one symbol."""

from graders.parsing.cursor import Cursor, Reader
from graders.parsing.tokens import Token
from graders.parsing.tree import Apply, Name, Node, Number

_WHOLE_INDICES = frozenset("max min new old avg total final net out eff tot".split())


def group(reader: Reader) -> Node:
    """A LaTeX group: `{...}`, with `\\choose` and `\\over` inside it."""
    cursor = reader.cursor
    cursor.expect("group", "{")
    if cursor.peek()[:2] == ("group", "}"):
        raise cursor.error("expected something inside the braces")
    with cursor.plain():
        node = reader.listing()
        if cursor.peek().kind == "op" and cursor.peek().text in ("choose", "over"):
            over = cursor.peek().text == "over"
            cursor.advance()
            below = reader.listing()
            node = quotient(node, below) if over else Apply("binomial", (node, below))
    cursor.expect("group", "}")
    return node


def quotient(top: Node, bottom: Node) -> Node:
    """A fraction; a derivative such as `dy/dx` is one name, for its d does not cancel."""
    return derivative(top, bottom) or Apply("/", (top, bottom))


def derivative(top: Node, bottom: Node) -> Name | None:
    """The name of `dy/dx` or `∂f/∂x`; None for another fraction."""
    match top, bottom:
        case (
            Apply(op="*", args=(Name(text="d" | "partial" as sign), Name(text=above))),
            Apply(op="*", args=(Name(text=other), Name(text=below))),
        ) if sign == other:
            return Name(f"{sign}{above}/{sign}{below}")
    return None


def argument(reader: Reader) -> Node:
    """One LaTeX argument: a group, or a single symbol; `\\frac12` takes one digit at a time."""
    cursor = reader.cursor
    token = cursor.peek()
    if token[:2] == ("group", "{"):
        return group(reader)
    if token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
        cursor.tokens[cursor.at] = token._replace(text=token.text[1:])
        return Number(token.text[0])
    if token.kind == "word":
        _split_letter(cursor, token)
        return Name(token.text[0])
    if token.kind == "op" and token.text == "-":
        cursor.advance()
        return Apply("neg", (argument(reader),))
    return reader.atom()


def _split_letter(cursor: Cursor, token: Token) -> None:
    """Take the first letter off a run of letters, as LaTeX does."""
    cursor.tokens[cursor.at] = token._replace(text=token.text[1:], kind="word" if len(token.text) > 2 else "name")


def flat(reader: Reader) -> str:
    """The text of one argument without its structure, as a name needs it."""
    cursor = reader.cursor
    if cursor.peek()[:2] != ("group", "{"):
        token = cursor.peek()
        if token.kind == "stop":
            raise cursor.error("expected a subscript")
        if token.kind == "word" and token.text not in _WHOLE_INDICES:
            _split_letter(cursor, token)  # `m_pc` is m_p times c
            return token.text[0]
        cursor.advance()
        return token.text
    cursor.advance()
    depth, parts = 1, []
    while depth:
        token = cursor.peek()
        if token.kind == "stop":
            raise cursor.error("expected a closing brace")
        depth += {"{": 1, "}": -1}.get(token.text, 0) if token.kind == "group" else 0
        parts.append(token.text if token.kind != "group" else "")
        cursor.advance()
    return "".join(parts).replace(" ", "")


def subscript(reader: Reader) -> str:
    cursor = reader.cursor
    if cursor.peek()[:2] != ("op", "_"):
        return ""
    cursor.advance()
    return "_" + flat(reader)
