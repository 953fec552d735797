"""What is to be graded: items as callers give them, checked and made whole."""

from collections.abc import Callable, Sequence
from typing import Any

from graders.errors import BadGrader, BadInput
from graders.sandbox.diagnostics import describe, kind_of
from graders.sandbox.host.worker_group import Item
from graders.verdict import Status, Verdict


def with_shown(
    items: list[Item], shown: Callable[[str, str | None], Any], name: str
) -> tuple[list[Item], dict[int, Verdict]]:
    """Give the items with what a reading half may see of the reference as their question, and where that failed.

    Args:
        items: what is to be graded.
        shown: the grader's own method, which runs in this process.
        name: the grader's name, for the verdicts.
    """
    asked: list[Item] = []
    failed: dict[int, Verdict] = {}
    for k, (completion, reference, question) in enumerate(items):
        try:
            text = shown(reference, question)
            if type(text) is not str and text is not None:
                raise BadGrader(f"grader {name!r}: expected a str of shown(), got {kind_of(text)}")
            asked.append((completion, reference, None if text is None else encodable(text)))
        except Exception as error:  # noqa: BLE001  a grader's code: whatever it raises is a verdict
            asked.append((completion, reference, None))
            failed[k] = Verdict(Status.ERROR, None, name, "exception", describe(error), 0.0)
    return asked, failed


def checked_item(item: Sequence[str | None], number: int) -> Item:
    """Give an item whole, its texts plain and encodable.

    Raises:
        BadInput: it is of another shape; names it by number.
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
    return encodable(completion), encodable(reference), None if question is None else encodable(question)


def encodable(text: str) -> str:
    """Give a plain text, with U+FFFD for lone surrogates, which no encoding can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text if type(text) is str else str.__str__(text)  # numpy and enums have texts of their own
