r"""Answer text before tokenizing, and the canonical text of answers in words.

`clean` prepares an answer for the tokenizer in three steps:

    replace_unicode   Unicode signs as ASCII or LaTeX
    _trim             delimiters, colours, closing punctuation and labels such as "The answer is" removed
    respell           rare spellings as common ones: `1_000`, `[2, 5[`, `10C3`, `0.333...`, `3 to 4`

Each respelling is one bounded pattern after a substring test, so common answers cost almost nothing.
"""

import re

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ", "0123456789+-()n", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_GREEK = dict(
    zip(
        "αβγδεζηθικλμνξορστυφχψωΔΩΣΦΘϕℓ",
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron rho sigma tau upsilon phi "
        "chi psi omega Delta Omega Sigma Phi Theta phi ell".split(),
        strict=True,
    )
)
_COMMANDS = dict(
    zip(
        "√∛π∞∅⌊⌋⌈⌉⟨⟩…⋯∣≅∑∏∠△",
        "sqrt cbrt pi infty emptyset lfloor rfloor lceil rceil langle rangle dots dots mid cong sum prod angle "
        "triangle".split(),
        strict=True,
    )
)
_SIGNS = dict(zip("−–—‐‑×·⋅∗∙•÷∕⁄≦≧⩽⩾", "-----******///≤≥≤≥", strict=True))
_FULL_WIDTH = dict(zip("：；（）［］＝．％", ":;()[]=.%", strict=True))
_QUOTES = {"′": "'", "’": "'", "″": "''", "“": '"', "”": '"'}
_SPACES = {"\u00a0": " ", "\u2009": "\\,", "\u202f": "\\,", "\u200b": "", "\u2061": "", "\ufeff": "", "\u2062": "*"}
_OTHERS = {"，": ", ", "｛": "\\{", "｝": "\\}", "º": "°", "˚": "°", "∧": " and ", "∨": " or "}
_SETS = {"ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℕ": "\\mathbb{N}", "ℚ": "\\mathbb{Q}", "ℂ": "\\mathbb{C}"}
_FRACTIONS = {
    sign: f"\\frac{{{parts[0]}}}{{{parts[1]}}}"
    for sign, parts in zip("½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞", "12 13 23 14 34 15 25 35 45 16 56 18 38 58 78".split(), strict=True)
}
_TABLE = str.maketrans(
    {sign: f"\\{name} " for sign, name in (_GREEK | _COMMANDS).items()}
    | (_SIGNS | _FULL_WIDTH | _QUOTES | _SPACES | _OTHERS | _SETS | _FRACTIONS)
)
_SUPERSCRIPT_RUN = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SUBSCRIPT_RUN = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")

