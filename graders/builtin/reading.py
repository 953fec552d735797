"""A completion read without its reference: the half of grading that sees hostile text and knows nothing to leak."""

import json
from functools import lru_cache

import msgspec

from graders.equivalence import compare
from graders.equivalence.arithmetic.sample_points import float_value
from graders.equivalence.compare.dispatch import WITHIN
from graders.equivalence.compare.quantities import names_as_unit
from graders.errors import BadInput, BadReference
from graders.extraction.extract import DEFAULT_POLICY, Extraction, ExtractionPolicy, extract
from graders.parsing.parse import ParseError, parse
from graders.parsing.tree import Apply, Node, Quantity, check_tree
from graders.verdict import Status

MAX_REFERENCE_CHARS = 20_000


class Reading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a completion states, before anyone says whether it is right.

    Args:
        answer: the span as it stands in the completion; None where there is none.
        node: its tree; None where there is no answer or it cannot be read.
        rule: the extraction rule that found it.
        failure: `no_answer`, `unparsable` or `over_budget`; None where `node` is given.
        detail: the reason of a failure, else the empty string.
    """

    answer: str | None
    node: Node | None
    rule: str
    failure: Status | None
    detail: str


class _Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    low: str | int | float = msgspec.field(name="from")
    high: str | int | float = msgspec.field(name="to")


_NO_ANSWER = {
    "no_answer": "the completion states no final answer",
    "empty": "the answer is empty",
    "ambiguous": "the last sentence does not single out one value",
    "unclosed": "the box is cut off before it closes",
}


def read_answer(completion: str, *, question: str | None = None, policy: ExtractionPolicy = DEFAULT_POLICY) -> Reading:
    """Extract the final answer and parse it."""
    return reading_of(extract(completion, question=question, policy=policy))


def read_text(completion: str, *, question: str | None = None, policy: ExtractionPolicy = DEFAULT_POLICY) -> Reading:
    """Extract the final answer and leave it as text."""
    found = extract(completion, question=question, policy=policy)
    return _missing(found) if found.answer is None else Reading(found.answer, None, found.rule, None, "")


def _missing(found: Extraction) -> Reading:
    if found.reason == "too_long":
        return Reading(None, None, found.rule, Status.OVER_BUDGET, "the answer is longer than any answer may be")
    return Reading(None, None, found.rule, Status.NO_ANSWER, _NO_ANSWER[found.reason])


def reading_of(found: Extraction) -> Reading:
    """Parse an extracted answer."""
    if found.answer is None:
        return _missing(found)
    try:
        node = parse(found.answer)
        check_tree(node)
    except ParseError as error:
        return Reading(found.answer, None, found.rule, Status.UNPARSABLE, str(error))
    except BadInput as error:
        return Reading(found.answer, None, found.rule, Status.OVER_BUDGET, str(error))
    return Reading(found.answer, node, found.rule, None, "")


def accepted_forms(reference: str) -> tuple[str, ...]:
    """The accepted answers of a reference: itself, or each string of a JSON list such as `["1/2", "0.5"]`."""
    text = reference.strip()
    if text.startswith('["') and text.endswith("]"):
        try:
            forms = json.loads(text)
        except ValueError:
            return (reference,)
        if forms and all(isinstance(form, str) for form in forms):
            return tuple(forms)
    return (reference,)


@lru_cache(maxsize=4096)
def read_reference(reference: str) -> tuple[Node, ...]:
    """The trees that a reference accepts.

    `{"from": "9.7", "to": "9.9"}` accepts every value from the one to the other, ends included. A reference that is a
    whole solution (it holds a box, or GSM8K's `####`) is read as a completion is.

    Raises:
        BadReference: an accepted form is empty, too long, or cannot be read.
    """
    if len(reference) > MAX_REFERENCE_CHARS:
        raise BadReference(f"reference: expected at most {MAX_REFERENCE_CHARS} characters, got {len(reference)}")
    stated = _stated_range(reference)
    if stated is not None:
        return (stated,)
    return tuple(_read_form(form) for form in accepted_forms(reference))


def _stated_range(reference: str) -> Node | None:
    """The range that a JSON object states; None where the reference is no JSON object."""
    text = reference.strip()
    if not text.startswith('{"'):
        return None
    try:
        ends = msgspec.json.decode(text, type=_Range)
    except msgspec.MsgspecError as error:
        raise BadReference(
            f'reference {text[:80]!r}: expected {{"from": ..., "to": ...}}, got an object of another kind: {error}'
        ) from error
    low, high = _read_end(str(ends.low)), _read_end(str(ends.high))
    node = Apply(WITHIN, (low, high))
    if not (compare(low, node).equal and compare(high, node).equal):
        raise BadReference(f"reference {text[:80]!r}: expected a range from a value to one no smaller in its unit")
    return node


def _read_end(text: str) -> Node:
    node = _read_form(text)
    node = names_as_unit(node) or node
    if float_value(node.value if isinstance(node, Quantity) else node) is None:
        raise BadReference(f"reference: expected an end of a range that is a number, got {text[:80]!r}")
    return node


def _read_form(form: str) -> Node:
    text: str | None = form
    if "\\boxed" in form or "####" in form:
        text = extract(form, policy=ExtractionPolicy(final_line=False)).answer
    if text is None or not text.strip():
        raise BadReference(f"reference {form[:80]!r}: expected an answer, got none; correct or drop the problem")
    try:
        node = parse(text)
        check_tree(node)
    except (ParseError, BadInput) as error:
        raise BadReference(
            f"reference {form[:80]!r}: expected an answer that can be read, got {error}; correct or drop the problem"
        ) from error
    return node
