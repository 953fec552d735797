r"""Answers stated without a box: `####`, `<answer>`, "the answer is ...", and the value that ends the last sentence.

Every pattern is bounded, so that each function is linear in the length of the text.

Touches: nothing.
"""

import re

Span = tuple[int, int]

_MARKER = re.compile(
    r"<answer>(?P<tag>)"
    r"|\#{4,}"
    r"|\banswers?\b(?:\s+(?:to|for|of|in)\b[^.\n:=$]{1,80})?[*_ )\]]*(?:\s*(?:would be|is|are|be|:|=|：)+)[ *_]*(?::|：)?"
    r"|^[#*_ ]*(?:final |the )*answer[*_: ]*$"
    r"|^(?:A|ANS|Ans):"
    r"|\b(?:option|choice)s?(?: is|:)?(?=[ *]*\(?[A-Z]\)?[*]*(?: is (?:the )?(?:correct|right)(?: answer| choice| option)?)?[.\s]*$)"
    r"|(?:答案|结果)(?:是|为|：|:)",
    re.IGNORECASE | re.MULTILINE,
)
_DELIMITER_LINE = re.compile(r"[\s$*_`]*(?:\\\[|\\begin\{(?:align|equation)\*?\})?[\s$*_`&]*")
_STOP = re.compile(
    r"\$\$?[^$\n]*\$\$?|(?<=[^.])[.。](?=\s|\Z|\*|<)|\n|<|\bbecause\b|\bsince\b| is (?:the )?(?:correct|right)\b|, (?:so|as|which|where)\b"
)
_ABBREVIATION = re.compile(r"(?:\b(?:Mrs?|Ms|Dr|St|vs|No|sq|approx)|\b[ap]\.m|\b[A-Z])\Z", re.IGNORECASE)
_WRAP_OPEN = re.compile(r"(?:[\s*_`]|\\\[|\\\(|\\displaystyle|\$(?=[^$]*\$)|[:：])+")
_WRAP_CLOSE = re.compile(r"(?:[\s*_`.,;。!]|\\\]|\\\)|\$)+\Z")
_MATH = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_NUMBER = re.compile(
    r"(?<![A-Za-z\d.,_^\\/])(?:[$€£]\s?)?[-−+]?[$€£]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.?\d+)?"
    r"(?:\s+\d+/\d+|/\d+|:\d\d)?(?:\s?[%°]|\s?percent\b)?(?![A-Za-z\d])"
)
_NEGATION = re.compile(r"\b(?:not|never|isn't|aren't|cannot|can't|neither|nor|either|or|maybe|perhaps|between)\b", re.I)
_COPULA = re.compile(r"(?:\b(?:is|are|was|were|equals|equal to|be|=)|=)\s*(?=[^=]*\Z)")
MAX_SENTENCE_CHARS = 600
MAX_TRAILING_WORDS = 5
MAX_WORDS_IN_TEXT = 3
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z']{2,}")
_MATH_WORDS = frozenset(
    "and or pi sqrt sin cos tan log ln exp infinity factorial np sympy arcsin arccos arctan abs floor ceil binomial"
    " alpha beta theta lambda oo inf".split()
)


