r"""Rare spellings rewritten to common ones before anything is read: `1_000`, `[2, 5[`, `10C3`, `0.333...`, `3 to 4`.

Each rewriting is one bounded pattern behind a cheap test, so that usual answers pay nothing.
"""

import re

_EMPHASIS = re.compile(r"(\*\*|__)([^*]+)\1")
_UNDERSCORES = re.compile(r"(?<![\w.])\d{1,3}(?:_\d{3})+(?![\w{])")
_APOSTROPHES = re.compile(r"(?<![\w.])\d{1,3}(?:'\d{3})+(?![\d'])")
_TIMES = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*(?:\^|\*\*))")
_ELLIPSIS = re.compile(r"(?<![\d.])(\d{0,20}\.\d{1,40})\s*(?:\.{3}|\\[lc]?dots(?![A-Za-z])|…)")
_ROW_GAP = re.compile(r"\\\\\s*\[\s*-?\d*\.?\d+\s*(?:pt|em|ex|mm|cm|in)\s*\]")
_ARRAY = re.compile(r"(?:(?:np|numpy|sympy|sp)\.)?(?:array|Matrix)\((\[.*\])\)", re.DOTALL)
_TO = re.compile(r"\d+(?:\.\d+)?(?:\s*(?:\\text\s*\{\s*to\s*\}|\\,to\\,|\bto\b)\s*\d+(?:\.\d+)?)+")
_TO_WORD = re.compile(r"\s*(?:\\text\s*\{\s*to\s*\}|\\,to\\,|\bto\b)\s*")
_DOLLAR_TEXT = re.compile(r"\\text\s*\{\s*\\?(\$[\d.,]+)\s*\}")
_DEGREE = re.compile(
    r"(?<=[\d})])\s*\^\s*(?:o(?![a-z])|\{\s*o\s*\}|\\(?:text|mathrm)\s*\{o\}|\{\s*\\(?:text|mathrm)\s*\{o\}\s*\})"
)
_PRIME = re.compile(r"(?<=\d)\s*\^\s*(?:\{\s*(\\prime\s*\\prime|\\prime)\s*\}|(\\prime)(?![A-Za-z]))")
_ARC = re.compile(r"(\d+) degrees?,? (?:and )?(\d+(?:\.\d+)?) minutes?")
_BEFORE = r"(?:\{\s*\})?\s*[_^]\s*(?:\{([^{}]{1,12})\}|(\w))\s*"
_CHOSEN = re.compile(
    rf"(?<![\w}})\]])(?:{_BEFORE}|(\d{{1,4}})\s?)([CP])(?:_\s*(?:\{{([^{{}}]{{1,12}})\}}|(\w))|(\d{{1,4}}))(?!\w)"
)
_BASE_WORD = re.compile(r"(?<=\d)_\s*\{?\s*\\(?:text|mathrm)\s*\{\s*([a-z]+)\s*\}\s*\}?")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}
_BASES |= {"ten": "10", "twelve": "12", "sixteen": "16"}
_QUAD = re.compile(r"(?<=[\w})])\s*\\q?quad\s*(?=[A-Za-z](?:_\{?\w\}?)?\s*=)")
_ORDINAL = re.compile(
    r"(?<=[\dnk})])\s*\^\s*\{?\s*(?:\\(?:text|mathrm|textrm)\s*\{\s*(st|nd|rd|th)\s*\}|(st|nd|rd|th)(?![a-z]))\s*\}?"
)
_OPEN_LEFT = re.compile(r"(?:\A|(?<=[\s∪])|(?<=\\cup)|(?<=\\in))\s*\]([^\[\]()]{1,60}[,;][^\[\]()]{1,60})([\[\]])")
_OPEN_RIGHT = re.compile(r"\[([^\[\]()]{1,60}[,;][^\[\]()]{1,60})\[")
_SIZED = re.compile(r"\\(?:left|right)\s*(?=[\[\]])")
_PER_CENT = re.compile(r"\bper cent\b", re.IGNORECASE)
_LETTER = re.compile(r"\s*\(?([A-J])\)?\s*")
_LETTER_MARKUP = re.compile(r"\\text\s*\{|\}")
_LETTER_BREAK = re.compile(r"[,;]|\band\b")
_TEMPERATURE = re.compile(
    r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)\s*(?:\\(?:text|mathrm|rm)\s*\{?\s*)?([CF])(?![A-Za-z])\s*\}?"
)
_SCALES = {"C": "\\text{ celsius}", "F": "\\text{ fahrenheit}"}
_MODULUS = re.compile(r"\(\s*\\?(?:text\s*\{\s*)?[pb]?mod\s*\}?\s*(\w{1,9})\s*\)|(?<!\{)\\mod\s*\{?(\w{1,9})\}?")
_EXCEPT = re.compile(
    r"(?:\\text\s*\{\s*)?(?:all|any) (?:real )?(?:numbers?|reals?|x|values(?: of x)?) except"
    r"(?: for)?\s*\}?\s*(?:x\s*=\s*)?([-\d\\][^{}]{0,40}(?:\{[^{}]{0,20}\}){0,2})",
    re.IGNORECASE,
)
_ALL = re.compile(r"(?:\\text\s*\{\s*)?(?:for )?all\s*\}?\s*(?=[a-z]\s*(?:[<>≤≥]|\\(?:le|ge|ne|in)))")
_SIGN_WORD = re.compile(
    r"\s*(?:(?:negative|minus)\s+|\\text\s*\{\s*(?:negative|minus)\s*\}\s*)(?=[\d.\\$]|infinity\b)", re.IGNORECASE
)
_INFIX = re.compile(r"\\(?:over|choose)(?![A-Za-z])")
_PLAIN_BUILDER = re.compile(r"\{\s*([a-z]\s*(?:\||:|\\mid).{1,200})\}")
MAX_CHARS = 4_000
MAX_LETTERS_CHARS = 120


