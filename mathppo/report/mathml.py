"""LaTeX as MathML, which browsers render without scripts, fonts or network access.

It converts the subset of LaTeX that problems and answers use; a formula outside it is shown as escaped source. All
text is escaped, so untrusted completions cannot inject markup (M-eval-6 has the reasons against a library).
"""

import re
from collections.abc import Iterator
from types import MappingProxyType

from markupsafe import Markup, escape

MAX_CHARS = 4000
MAX_DEPTH = 40

_TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|\d+(?:\.\d+)?|[A-Za-z]|\S", re.DOTALL)
_SEGMENT = re.compile(r"(?<!\\)\$\$(.+?)(?<!\\)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_LATEX = re.compile(r"\\.|[\^_]")

_LETTERS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi"
_GREEK: dict[str, str] = dict(zip(_LETTERS.split(), "αβγδϵζηθικλμνξπρστυϕχ", strict=True)) | {
    **{"psi": "ψ", "omega": "ω"},
    **{"Gamma": "Γ", "Delta": "Δ", "Theta": "Θ", "Lambda": "Λ", "Xi": "Ξ", "Pi": "Π", "Sigma": "Σ", "Phi": "Φ"},
    **{"Psi": "Ψ", "Omega": "Ω", "varepsilon": "ε", "varphi": "φ", "vartheta": "ϑ", "infty": "∞", "ell": "ℓ"},
    **{"emptyset": "∅", "varnothing": "∅", "partial": "∂", "hbar": "ℏ"},
}
_OPERATORS = {
    **{"cdot": "⋅", "times": "×", "div": "÷", "pm": "±", "mp": "∓", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥"},
    **{"ne": "≠", "neq": "≠", "approx": "≈", "equiv": "≡", "sim": "∼", "cong": "≅", "in": "∈", "notin": "∉"},
    **{"cup": "∪", "cap": "∩", "subset": "⊂", "subseteq": "⊆", "setminus": "∖", "to": "→", "rightarrow": "→"},
    **{"Rightarrow": "⇒", "implies": "⇒", "iff": "⇔", "mapsto": "↦", "sum": "∑", "prod": "∏", "int": "∫"},
    **{"ldots": "…", "dots": "…", "cdots": "⋯", "circ": "∘", "angle": "∠", "triangle": "△", "perp": "⊥"},
    **{"parallel": "∥", "mid": "∣", "star": "⋆", "ast": "∗", "prime": "′", "degree": "°", "lfloor": "⌊"},
    **{"rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "langle": "⟨", "rangle": "⟩", "forall": "∀", "exists": "∃"},
    **{"geqslant": "⩾", "leqslant": "⩽", "ll": "≪", "gg": "≫", "lvert": "|", "rvert": "|", "vert": "|", "odot": "⊙"},
    **{"{": "{", "}": "}", "%": "%", "$": "$", "&": "&", "#": "#", "_": "_", "|": "‖", "lbrace": "{", "rbrace": "}"},
}
_MARKS = {
    **{"overline": "¯", "bar": "¯", "vec": "→", "overrightarrow": "→", "hat": "^", "widehat": "^", "tilde": "~"},
    **{"dot": "˙", "ddot": "¨"},
}
_FENCES = {
    **{"pmatrix": "()", "bmatrix": "[]", "vmatrix": "||", "Bmatrix": "{}", "cases": "{ ", "matrix": "  "},
    **{"aligned": "  ", "align*": "  ", "align": "  ", "array": "  ", "gathered": "  "},
}
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp lim max min gcd lcm det mod deg".split()
)
_TEXT = frozenset("text mbox mathrm textbf textit operatorname textrm mathbf mathbb mathcal mathit".split())
_SPACES = MappingProxyType({",": ".17em", ";": ".28em", ":": ".22em", " ": ".25em", "quad": "1em", "qquad": "2em"})
_NOTHING = frozenset({"!", "left", "right", "big", "Big", "bigl", "bigr", "displaystyle", "limits", "middle"})


class _Unsupported(ValueError):
    """LaTeX outside the supported subset."""


def maths(text: str) -> Markup:
    """Render the parts of a text between dollar signs, `\\(…\\)` or `\\[…\\]` as mathematics; escape the rest."""
    pieces, position = [Markup()], 0
    for match in _SEGMENT.finditer(text):
        source = next(group for group in match.groups() if group is not None)
        drawn = _drawn(source)
        pieces.append(escape(text[position : match.start()]))
        pieces.append(escape(match.group()) if drawn is None else drawn)
        position = match.end()
    return Markup().join([*pieces, escape(text[position:])])


def formula(text: str) -> Markup:
    """Render an answer as mathematics if it is LaTeX; else escape it.

    >>> str(formula("1/2")), "mfrac" in formula(r"\\frac12")
    ('1/2', True)
    """
    if "$" in text or not _LATEX.search(text):
        return maths(text)
    drawn = _drawn(text)
    return escape(text) if drawn is None else drawn


def _drawn(source: str) -> Markup | None:
    if len(source) > MAX_CHARS:
        return None
    try:
        reader = _Reader(source)
        body = reader.row(0)
        reader.expect_end()
    except _Unsupported:
        return None
    return Markup("<math>{}</math>").format(body)


class _Reader:
    """Recursive-descent converter of one formula."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = [(match.group(), match.start(), match.end()) for match in _TOKEN.finditer(source)]
        self._at = 0

    def expect_end(self) -> None:
        if self._at < len(self._tokens):
            raise _Unsupported(self._tokens[self._at][0])

    def row(self, depth: int, end: str | None = None) -> Markup:
        """Convert everything up to the closing token, which is not consumed."""
        parts = list(self._parts(depth, end))
        return parts[0] if len(parts) == 1 else Markup("<mrow>{}</mrow>").format(Markup().join(parts))

    def _parts(self, depth: int, end: str | None) -> Iterator[Markup]:
        if depth > MAX_DEPTH:
            raise _Unsupported("depth")
        while (token := self._peek()) is not None and token != end:
            if token == "}":
                raise _Unsupported(token)
            yield self._scripted(depth)

    def _scripted(self, depth: int) -> Markup:
        """Convert one element with its sub- and superscripts."""
        base = self._one(depth)
        scripts: dict[str, Markup] = {}
        num_primes = 0
        while (token := self._peek()) in ("^", "_", "'"):
            self._at += 1
            if token == "'":
                num_primes += 1
            elif token in scripts:
                raise _Unsupported(token)
            else:
                scripts[str(token)] = self._one(depth + 1)
        over, under = scripts.get("^"), scripts.get("_")
        if num_primes:
            if over is not None:
                raise _Unsupported("'")
            over = Markup("<mo>{}</mo>").format("′" * num_primes)
        if over is not None and under is not None:
            return Markup("<msubsup>{}{}{}</msubsup>").format(base, under, over)
        if over is not None:
            return Markup("<msup>{}{}</msup>").format(base, over)
        return base if under is None else Markup("<msub>{}{}</msub>").format(base, under)

    def _one(self, depth: int) -> Markup:
        token = self._next()
        if token == "{":
            return self._group(depth)
        if token.startswith("\\"):
            return self._command(token[1:], depth)
        if token[0].isdigit():
            return Markup("<mn>{}</mn>").format(token)
        if token.isalpha():
            return Markup("<mi>{}</mi>").format(token)
        if token in "^_'}&":
            raise _Unsupported(token)
        return Markup("<mo>{}</mo>").format({"-": "−", "*": "∗"}.get(token, token))

    def _command(self, name: str, depth: int) -> Markup:
        if name in ("frac", "dfrac", "tfrac", "cfrac"):
            return Markup("<mfrac>{}{}</mfrac>").format(self._argument(depth), self._argument(depth))
        if name == "sqrt":
            return self._root(depth)
        if name in _TEXT:
            return Markup("<mtext>{}</mtext>").format(self._raw_group())
        if name in ("boxed", "fbox"):
            return Markup('<mrow class="boxed">{}</mrow>').format(self._argument(depth))
        if name in _MARKS:
            return Markup("<mover>{}<mo>{}</mo></mover>").format(self._argument(depth), _MARKS[name])
        if name == "begin":
            return self._table(depth)
        if name == "binom":
            top, bottom = self._argument(depth), self._argument(depth)
            return Markup('<mrow><mo>(</mo><mfrac linethickness="0">{}{}</mfrac><mo>)</mo></mrow>').format(top, bottom)
        if name in _FUNCTIONS:
            return Markup("<mi>{}</mi>").format(name)
        if name in _GREEK:
            return Markup("<mi>{}</mi>").format(_GREEK[name])
        if name in _OPERATORS:
            return Markup("<mo>{}</mo>").format(_OPERATORS[name])
        if name in _SPACES:
            return Markup('<mspace width="{}"></mspace>').format(_SPACES[name])
        if name in _NOTHING:
            if name in ("left", "right", "middle") and self._peek() == ".":
                self._at += 1
            return Markup("<mrow></mrow>")
        raise _Unsupported(name)

    def _table(self, depth: int) -> Markup:
        """`\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}`; the column alignment of an array is ignored."""
        kind = self._raw_group()
        if kind not in _FENCES:
            raise _Unsupported(kind)
        if kind == "array":
            self._raw_group()
        rows, cells, parts = [], list[Markup](), list[Markup]()
        while True:
            token = self._peek()
            if token in ("&", "\\\\", "\\end"):
                self._at += 1
                cells.append(Markup("<mtd>{}</mtd>").format(Markup().join(parts)))
                parts = []
                if token != "&":
                    rows.append(Markup("<mtr>{}</mtr>").format(Markup().join(cells)))
                    cells = []
                if token == "\\end":
                    break
            elif depth > MAX_DEPTH:
                raise _Unsupported("depth")
            else:
                parts.append(self._scripted(depth + 1))
        if self._raw_group() != kind:
            raise _Unsupported("end")
        left, right = _FENCES[kind]
        table = Markup("<mtable>{}</mtable>").format(Markup().join(rows))
        return Markup("<mrow><mo>{}</mo>{}<mo>{}</mo></mrow>").format(left.strip(), table, right.strip())

    def _root(self, depth: int) -> Markup:
        if self._peek() != "[":
            return Markup("<msqrt>{}</msqrt>").format(self._argument(depth))
        self._at += 1
        degree = self.row(depth + 1, "]")
        self._next()
        return Markup("<mroot>{}{}</mroot>").format(self._argument(depth), degree)

    def _argument(self, depth: int) -> Markup:
        """Convert a group or the next token; of a number without braces take only the first digit, as TeX does."""
        token = self._peek()
        if token is not None and token[0].isdigit() and len(token) > 1:
            text, start, end = self._tokens[self._at]
            self._tokens[self._at] = (text[1:], start + 1, end)
            return Markup("<mn>{}</mn>").format(text[0])
        return self._one(depth + 1)

    def _group(self, depth: int) -> Markup:
        body = self.row(depth + 1, "}")
        self._next()
        return body

    def _raw_group(self) -> str:
        """Return the source between braces, with its spaces."""
        if self._next() != "{":
            raise _Unsupported("text")
        start, level = self._tokens[self._at - 1][2], 1
        while level:
            level += {"{": 1, "}": -1}.get(self._next(), 0)
        return self._source[start : self._tokens[self._at - 1][1]]

    def _peek(self) -> str | None:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else None

    def _next(self) -> str:
        token = self._peek()
        if token is None:
            raise _Unsupported("end")
        self._at += 1
        return token
