r"""Text around and instead of mathematics: what is trimmed from an answer, and how words are compared."""

import re

from graders.parsing.spelling import respelled
from graders.parsing.unicode import normalise

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
DENIED = re.compile(
    r"\b(?:not|no|never|nor|either|or|if|unless|maybe|perhaps|wrong|incorrect|neither)\b|n't", re.IGNORECASE
)


def cleaned(text: str) -> str:
    r"""The answer in one spelling, without math delimiters, colours, closing punctuation and "The answer is".

    A wrapper around the whole, `\text{...}`, is taken off; a currency sign behind the number is put before it.
    """
    text = _trimmed(normalise(text))
    wrapped = _WHOLE_WRAPPER.fullmatch(text)
    return respelled(text if wrapped is None else _trimmed(wrapped[1]))


def _trimmed(text: str) -> str:
    text = text.strip()
    dollars = text.count("$") - text.count("\\$")
    if dollars and (dollars % 2 == 0 or text.endswith("$")) and not _DOLLAR_AMOUNT.match(text):
        text = re.sub(r"(?<!\\)\$", " ", text)
    if "color" in text:
        text = _COLOUR.sub("", text)
    if text.endswith(")") and (aside := _ASIDE.search(text, max(0, text.rfind("(") - 1))) is not None:
        text = f"{text[: aside.start()]} {_ASIDE_SIGNS.get(aside[1], aside[1])} {aside[2]}"
    head = _HEAD.match(text)
    text = _without_tail(text[head.end() :] if head else text)
    for sign in ("\\text{\\$}", "\\$", "€", "£", "¥", "₹"):
        if text.endswith(sign) and text[: -len(sign)].rstrip()[-1:] in set("0123456789})"):
            text = sign + text.removesuffix(sign).rstrip()
    if text.startswith("\\text{\\$}"):
        text = "\\$" + text.removeprefix("\\text{\\$}")
    label = _LABEL.match(text) or _sentence_label(text)
    return text[label.end() :].strip() if label else text


def _sentence_label(text: str) -> re.Match[str] | None:
    """The words before a value, as in "The probability is 1/2", unless they deny or weaken it."""
    label = _SENTENCE.match(text)
    return None if label is None or DENIED.search(label[1]) else label


def _without_tail(text: str) -> str:
    """The text without closing punctuation and spacing commands."""
    before = None
    while before != text:
        before = text
        text = text.rstrip().rstrip(".;,:")
        for tail in _TAILS:
            text = text.removesuffix(tail)
    return text


def without_markup(text: str) -> str:
    r"""The text without `\text{...}` and spacing commands: its words alone, if it is words."""
    bare = TEXT_COMMAND.sub(" ", text).replace("{", " ").replace("}", " ").replace("\\ ", " ").replace("\\,", " ")
    return " ".join(bare.split())


def canonical_text(text: str) -> str:
    """Words without case, markup, punctuation and articles: how texts are compared."""
    text = TEXT_COMMAND.sub(" ", normalise(text)).replace("\\ ", " ").replace("\\,", " ")
    text = " ".join(_NOISE.sub(" ", _HYPHEN.sub(" ", text)).lower().split())
    return _ARTICLE.sub("", text)