def respelled(text: str) -> str:
    """The text in common spellings; unchanged where it is long."""
    if len(text) > MAX_CHARS:
        return text
    if "**" in text or text.startswith("__"):
        bold = _EMPHASIS.fullmatch(text)
        text = bold[2].strip() if bold else text
    if "_" in text:
        text = _UNDERSCORES.sub(lambda run: run[0].replace("_", ""), text)
        text = _BASE_WORD.sub(lambda base: f"_{{{_BASES[base[1]]}}}" if base[1] in _BASES else base[0], text)
    if "'" in text or "prime" in text:
        text = _PRIME.sub(lambda mark: "'" * (mark[1] or mark[2]).count("prime"), text)
        text = _APOSTROPHES.sub(lambda run: run[0].replace("'", ""), text)
    if "^" in text:
        text = _ORDINAL.sub(lambda mark: f"\\text{{{mark[1] or mark[2]}}}", _DEGREE.sub("^\\\\circ", text))
    if "10" in text:
        text = _TIMES.sub("*", text)
    if "..." in text or "dots" in text or "…" in text:
        text = _ELLIPSIS.sub(lambda decimal: _repeating(decimal[1]), text)
    if "C" in text or "P" in text:
        text = _CHOSEN.sub(_chosen, text)
    if "[" in text or "]" in text:
        text = _brackets(text)
    if "^" in text or "°" in text:
        text = _TEMPERATURE.sub(lambda scale: _SCALES[scale[1]], text)
    return _words(text)


def _words(text: str) -> str:
    if "to" in text and _TO.fullmatch(text):
        text = _TO_WORD.sub(":", text)
    if "quad" in text:
        text = _QUAD.sub(", ", text)
    if "cent" in text:
        text = _PER_CENT.sub("percent", text)
    if "¢" in text:
        text = text.replace("¢", "\\text{ cents}")
    if "inus" in text or "egative" in text:
        text = _SIGN_WORD.sub("-", text, count=1) if _SIGN_WORD.match(text) else text
    if (infix := _INFIX.search(text) if "\\over" in text or "\\choose" in text else None) is not None:
        text = _braced(text, infix.start())
    if "mod" in text:
        text = _MODULUS.sub(lambda found: f"\\pmod{{{found[1] or found[2]}}}", text)
    if "all" in text or "any" in text or "All" in text:
        text = _EXCEPT.sub(r"\\mathbb{R}\\setminus\\{\1\\}", text, count=1)
        everything = _ALL.match(text)
        text = text[everything.end() :] if everything else text
    if text[:1] == "{" and (builder := _PLAIN_BUILDER.fullmatch(text)) is not None:
        text = f"\\{{{builder[1]}\\}}"
    if len(text) <= MAX_LETTERS_CHARS:
        text = _letters(text) or text
    if "degree" in text:
        text = _ARC.sub(r"\1^\\circ \2'", text)
    if "$" in text and (amount := _DOLLAR_TEXT.fullmatch(text)) is not None:
        text = "\\" + amount[1]
    return text


def _braced(text: str, at: int) -> str:
    """The value whose `\\over` or `\\choose` stands at `at` in braces, where nothing encloses it yet."""
    if text.count("{", 0, at) != text.count("}", 0, at):
        return text
    first = text.rfind("=", 0, at) + 1
    return f"{text[:first]}{{{text[first:]}}}"


def _letters(text: str) -> str | None:
    """`(A) and (C)` as `A, C`; None where the text is no list of option letters."""
    parts = [part for part in _LETTER_BREAK.split(_LETTER_MARKUP.sub(" ", text)) if part.strip()]
    found = [_LETTER.fullmatch(part) for part in parts]
    if len(found) < 2 or not all(found) or any(part.count("(") != part.count(")") for part in parts):
        return None
    return ", ".join(match[1] for match in found if match)


def _brackets(text: str) -> str:
    text = _ROW_GAP.sub(r"\\\\ ", text)
    array = _ARRAY.fullmatch(text)
    if array is not None:
        return array[1]
    if "," in text or ";" in text:
        bare = _SIZED.sub("", text)
        turned = _OPEN_LEFT.sub(lambda ends: f"({ends[1]}{']' if ends[2] == ']' else ')'}", bare)
        turned = _OPEN_RIGHT.sub(r"[\1)", turned)
        return text if turned == bare else turned
    return text


def _chosen(match: re.Match[str]) -> str:
    total = match[1] or match[2] or match[3]
    chosen = match[5] or match[6] or match[7]
    if match[3] and not match[7]:
        return match[0]  # `2C_1` is twice a constant
    if not match[3] and match[7]:
        return match[0]
    return f"\\binom{{{total}}}{{{chosen}}}" if match[4] == "C" else f"P({total},{chosen})"


def _repeating(decimal: str) -> str:
    """A decimal that goes on: its last block repeated for ever where it stands there twice, else as it is."""
    whole, _, digits = decimal.partition(".")
    for length in range(1, len(digits) // 2 + 1):
        if digits[-length:] == digits[-2 * length : -length]:
            block, rest = digits[-length:], digits[:-length]
            while rest.endswith(block):
                rest = rest[: -len(block)]
            return f"{whole or '0'}.{rest}({block})"
    return decimal
