r"""Search for `\boxed{...}`: nested, joined, quoted and unclosed boxes, in time linear in the length of the text."""

import re

BOX_COMMANDS = ("\\boxed", "\\fbox", "\\framebox")

_BOX_START = re.compile(r"\\(?:boxed|fbox|framebox(?:\[[^\[\]\n]{0,20}\]){0,2})(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}$]", re.DOTALL)
_UNBRACED = re.compile(r"\\[A-Za-z]+|-?\d+(?:\.\d+)?|[^\s{}\\$]")
_GLUE = re.compile(r"(?:\s|\$|\\[()\[\],;:! ]|\\q?quad|\\text|[{}&.~*]|,|;|and\b|or\b|x\s*=)*")
_JOINER = re.compile(r",|;|&|\band\b|\bor\b")
_PLACEHOLDER = re.compile(
    r"(?:\\text|\\mathrm|\\mbox)?\s*\{?\s*[<\[(]?\s*(?:your |the |my )?(?:final )?"
    r"(?:answer|result|\.\.\.|\\[lc]?dots|…)(?: here)?\s*[>\])]?\s*\}?",
    re.IGNORECASE,
)
MAX_GLUE_CHARS = 40
MAX_BOXES = 64
"""Maximum number of boxes examined, from the end of the text."""
MAX_BOX_CHARS = 50_000

Span = tuple[int, int]


def last_boxes(text: str, start: int, end: int, question: str | None = None) -> tuple[list[Span], int | None]:
    r"""Find the last box and the boxes that are listed with it.

    Of nested boxes the outer one counts. A box in quotation marks, in a `>` quotation, or copied from the question is
    skipped.

    Args:
        text: the completion.
        start: first character of the part that is searched.
        end: one past its last character.
        question: the problem text.

    Returns:
        The spans of the contents, and the position of an unclosed box or None.
    """
    starts = list(_BOX_START.finditer(text, start, end))[-MAX_BOXES:]
    unclosed: int | None = None
    group: list[Span] = []
    next_start = end  # start of the box to the right that was found before
    limit = end
    index = len(starts) - 1
    while index >= 0:
        opening = starts[index]
        content = _content(text, opening.end(), limit)
        if content is None:
            unclosed, limit = opening.start(), opening.start()
            index -= 1
            continue
        index, opening, content = _outermost(text, starts, index, content, limit)
        index -= 1
        if _is_quoted(text, opening.start(), content[1], question):
            continue
        if group and not _is_joined(text, content[1], next_start):
            break
        group.insert(0, _without_placeholder(text, content))
        next_start = opening.start()
    return group, unclosed


def _content(text: str, at: int, end: int) -> Span | None:
    r"""Return the content of the box whose argument begins at `at`: braces, or one symbol as in `\boxed 5`."""
    if at >= end or text[at] != "{":
        match = _UNBRACED.match(text, at, end)
        return match.span() if match else None
    plain = text.find("}", at, end)
    if plain >= 0 and text.find("{", at + 1, plain) < 0 and text[plain - 1] != "\\":
        return at + 1, plain
    depth = 0
    end = min(end, at + MAX_BOX_CHARS)
    for match in _BRACE.finditer(text, at, end):
        brace = match.group()
        depth += (brace == "{") - (brace == "}")
        if depth == 0 and brace == "}":
            return at + 1, match.start()
        is_delimiter = depth == 1 and brace in ("\\)", "\\]", "$")
        if is_delimiter and text.find("}", match.end(), _line_end(text, match.end())) < 0:
            return at + 1, match.start()  # the formula ends and only the brace is missing: not a truncation
    return None


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return end if end >= 0 else len(text)


def _outermost(
    text: str, starts: list[re.Match[str]], index: int, content: Span, limit: int
) -> tuple[int, re.Match[str], Span]:
    """Return the outermost box that contains the one at `index`, or that one: its index, start and content."""
    while index > 0:
        outer = _content(text, starts[index - 1].end(), limit)
        if outer is None or outer[1] <= content[1]:
            break
        index, content = index - 1, outer
    return index, starts[index], content


def _is_joined(text: str, end_of_first: int, start_of_second: int) -> bool:
    gap = text[end_of_first:start_of_second]
    return len(gap) <= MAX_GLUE_CHARS and _GLUE.fullmatch(gap) is not None and _JOINER.search(gap) is not None


def _is_quoted(text: str, start: int, end: int, question: str | None) -> bool:
    if question is not None and text[start : end + 1] in question:
        return True
    line_start = text.rfind("\n", 0, start) + 1
    before = text[line_start:start]
    if before.lstrip().startswith(">"):
        return True
    after = text[end : _line_end(text, end)]
    return (before.count('"') % 2 == 1 and '"' in after) or (before.count("“") > before.count("”") and "”" in after)


def _without_placeholder(text: str, content: Span) -> Span:
    """Return the span, emptied if the box holds only "answer" or an ellipsis, as in an instruction."""
    if _PLACEHOLDER.fullmatch(text[content[0] : content[1]].strip()):
        return content[0], content[0]
    return content
