r"""LaTeX commands that take arguments: fractions, roots, sums, accents, matrices and cases."""

from graders.parsing.arguments import argument, flat, quotient, subscript
from graders.parsing.cursor import Reader
from graders.parsing.tokens import ParseError
from graders.parsing.tree import Apply, Cases, List, Matrix, Name, Node, Number, Relation, Set
from graders.parsing.words import ACCENTS

_MATRIX_ENVIRONMENTS = frozenset("matrix pmatrix bmatrix Bmatrix vmatrix Vmatrix smallmatrix array".split())
_LINE_ENVIRONMENTS = frozenset("aligned align split gathered gather eqnarray alignat equation".split())
_FRACTIONS = frozenset("frac dfrac tfrac cfrac nicefrac sfrac flatfrac".split())
_BINOMIALS = frozenset("binom dbinom tbinom".split())


def command(reader: Reader) -> Node:
    cursor = reader.cursor
    token = cursor.peek()
    name = token.text
    cursor.advance()
    if name in _FRACTIONS:
        return quotient(argument(reader), argument(reader))
    if name in _BINOMIALS:
        return Apply("binomial", (argument(reader), argument(reader)))
    if name in ("sqrt", "cbrt"):
        return _root(reader, name)
    if name in ("sum", "prod"):
        return _big_operator(reader, name)
    if name in ACCENTS:
        return _accented(reader, name)
    if name in ("emptyset", "varnothing"):
        return Set(())
    if name in ("dots", "ldots", "cdots", "dotsc", "dotsb"):
        return Name("…")
    if name in ("angle", "triangle", "measuredangle"):
        return Name(f"{name} {_letters(reader)}")
    if name == "pmod":
        return Apply("pmod", (argument(reader),))
    if name in ("textdegree",):
        raise ParseError("expected a value before the degree sign", token.at)
    raise ParseError(f"expected a known command, got \\{name}", token.at)


def _letters(reader: Reader) -> str:
    cursor = reader.cursor
    letters = ""
    while cursor.peek().kind in ("name", "word") and cursor.peek().text[0].isupper():
        letters += cursor.peek().text
        cursor.advance()
        letters += subscript(reader)
    return letters


def _accented(reader: Reader, accent: str) -> Node:
    letters = flat(reader)
    arrow = "vec" if accent == "overrightarrow" and len(letters) == 1 else accent
    return Name(f"{arrow} {letters}" + subscript(reader))


def _root(reader: Reader, name: str) -> Node:
    cursor = reader.cursor
    index: Node = Number("3" if name == "cbrt" else "2")
    if cursor.peek()[:2] == ("open", "["):
        cursor.advance()
        with cursor.plain():
            index = reader.listing()
        cursor.expect("close", "]")
    token = cursor.peek()
    if token.kind == "number":
        cursor.advance()
        radicand: Node = Number(token.text)
    else:
        radicand = argument(reader)
    return Apply("root", (radicand, index))


def _big_operator(reader: Reader, name: str) -> Node:
    cursor = reader.cursor
    lower: Node | None = None
    upper: Node | None = None
    for _ in range(2):
        sign = cursor.peek()
        if sign[:2] == ("op", "_"):
            cursor.advance()
            lower = argument(reader)
        elif sign[:2] == ("op", "^"):
            cursor.advance()
            upper = reader.exponent()
    if not (isinstance(lower, Relation) and lower.ops == ("=",) and isinstance(lower.terms[0], Name)) or upper is None:
        raise cursor.error(f"expected both bounds of the {name}")
    return Apply(name, (reader.product(), lower.terms[0], lower.terms[1], upper))


def environment(reader: Reader) -> Node:
    cursor = reader.cursor
    name = cursor.peek().text
    cursor.advance()
    rows = _rows(reader)
    cursor.expect("end", name)
    if name in _MATRIX_ENVIRONMENTS:
        if len({len(row) for row in rows}) != 1:
            raise cursor.error("expected matrix rows of equal length")
        matrix = Matrix(tuple(rows))
        return Apply("det", (matrix,)) if name == "vmatrix" else matrix
    if name in ("cases", "dcases", "rcases"):
        if all(len(row) == 2 for row in rows):
            return Cases(tuple((row[0], row[1]) for row in rows))
        return Apply("and", tuple(item for row in rows for item in row))
    if name in _LINE_ENVIRONMENTS:
        return List(tuple(item for row in rows for item in row))
    raise cursor.error(f"expected a known environment, got {name!r}")


def _rows(reader: Reader) -> list[tuple[Node, ...]]:
    r"""The cells up to `\end`: `&` between cells, `\\` between rows."""
    cursor = reader.cursor
    rows: list[tuple[Node, ...]] = []
    row: list[Node] = []
    with cursor.plain():
        while True:
            token = cursor.peek()
            if token.kind in ("end", "stop"):
                break
            if token[:2] == ("command", "hline") or token[:2] == ("op", "&"):
                cursor.advance()
            elif token[:2] == ("op", "\\\\"):
                cursor.advance()
                if row:
                    rows.append(tuple(row))
                row = []
            else:
                row.append(_cell(reader))
    if row:
        rows.append(tuple(row))
    return rows


def _cell(reader: Reader) -> Node:
    """One cell; in `cases` the second may be a condition such as "if x > 0" or "otherwise"."""
    cursor = reader.cursor
    token = cursor.peek()
    if token.kind in ("text", "word") and token.text.lower().strip(" ,:") in ("if", "when", "for", "where"):
        cursor.advance()
    node = reader.listing()
    while cursor.peek()[:2] == ("op", ","):
        cursor.advance()
    return node
