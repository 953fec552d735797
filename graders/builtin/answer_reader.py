"""Answer reader: completions and references to trees.

A completion is read without its reference, in a process that may parse hostile text and has nothing to leak.
"""

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
    """The final answer of a completion, before it is compared with a reference.

    Args:
        answer: the answer span of the completion; None if there is no answer.
        node: its tree; None if there is no answer or it was not parsed.
        rule: the extraction rule that found it.
        failure: `no_answer`, `unparsable` or `over_budget`; None if reading succeeded.
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
    "ambiguous": "the last sentence does not end in exactly one value",
    "unclosed": "the box is cut off before it closes",
}


def read_answer(completion: str, *, question: str | None = None, policy: ExtractionPolicy = DEFAULT_POLICY) -> Reading:
    """Extract the final answer of a completion and parse it."""
    return read_extraction(extract(completion, question=question, policy=policy))


def read_text(completion: str, *, question: str | None = None, policy: ExtractionPolicy = DEFAULT_POLICY) -> Reading:
    """Extract the final answer of a completion without parsing it."""
    found = extract(completion, question=question, policy=policy)
    return _missing(found) if found.answer is None else Reading(found.answer, None, found.rule, None, "")


def _missing(found: Extraction) -> Reading:
    if found.reason == "too_long":
        return Reading(None, None, found.rule, Status.OVER_BUDGET, "the answer exceeds the maximum length")
    return Reading(None, None, found.rule, Status.NO_ANSWER, _NO_ANSWER[found.reason])


def read_extraction(found: Extraction) -> Reading:
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
    """Return the accepted answers: the reference itself, or each string of a JSON list such as `["1/2", "0.5"]`."""
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
    """Return the trees of the answers that a reference accepts.

    `{"from": "9.7", "to": "9.9"}` accepts every value of that range, ends included. A reference that is a whole
    solution (it contains a box, or GSM8K's `####`) is read like a completion.

    Raises:
        BadReference: an accepted form is empty, too long, or cannot be parsed.
    """
    if len(reference) > MAX_REFERENCE_CHARS:
        raise BadReference(f"reference: expected at most {MAX_REFERENCE_CHARS} characters, got {len(reference)}")
    interval = _range(reference)
    if interval is not None:
        return (interval,)
    return tuple(_read_form(form) for form in accepted_forms(reference))


def _range(reference: str) -> Node | None:
    """Return the range of a JSON object, or None if the reference is not a JSON object."""
    text = reference.strip()
    if not text.startswith('{"'):
        return None
    try:
        ends = msgspec.json.decode(text, type=_Range)
    except msgspec.MsgspecError as error:
        raise BadReference(
            f'reference {text[:80]!r}: expected {{"from": ..., "to": ...}}, got another object: {error}'
        ) from error
    low, high = _read_end(str(ends.low)), _read_end(str(ends.high))
    node = Apply(WITHIN, (low, high))
    if not (compare(low, node).equal and compare(high, node).equal):
        raise BadReference(f"reference {text[:80]!r}: expected a range whose end is not below its start, in one unit")
    return node


def _read_end(text: str) -> Node:
    node = _read_form(text)
    node = names_as_unit(node) or node
    if float_value(node.value if isinstance(node, Quantity) else node) is None:
        raise BadReference(f"reference: expected a number as the end of a range, got {text[:80]!r}")
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
            f"reference {form[:80]!r}: expected an answer that can be parsed, got {error}; correct or drop the problem"
        ) from error
    return node
