"""Items to grade: validation of the caller's tuples, and the text that a reading half may see."""

from collections.abc import Callable, Sequence
from typing import Any

from graders.errors import BadGrader, BadInput
from graders.sandbox.diagnostics import describe, type_name
from graders.verdict import Status, Verdict

Item = tuple[str, str, str | None]
"""(completion, reference, question)"""


def apply_shown(
    items: list[Item], shown: Callable[[str, str | None], Any], name: str
) -> tuple[list[Item], dict[int, Verdict]]:
    """Replace each question by the text that the grader shows to its reading half.

    Args:
        items: the items to grade.
        shown: the grader's method `shown(reference, question)`; it runs in this process.
        name: the grader's name, for the verdicts.

    Returns:
        The items with their new questions, and an error verdict by index for each item where `shown` failed.
    """
    shown_items: list[Item] = []
    failed: dict[int, Verdict] = {}
    for index, (completion, reference, question) in enumerate(items):
        try:
            text = shown(reference, question)
            if type(text) is not str and text is not None:
                raise BadGrader(f"grader {name!r}: expected shown() to return a str or None, got {type_name(text)}")
            shown_items.append((completion, reference, None if text is None else replace_surrogates(text)))
        except Exception as error:  # noqa: BLE001  code of the grader: any exception becomes a verdict
            shown_items.append((completion, reference, None))
            failed[index] = Verdict(Status.ERROR, None, name, "exception", describe(error), 0.0)
    return shown_items, failed


def validate_item(item: Sequence[str | None], number: int) -> Item:
    """Return an item as three plain, encodable texts.

    Raises:
        BadInput: the item has another shape; the message contains its number.
    """
    if not isinstance(item, Sequence) or isinstance(item, str | bytes) or not 2 <= len(item) <= 3:
        raise BadInput(
            f"item {number}: expected (completion, reference) or (completion, reference, question), got {item!r:.80}"
        )
    completion, reference, question = (*item, None)[:3]
    if not isinstance(completion, str) or not isinstance(reference, str) or not isinstance(question, str | None):
        raise BadInput(
            f"item {number}: expected texts, got {type(completion).__name__}, {type(reference).__name__} "
            f"and {type(question).__name__}"
        )
    return (
        replace_surrogates(completion),
        replace_surrogates(reference),
        None if question is None else replace_surrogates(question),
    )


def replace_surrogates(text: str) -> str:
    """Return a plain str in which U+FFFD replaces lone surrogates, which no encoding can represent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text if type(text) is str else str.__str__(text)  # subclasses such as numpy.str_ and str enums