def trim(text: str, start: int, end: int) -> Span:
    """The span without the spaces at its ends."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def last_marker(text: str, start: int, end: int) -> Span | None:
    """The span that the last marker in `text[start:end]` announces; empty where nothing follows it."""
    best: Span | None = None
    for match in _MARKER.finditer(text, start, end):
        span = _announced(text, match, end)
        if span[0] < span[1] or best is None or match.group("tag") is not None:
            best = span
    return best


def _announced(text: str, match: re.Match[str], end: int) -> Span:
    if match.group("tag") is not None:
        close = text.find("</answer>", match.end(), end)
        return _unwrap(text, match.end(), close if close >= 0 else match.end())
    at = match.end()
    while at < end:
        line_end = text.find("\n", at, end)
        line_end = end if line_end < 0 else line_end
        if not _DELIMITER_LINE.fullmatch(text, at, line_end):
            break
        at = line_end + 1
    return _unwrap(text, at, _sentence_end(text, at, end)) if at < end else (end, end)


def _sentence_end(text: str, start: int, end: int) -> int:
    """Where the sentence that begins at `start` stops: a full stop outside a formula, a new line, or a reason given."""
    opened = _WRAP_OPEN.match(text, start, end)
    display = opened is not None and "\\[" in opened.group()
    if display:
        close = text.find("\\]", opened.end(), end)
        return close if close >= 0 else end
    for match in _STOP.finditer(text, start, end):
        token = match.group()
        if token[0] == "$" or (token == "<" and not text[match.end() : match.end() + 1].isalpha()):
            continue
        if token in ".。" and _ABBREVIATION.search(text, max(start, match.start() - 8), match.start()):
            continue
        if match.start() > start or token != "\n":
            return match.start()
    return end


def _unwrap(text: str, start: int, end: int) -> Span:
    """The span without emphasis, math delimiters and closing punctuation around it."""
    opened = _WRAP_OPEN.match(text, start, end)
    inner = opened.end() if opened else start
    dollars = text.count("$", inner, end)
    if opened and "$" in opened.group() and dollars > 1:
        inner = text.index("$", start)  # several formulas: the delimiters are not one pair around the whole
    closed = _WRAP_CLOSE.search(text, max(inner, end - 40), end)
    if closed and not ("$" in closed.group() and text.count("$", inner, end) % 2 == 0):
        end = closed.start()
    return trim(text, inner, max(inner, end))


def final_line(text: str, start: int, end: int) -> tuple[Span | None, str]:
    """The value that ends the last sentence of `text[start:end]`, or None and the reason why there is none."""
    start, end = trim(text, start, end)
    if start == end:
        return None, "no_answer"
    line = max(start, text.rfind("\n", start, end) + 1, end - MAX_SENTENCE_CHARS)
    if line == start and not _has_prose(text[start:end]):
        return _unwrap(text, start, end), ""
    sentence = _last_sentence(text, line, end)
    if not _has_prose(text[sentence:end]):
        return _unwrap(text, sentence, end), ""
    return _value_in(text, sentence, end)


def _has_prose(text: str) -> bool:
    """Whether a value stands among words: two words beside it, or one before it, outside any formula."""
    bare = _MATH.sub(" 0 ", text)
    words = [word for word in _WORD.finditer(bare) if word.group().lower() not in _MATH_WORDS]
    value = re.search(r"\d", bare)
    if value is None:
        return len(words) > MAX_WORDS_IN_TEXT or re.search(r"[\u4e00-\u9fff]{2}", bare) is not None
    before = any(word.start() < value.start() for word in words)
    return before or len(words) > 1 or re.search(r"[\u4e00-\u9fff]{2}", bare) is not None


def _last_sentence(text: str, start: int, end: int) -> int:
    stops = [match.end() for match in re.finditer(r"[.!?。]\s+|[。？！]", text[start : end - 1])]
    return start + (stops[-1] if stops else 0)


def _value_in(text: str, start: int, end: int) -> tuple[Span | None, str]:
    if _NEGATION.search(text, start, end):
        return None, "ambiguous"
    formulas = list(_MATH.finditer(text, start, end))
    if formulas and len(text[formulas[-1].end() : end].split()) <= MAX_TRAILING_WORDS:
        last = formulas[-1]
        return trim(text, *last.span(last.lastindex or 0)), ""
    copula = None if formulas else _COPULA.search(text, start, end)
    if copula is not None:
        number = _NUMBER.match(text, copula.end(), end)
        alone = number is not None and not re.search(r"\d", text[number.end() : end])
        if number and alone and re.search(r"\d", number.group()):
            return trim(text, *number.span()), ""
    numbers = [match for match in _NUMBER.finditer(text, start, end) if re.search(r"\d", match.group())]
    ends = bool(numbers) and len(text[numbers[-1].end() : end].split()) <= MAX_TRAILING_WORDS
    if ends and len({match.group().strip() for match in numbers}) == 1:
        return trim(text, *numbers[-1].span()), ""
    return None, "ambiguous" if numbers else "no_answer"
