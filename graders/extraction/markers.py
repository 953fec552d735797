r"""Answers outside a box: after a marker (`####`, `<answer>`, "the answer is ..."), or at the end of the last sentence.

Every pattern is bounded, so each function is linear in the length of the text.
"""

import re

Span = tuple[int, int]

_KEYWORDS = ("answer", "####", "\na:", "\nans:", "option", "choice", "答案", "结果")
_ANSWER = re.compile(
    r"\banswers?\b(?:\s+(?:to|for|of|in)\b[^.\n:=$]{1,80})?[*_ )\]]*"
    r"(?:\s*(?:would be|is|are|be|:|=|：)+)[ *_]*(?::|：)?",
    re.IGNORECASE,
)
_HEADING = re.compile(r"[#*_ ]*(?:final |the )*answer[*_: ]*$", re.IGNORECASE | re.MULTILINE)
_OPTION = re.compile(
    r"\b(?:option|choice)s?(?: is|:)?"
    r"(?=[ *]*\(?[A-Z]\)?[*]*(?: is (?:the )?(?:correct|right)(?: answer| choice| option)?)?[.\s]*$)",
    re.IGNORECASE | re.MULTILINE,
)
_CHOSEN = re.compile(
    r"(?:^|[.!]\s+)[*_ ]*(?:(?:so|thus|hence|therefore|then|clearly),? +)?[*_]*(\(?[A-J]\)?)[*_]* is (?:the )?"
    r"(?:correct|right|best) (?=(?:answer|option|choice)[*_]*[.!*_\s]*$)",
    re.IGNORECASE | re.MULTILINE,
)
"""A sentence that only names a choice; `(?=` stops before the keyword that `last_marker` searches for."""
_SHORT = re.compile(r"\n(?:A|ANS|Ans):|\#{4,}|(?:答案|结果)(?:是|为|：|:)")
_FIRST_LINE = re.compile(r"(?:A|ANS|Ans):")
_DELIMITER_LINE = re.compile(r"[\s$*_`]*(?:(?:\\\[|\\begin\{(?:align|equation)\*?\})[\s$*_`&]*)?")
_STOP = re.compile(
    r"\$\$?[^$\n]*\$\$?|(?<=[^.])[.。](?=\s|\Z|\*|<)|\n|<"
    r"|\bbecause\b|\bsince\b| is (?:the )?(?:correct|right)\b|, (?:so|as|which|where)\b"
)
_ABBREVIATION = re.compile(r"(?:\b(?:Mrs?|Ms|Dr|St|vs|No|sq|approx)|\b[ap]\.m|\b[A-Z])\Z", re.IGNORECASE)
_WRAP_OPEN = re.compile(r"(?:[\s*_`]|\\\[|\\\(|\\displaystyle|\$(?=[^$]*\$)|[:：])+")
_WRAP_CLOSE = re.compile(r"(?:[\s*_`.,;。!]|\\\]|\\\)|\$)+\Z")
_ASIDE = re.compile(r"\s*[(\[]\s*\Z")
_MATH = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_WORDY = re.compile(r"(?<![\\A-Za-z{])[a-z]{3,}\s+[a-z]{2,}")
_NUMBER = re.compile(
    r"(?<![A-Za-z\d.,_^\\/])(?:[$€£]\s?)?[-−+]?[$€£]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.?\d+)?"
    r"(?:\s+\d+/\d+|/\d+|:\d\d)?(?:\s?[%°]|\s(?:percent|hundred|thousand|million|billion|trillion|dozen)\b)?(?![A-Za-z\d])"
)
_SIGN = re.compile(r"(?:=|\b(?:is|are|be|equals|to))\s*([-−]\s*)\Z")
_OPERATION = re.compile(
    r"(?:[-−+/^<≤≥≠√∛×·÷]|(?<![-=])>|[\w)]\*|\b(?:minus|negative|plus|times|mod|modulo|than|at least|at most|exceeds?"
    r"|twice|thrice|half|over|under|below|above|log|ln|sin|cos|tan|sqrt"
    r"|(?:half|third|quarter|double|square|cube|roots?|multiples?|factors?|divisors?|reciprocal|inverse|power|opposite"
    r"|negative|factorial|logarithm|percent) of|(?:divided|divisible|multiplied) by))[\s$]*\Z",
    re.IGNORECASE,
)
"""Text before a value that makes it part of a larger expression: an operator, a bound, or a function of it."""
_CONTINUED = re.compile(
    r"\s*(?:(?:hundred|thousand|million|billion|trillion|dozen|more than|less than|times|modulo|mod)\b"
    r"|![^\s!*_]|[xyzn]\b)"
)
_TAG = re.compile(r"</?\w{1,10}>")
_NEGATION = re.compile(
    r"\b(?:not|never|isn't|aren't|cannot|can't|neither|nor|either|or|maybe|perhaps|between|nobody"
    r"|anything but|differs? from|is (?:false|impossible|wrong|incorrect))\b|\?\s*\Z",
    re.IGNORECASE,
)
_COPULA = re.compile(r"(?:\b(?:is|are|was|were|equals|equal to|be|=)|=)\s*(?=[^=]*\Z)")
MAX_SENTENCE_CHARS = 600
MAX_CHOSEN_CHARS = 60
MAX_TRAILING_WORDS = 5
MAX_BEFORE_CHARS = 40
MAX_WORDS_IN_TEXT = 3
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z']{2,}")
_MATH_WORDS = frozenset(
    "and or pi sqrt sin cos tan log ln exp infinity factorial np sympy arcsin arccos arctan abs floor ceil binomial"
    " alpha beta theta lambda oo inf".split()
)


