"""Words, option letters and times of day."""

import re

from graders.equivalence.canonical.canonicalize import choice_as_name, is_container
from graders.equivalence.compare.comparison import Compare, Comparison
from graders.equivalence.compare.real_sets import REALS, compare_real_sets
from graders.parsing.text import canonical_text
from graders.parsing.tree import Apply, Choice, Clock, Name, Node, Number, Ratio, Set, Text
from graders.parsing.words import SPECIAL_TEXTS

HALF_DAY_S = 12 * 3600


def compare_choices(answer: Node, reference: Node, compare: Compare) -> Comparison:
    """Compare option letters, or the content of an option if the other side has no letter."""
    if isinstance(answer, Choice) and isinstance(reference, Choice):
        return _compare_letters(answer.letter, reference.letter)
    if isinstance(reference, Choice):
        if isinstance(answer, Name) and len(answer.text) == 1:
            return _compare_letters(answer.text.upper(), reference.letter)
        if isinstance(answer, Text) and (option := _option_in(answer.text)) is not None:
            return _compare_letters(option, reference.letter)
        if reference.content is not None:
            return compare(answer, reference.content)
        return Comparison(False, "structure", "the reference is an option letter")
    assert isinstance(answer, Choice)
    if answer.content is not None:
        return compare(answer.content, reference)
    if is_container(reference):
        return Comparison(False, "structure", "the answer is one letter; the reference has several values")
    return compare(choice_as_name(answer), reference)


def _compare_letters(answer: str, reference: str) -> Comparison:
    return Comparison(answer == reference, "text", f"option {answer}; the reference is {reference}")


def _option_in(text: str) -> str | None:
    """Return the letter of "option b" in upper case; None for other words."""
    match = re.fullmatch(r"(?:option|choice|answer|statement) ([a-z])", text)
    return match[1].upper() if match else None


def compare_words(answer: Node, reference: Node) -> Comparison:
    """Compare words by their canonical text; synonyms of "no solution", "undefined" and the like are equal."""
    left, right = _canonical_words(answer), _canonical_words(reference)
    if left is not None and right is not None:
        same = left == right or left.replace(" ", "") == right.replace(" ", "")
        return Comparison(same, "text", "the same words" if same else f"{left[:60]!r} is not {right[:60]!r}")
    for words, node in ((left, reference), (right, answer)):
        if words == "all real numbers":
            found = compare_real_sets(REALS, node)
            if found is not None:
                return found
    return Comparison(False, "text", "words are compared with mathematics")


def _canonical_words(node: Node) -> str | None:
    """Return the canonical words of a node, or None if it is mathematics."""
    if isinstance(node, Text):
        canonical = canonical_text(node.text)
        return SPECIAL_TEXTS.get(canonical, canonical)
    if node == Set(()):
        return "no solution"
    if isinstance(node, Name):
        return {"bb R": "all real numbers", "infinity": "infinitely many"}.get(node.text, node.text.lower())
    if isinstance(node, Apply) and node.op == "*" and all(isinstance(part, Name) for part in node.args):
        return "".join(part.text.lower() for part in node.args if isinstance(part, Name))
    return None


def compare_times_of_day(answer: Node, reference: Node) -> Comparison:
    """Compare times of day; a time without am or pm equals either."""
    left, right = _time_of_day(answer), _time_of_day(reference)
    if left is None or right is None:
        return Comparison(False, "structure", "a time of day is compared with something else")
    same = left.seconds == right.seconds
    if not same and "" in (left.half, right.half):
        unmarked = left if not left.half else right
        marked = right if unmarked is left else left
        early = unmarked.seconds < 13 * 3600 and marked.half != ""
        same = early and left.seconds % HALF_DAY_S == right.seconds % HALF_DAY_S
    return Comparison(same, "exact", "the same time" if same else "another time")


def _time_of_day(node: Node) -> Clock | None:
    if isinstance(node, Clock):
        return node
    if isinstance(node, Number) and node.text.isdigit() and len(node.text) <= 2 and int(node.text) <= 24:
        return Clock(int(node.text) * 3600, "")
    if isinstance(node, Ratio) and 2 <= len(node.items) <= 3 and all(isinstance(item, Number) for item in node.items):
        parts = [item.text for item in node.items if isinstance(item, Number)]
        if all(part.isdigit() and len(part) <= 2 for part in parts) and all(len(part) == 2 for part in parts[1:]):
            hours, minutes, seconds = (*map(int, parts), 0)[:3]
            return Clock(3600 * hours + 60 * minutes + seconds, "") if hours <= 24 and minutes < 60 else None
    return None
