"""Answers in words, option letters and times of day."""

import re

from graders.equivalence.canonical.canonicalize import as_choice_name, is_collection
from graders.equivalence.compare.comparison import Compare, Comparison
from graders.equivalence.compare.real_sets import REALS, compare_solutions
from graders.parsing.text import canonical_text
from graders.parsing.tree import Apply, Choice, Clock, Name, Node, Number, Ratio, Set, Text
from graders.parsing.words import SPECIAL_TEXTS

HALF_DAY_S = 12 * 3600


def compare_choices(answer: Node, reference: Node, compare: Compare) -> Comparison:
    """Option letters by letter; the text of an option where the other side gives only that."""
    if isinstance(answer, Choice) and isinstance(reference, Choice):
        same = answer.letter == reference.letter
        return Comparison(same, "text", f"option {answer.letter} against {reference.letter}")
    if isinstance(reference, Choice):
        if isinstance(answer, Name) and len(answer.text) == 1:
            same = answer.text.upper() == reference.letter
            return Comparison(same, "text", f"option {answer.text} against {reference.letter}")
        if isinstance(answer, Text) and (option := _option_in(answer.text)) is not None:
            return Comparison(option == reference.letter, "text", f"option {option} against {reference.letter}")
        if reference.content is not None:
            return compare(answer, reference.content)
        return Comparison(False, "structure", "the reference is an option letter")
    assert isinstance(answer, Choice)
    if answer.content is not None:
        return compare(answer.content, reference)
    if is_collection(reference):
        return Comparison(False, "structure", "one letter against several values")
    return compare(as_choice_name(answer), reference)


def _option_in(text: str) -> str | None:
    """The letter in "option b" and the like."""
    match = re.fullmatch(r"(?:option|choice|answer|statement) ([a-z])", text)
    return match[1].upper() if match else None


def compare_texts(answer: Node, reference: Node) -> Comparison:
    """Words by canonical text, with the named answers ("no solution", "undefined", "all real numbers") by meaning."""
    left, right = _meaning(answer), _meaning(reference)
    if left is not None and right is not None:
        same = left == right or left.replace(" ", "") == right.replace(" ", "")
        return Comparison(same, "text", "the same words" if same else f"{left[:60]!r} is not {right[:60]!r}")
    for meaning, node in ((left, reference), (right, answer)):
        if meaning == "all real numbers":
            found = compare_solutions(REALS, node)
            if found is not None:
                return found
    return Comparison(False, "text", "words against mathematics")


def _meaning(node: Node) -> str | None:
    """The canonical words of a node, or None where it is mathematics."""
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


def compare_clocks(answer: Node, reference: Node) -> Comparison:
    """Times of day: a half of the day that is not said agrees with either, one that is said must be the same."""
    left, right = _clock(answer), _clock(reference)
    if left is None or right is None:
        return Comparison(False, "structure", "a time of day against something else")
    same = left.seconds == right.seconds
    if not same and "" in (left.half, right.half):
        unmarked = left if not left.half else right
        marked = right if unmarked is left else left
        early = unmarked.seconds < 13 * 3600 and marked.half != ""
        same = early and left.seconds % HALF_DAY_S == right.seconds % HALF_DAY_S
    return Comparison(same, "exact", "the same time" if same else "another time")


def _clock(node: Node) -> Clock | None:
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
