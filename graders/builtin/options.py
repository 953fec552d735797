r"""Multiple-choice options: parses the options of a question and matches answers to them."""

import re

from graders.equivalence import TooLarge, compare
from graders.parsing.parse import ParseError, parse
from graders.parsing.tree import Choice, Name, Node

_LETTERS = "ABCDEFGHIJ"
_OPTION = re.compile(
    r"(?:^|[\s$\\]|q?quad|~)(?:\\(?:text|textbf|mathrm|mathbf|rm|bf)\s*\{?\s*)?"
    r"(?:\(([A-J])\)|([A-J])[.:)])\s*\}?(?:\\ |~|:)?",
    re.MULTILINE,
)
_EDGES = re.compile(r"^(?:[\s$.,;]|\\q?quad|\\ |\\\\)+|(?:[\s$.,;]|\\q?quad|\\ |\\\\|\\textbf\{?|\\text\{?)+$")
MIN_OPTIONS = 2
MAX_OPTION_CHARS = 300


def options(question: str) -> dict[str, str]:
    """Return the text of each option by its letter, in the order listed; empty if the question lists no options."""
    marks = [(match[1] or match[2], match.start(), match.end()) for match in _OPTION.finditer(question)]
    first = next((at for at in range(len(marks) - 1, -1, -1) if marks[at][0] == "A"), None)
    if first is None:
        return {}
    found: dict[str, str] = {}
    for letter, (at, mark) in zip(_LETTERS, enumerate(marks[first:], start=first), strict=False):
        if mark[0] != letter:
            break
        end = marks[at + 1][1] if at + 1 < len(marks) else len(question)
        found[letter] = _EDGES.sub("", question[mark[2] : end].split("\n\n")[0])[:MAX_OPTION_CHARS]
    return found if len(found) >= MIN_OPTIONS else {}


def is_same_option(answer: Node, reference: Node, question: str) -> bool:
    """Return True if one side is an option letter and the other is the text of this option only."""
    letter, value = (reference, answer) if isinstance(reference, Choice) else (answer, reference)
    if (
        not isinstance(letter, Choice)
        or isinstance(value, Choice)
        or (isinstance(value, Name) and len(value.text) == 1)
    ):
        return False
    if letter.content is not None:
        return False
    listed = options(question)
    return [name for name, text in listed.items() if _is_equal(text, value)] == [letter.letter]


def _is_equal(text: str, value: Node) -> bool:
    if not text:
        return False
    try:
        return compare(value, parse(text)).equal is True
    except (ParseError, TooLarge):
        return False