def trim(text: str, start: int, end: int) -> Span:
    """Return the span without the spaces at its ends."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def last_marker(text: str, start: int, end: int) -> Span | None:
    """Return the span after the last marker in `text[start:end]`: empty if nothing follows; None without a marker."""
    tail = "\n" + text[start:end]
    lowered = tail.lower()
    if len(lowered) != len(tail):
        lowered = tail  # lower case changed the length and so the positions: search the text as it is
    last, empty = {keyword: lowered.rfind(keyword) for keyword in _KEYWORDS}, None
    while (at := max(last.values())) >= 0:
        span = _marked_span(text, start + at - 1, start, end)
        if span is not None and span[0] < span[1]:
            return span
        empty = empty or span
        for keyword in [keyword for keyword, found in last.items() if found + len(keyword) > at]:
            last[keyword] = lowered.rfind(keyword, 0, at)
    return empty


def _marked_span(text: str, at: int, start: int, end: int) -> Span | None:
    """Return the span of the marker whose keyword is at `at`; None if the keyword is not a marker."""
    if text.startswith("<answer>", max(at - 1, 0)):
        close = text.find("</answer>", at, end)
        return _unwrap(text, at + len("answer>"), close if close >= 0 else end)  # the closing tag may be a stop string
    if at < start:  # the line break that `last_marker` adds before the first line
        match = _FIRST_LINE.match(text, start, end)
        return _after(text, match.end(), end) if match else None
    line = max(text.rfind("\n", start, at) + 1, start)
    match = (
        _SHORT.match(text, at, end)
        or _ANSWER.match(text, at, end)
        or _OPTION.match(text, at, end)
        or _HEADING.match(text, line, end)
    )
    return _after(text, match.end(), end) if match else _chosen_before(text, line, at, end)


def _chosen_before(text: str, line: int, at: int, end: int) -> Span | None:
    """Return the span of the letter in "B is the correct answer", whose keyword is at `at`."""
    at += text[at : at + 1] == "\n"
    line_end = text.find("\n", at, at + MAX_CHOSEN_CHARS)
    line_end = line_end if 0 <= line_end < end else end
    if line_end > at + MAX_CHOSEN_CHARS:
        return None  # the sentence continues
    matches = _CHOSEN.finditer(text, max(line, at - MAX_CHOSEN_CHARS), line_end)
    return next((match.span(1) for match in matches if match.end() == at), None)


def _after(text: str, at: int, end: int) -> Span:
    """Return the rest of the sentence from `at`, or the next line that has more than delimiters."""
    while at < end:
        line_end = text.find("\n", at, end)
        line_end = end if line_end < 0 else line_end
        if not _DELIMITER_LINE.fullmatch(text, at, line_end):
            break
        at = line_end + 1
    return _unwrap(text, at, _sentence_end(text, at, end)) if at < end else (end, end)


def _sentence_end(text: str, start: int, end: int) -> int:
    """Return the end of the sentence at `start`: a full stop outside a formula, a line break, or "because"."""
    opened = _WRAP_OPEN.match(text, start, end)
    if opened is not None and "\\[" in opened.group():
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
    """Return the span without emphasis, math delimiters and closing punctuation around it."""
    opened = _WRAP_OPEN.match(text, start, end)
    inner = opened.end() if opened else start
    dollars = text.count("$", inner, end)
    if opened and "$" in opened.group() and dollars > 1:
        inner = text.index("$", start)  # several formulas: the delimiters are not one pair around all of it
    aside = _ASIDE.search(text, max(inner, end - 4), end)  # a reason in parentheses was cut off
    end = aside.start() if aside is not None else end
    closed = _WRAP_CLOSE.search(text, max(inner, end - 40), end)
    if closed and not ("$" in closed.group() and text.count("$", inner, end) % 2 == 0):
        end = closed.start()
    return trim(text, inner, max(inner, end))


def final_line(text: str, start: int, end: int) -> tuple[Span | None, str]:
    """Return the value that ends the last sentence of `text[start:end]`, or None and the reason."""
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
    """Return True if words surround the value: two words, or one before it, outside any formula."""
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
    """Return the value that ends the sentence: its last formula, or the only number after "is" or "="."""
    if _NEGATION.search(text, start, end):
        return None, "ambiguous" if re.search(r"\d|\$", text[start:end]) else "no_answer"
    annotated = text.rfind(">>", start, end)
    if annotated >= 0:
        start = annotated + 2  # after a calculator annotation, `<<2*3=6>>6`
    formulas = [match for match in _MATH.finditer(text, start, end) if not _WORDY.search(match.group())]
    if formulas:
        return _last_formula(text, formulas, start, end)
    numbers = [match for match in _NUMBER.finditer(text, start, end) if re.search(r"\d", match.group())]
    copula = _COPULA.search(text, start, end)
    after = [match for match in numbers if copula is not None and match.start() >= copula.end()]
    stated = after if after and copula is not None and after[0].start() == copula.end() else numbers
    if len({match.group().strip() for match in stated}) != 1:
        return None, "ambiguous" if numbers else "no_answer"
    if stated is numbers and len(text[numbers[-1].end() : end].split()) > MAX_TRAILING_WORDS:
        return None, "no_answer"
    return _value_span(text, start, stated[0].span(), stated[0].span())


def _value_span(text: str, start: int, outer: Span, value: Span) -> tuple[Span | None, str]:
    """Return the span of a value with the sign before it; ambiguous if a word or operator beside it changes the value.

    `outer` is the span with its delimiters, `value` the span without them.
    """
    if _CONTINUED.match(text, outer[1]):
        return None, "ambiguous"
    before = _TAG.sub("", text[max(start, outer[0] - MAX_BEFORE_CHARS) : outer[0]])
    if (sign := _SIGN.search(before)) is not None and outer == value:
        return trim(text, outer[0] - len(sign[1]), outer[1]), ""
    return (None, "ambiguous") if _OPERATION.search(before) else (trim(text, *value), "")


def _last_formula(text: str, formulas: list[re.Match[str]], start: int, end: int) -> tuple[Span | None, str]:
    last = formulas[-1]
    if len(text[last.end() : end].split()) > MAX_TRAILING_WORDS:
        return None, "no_answer"
    if len(formulas) > 1 and text[formulas[-2].end() : last.start()].strip(" ,") in ("", "and"):
        return None, "ambiguous"  # one of several values in a row
    return _value_span(text, start, last.span(), last.span(last.lastindex or 0))