TEXT_COMMAND = re.compile(r"\\(?:text(?:bf|rm|it|sf|tt|normal)?|mbox|mathrm|mathbf|operatorname|emph)\s*(?=\{)")
_NOISE = re.compile(r"[\\{}$~\"“”`*?;:()\[\]]+|[.,](?!\d)|(?<!\d)!|'(?=s?\b)")
_HYPHEN = re.compile(r"(?<=[A-Za-z])-(?=[A-Za-z])")
_ARTICLE = re.compile(r"^(?:the|a|an)\s+|\s+(?:answer|is correct)$")
_DOLLAR_AMOUNT = re.compile(r"\$\d[\d,.]*\s*\Z")
_WHOLE_WRAPPER = re.compile(r"\\(?:text(?:bf|rm|it|sf|normal)?|mathrm|mathbf|mbox|boldsymbol)\s*\{([^{}\\]*)\}")
_COLOUR = re.compile(r"\\(?:text)?color\s*\{[^{}]*\}")
_HEAD = re.compile(
    r"(?:[\s;,:]|\\[,;: ]|\\q?quad(?![A-Za-z])|~|\\displaystyle(?![A-Za-z])|\\(?:approx|simeq)(?![A-Za-z])|≈)+"
)
_ASIDE = re.compile(r"\s?\(\s*(or|=|≈|\\approx|approximately|approx\.?|about)\s+([^()]+)\)\Z")
_ASIDE_SIGNS = {"approximately": "≈", "about": "≈", "approx": "≈", "approx.": "≈"}
_TAILS = ("\\,", "\\;", "\\:", "\\ ", "\\\\", "~")
_LABEL = re.compile(
    r"(?:the )?(?:final |correct )?answers? (?:is|are|=):?\s*|the (?=\d)"
    r"|\\text\s*\{\s*(?:the )?(?:final |correct )?(?:answers?|ans|result)(?: is| are|\s?=)?:?\s*\}\s*[:=]?\s*(?=\S)"
    r"|(?:thus|so|therefore|hence|answer|ans|final answer|solution)\s*[:,=]\s*(?=\S)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(
    r"(?:\\text\s*\{\s*)?([A-Za-z][A-Za-z ,'-]{0,80}?) (?:is|are|equals)\s*:?\s*(?:\}\s*)?(?=[-\d$\\(])(?!\\text)"
)
NEGATION = re.compile(
    r"\b(?:not|no|never|nor|either|or|if|unless|maybe|perhaps|wrong|incorrect|neither)\b|n't", re.IGNORECASE
)

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
MAX_RESPELLED_CHARS = 4_000
MAX_LETTERS_CHARS = 120


def clean(text: str) -> str:
    r"""Return an answer in one spelling, without math delimiters, colours, closing punctuation and "The answer is".

    A wrapper around the whole answer, `\text{...}`, is removed; a currency sign after the number is put before it.
    """
    text = _trim(replace_unicode(text))
    wrapped = _WHOLE_WRAPPER.fullmatch(text)
    return respell(text if wrapped is None else _trim(wrapped[1]))


def canonical_text(text: str) -> str:
    """Return words without case, markup, punctuation and articles; two texts are equal if these are."""
    text = TEXT_COMMAND.sub(" ", replace_unicode(text)).replace("\\ ", " ").replace("\\,", " ")
    text = " ".join(_NOISE.sub(" ", _HYPHEN.sub(" ", text)).lower().split())
    return _ARTICLE.sub("", text)


def strip_markup(text: str) -> str:
    r"""Return the text without `\text{...}`, braces and spacing commands."""
    bare = TEXT_COMMAND.sub(" ", text).replace("{", " ").replace("}", " ").replace("\\ ", " ").replace("\\,", " ")
    return " ".join(bare.split())


def replace_unicode(text: str) -> str:
    """Return the text with Unicode signs as ASCII or LaTeX; linear in its length."""
    if text.isascii():
        return text
    text = _SUPERSCRIPT_RUN.sub(lambda run: "^{" + "".join(_SUPERSCRIPTS[sign] for sign in run.group()) + "}", text)
    text = _SUBSCRIPT_RUN.sub(lambda run: "_{" + "".join(_SUBSCRIPTS[sign] for sign in run.group()) + "}", text)
    return text.translate(_TABLE)


def _trim(text: str) -> str:
    text = text.strip()
    dollars = text.count("$") - text.count("\\$")
    if dollars and (dollars % 2 == 0 or text.endswith("$")) and not _DOLLAR_AMOUNT.match(text):
        text = re.sub(r"(?<!\\)\$", " ", text)
    if "color" in text:
        text = _COLOUR.sub("", text)
    if text.endswith(")") and (aside := _ASIDE.search(text, max(0, text.rfind("(") - 1))) is not None:
        text = f"{text[: aside.start()]} {_ASIDE_SIGNS.get(aside[1], aside[1])} {aside[2]}"
    head = _HEAD.match(text)
    text = _strip_tail(text[head.end() :] if head else text)
    for sign in ("\\text{\\$}", "\\$", "€", "£", "¥", "₹"):
        if text.endswith(sign) and text[: -len(sign)].rstrip()[-1:] in set("0123456789})"):
            text = sign + text.removesuffix(sign).rstrip()
    if text.startswith("\\text{\\$}"):
        text = "\\$" + text.removeprefix("\\text{\\$}")
    label = _LABEL.match(text) or _sentence_label(text)
    return text[label.end() :].strip() if label else text


def _sentence_label(text: str) -> re.Match[str] | None:
    """Match the words before a value, as in "The probability is 1/2", unless they negate or weaken it."""
    label = _SENTENCE.match(text)
    return None if label is None or NEGATION.search(label[1]) else label


def _strip_tail(text: str) -> str:
    """Remove closing punctuation and spacing commands."""
    before = None
    while before != text:
        before = text
        text = text.rstrip().rstrip(".;,:")
        for tail in _TAILS:
            text = text.removesuffix(tail)
    return text


def respell(text: str) -> str:
    """Return the text in common spellings; a text of more than `MAX_RESPELLED_CHARS` is returned unchanged."""
    if len(text) > MAX_RESPELLED_CHARS:
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
        text = _ELLIPSIS.sub(lambda decimal: _repeating_decimal(decimal[1]), text)
    if "C" in text or "P" in text:
        text = _CHOSEN.sub(_chosen, text)
    if "[" in text or "]" in text:
        text = _respell_brackets(text)
    if "^" in text or "°" in text:
        text = _TEMPERATURE.sub(lambda scale: _SCALES[scale[1]], text)
    return _respell_words(text)


def _respell_words(text: str) -> str:
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
        text = _brace_infix(text, infix.start())
    if "mod" in text:
        text = _MODULUS.sub(lambda found: f"\\pmod{{{found[1] or found[2]}}}", text)
    if "all" in text or "any" in text or "All" in text:
        text = _EXCEPT.sub(r"\\mathbb{R}\\setminus\\{\1\\}", text, count=1)
        everything = _ALL.match(text)
        text = text[everything.end() :] if everything else text
    if text[:1] == "{" and (builder := _PLAIN_BUILDER.fullmatch(text)) is not None:
        text = f"\\{{{builder[1]}\\}}"
    if len(text) <= MAX_LETTERS_CHARS:
        text = _option_letters(text) or text
    if "degree" in text:
        text = _ARC.sub(r"\1^\\circ \2'", text)
    if "$" in text and (amount := _DOLLAR_TEXT.fullmatch(text)) is not None:
        text = "\\" + amount[1]
    return text


def _brace_infix(text: str, at: int) -> str:
    r"""Add braces around the value whose `\over` or `\choose` is at `at`, unless it is already in braces."""
    if text.count("{", 0, at) != text.count("}", 0, at):
        return text
    first = text.rfind("=", 0, at) + 1
    return f"{text[:first]}{{{text[first:]}}}"


def _option_letters(text: str) -> str | None:
    """Return `(A) and (C)` as `A, C`, or None if the text is not a list of option letters."""
    parts = [part for part in _LETTER_BREAK.split(_LETTER_MARKUP.sub(" ", text)) if part.strip()]
    found = [_LETTER.fullmatch(part) for part in parts]
    if len(found) < 2 or not all(found) or any(part.count("(") != part.count(")") for part in parts):
        return None
    return ", ".join(match[1] for match in found if match)


def _respell_brackets(text: str) -> str:
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
    if bool(match[3]) != bool(match[7]):
        return match[0]  # `2C_1` is twice a constant
    return f"\\binom{{{total}}}{{{chosen}}}" if match[4] == "C" else f"P({total},{chosen})"


def _repeating_decimal(decimal: str) -> str:
    """Return a decimal before dots with its last block as repeating, or unchanged if the block is not there twice."""
    whole, _, digits = decimal.partition(".")
    for length in range(1, len(digits) // 2 + 1):
        if digits[-length:] == digits[-2 * length : -length]:
            block, rest = digits[-length:], digits[:-length]
            while rest.endswith(block):
                rest = rest[: -len(block)]
            return f"{whole or '0'}.{rest}({block})"
    return decimal
