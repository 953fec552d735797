r"""Answer extraction: finds where a completion states its final answer.

After the thinking section is removed, the first rule that applies decides:

    1. boxed       the last complete `\boxed{...}`; boxes joined by a comma, "and" or "or" are one list
    2. marker      the last `<answer>`, `####`, "the answer is", "Answer:" or similar
    3. final_line  the value that ends the last sentence, if there is exactly one

An empty box states no answer, unless a marker follows it; an unclosed box states none, unless there is a marker. No
rule sees the reference, so a completion cannot be correct by listing candidates.
"""

import re

import msgspec

from graders.extraction.boxes import BOX_COMMANDS, last_boxes
from graders.extraction.markers import final_line, last_marker, trim

_THINK_OPEN = ("<think>", "<thinking>")
_THINK_CLOSE = ("</think>", "</thinking>")
_SPECIAL_END = re.compile(r"(?:<\|[^<>|]{1,40}\|>|</s>|<eos>|<end_of_turn>)\s*\Z")


class ExtractionPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules of extraction that apply, and their bounds.

    Args:
        boxed: apply the rule `boxed`.
        markers: apply the rule `marker`.
        final_line: apply the rule `final_line`.
        tail_chars: length of the end of the completion that is searched by the rules `marker` and `final_line`.
        max_answer_chars: maximum length of an answer; a longer one is rejected as `too_long`.
    """

    boxed: bool = True
    markers: bool = True
    final_line: bool = True
    tail_chars: int = 4_000
    max_answer_chars: int = 20_000


class Extraction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The span `completion[start:end]` that states the answer.

    Args:
        answer: the text of the span (for a list of boxes, their contents joined by commas); None if there is no answer.
        start: first character of the span.
        end: one past its last character.
        rule: `boxed`, `marker`, `final_line` or `none`.
        reason: empty if there is an answer; else `no_answer`, `empty`, `ambiguous`, `unclosed` or `too_long`.
    """

    answer: str | None
    start: int
    end: int
    rule: str
    reason: str


DEFAULT_POLICY = ExtractionPolicy()


def extract(completion: str, *, question: str | None = None, policy: ExtractionPolicy = DEFAULT_POLICY) -> Extraction:
    """Extract the final answer of a completion by the rules above, in time linear in its length.

    Args:
        completion: the text of the model, thinking included.
        question: the problem text; a box copied from it is a quotation, not an answer.
        policy: the rules that apply.
    """
    start, end = _answer_region(completion)
    tail = max(start, end - policy.tail_chars)
    found: Extraction | None = None
    if policy.boxed and any(command in completion for command in BOX_COMMANDS):
        found = _from_boxes(completion, start, end, question)
    if found is None and policy.markers:
        found = _from_marker(completion, tail, end)
    if found is None and policy.final_line:
        found = _from_final_line(completion, tail, end)
    if found is None:
        return Extraction(None, end, end, "none", "no_answer")
    if found.answer is not None and len(found.answer) > policy.max_answer_chars:
        return Extraction(None, found.start, found.end, found.rule, "too_long")
    return found


def _answer_region(completion: str) -> tuple[int, int]:
    """Return the part after the last closed thinking section and before an unclosed one, without special tokens."""
    start, end = 0, len(completion)
    if "think" in completion:
        start = max((completion.rfind(tag) + len(tag) for tag in _THINK_CLOSE if tag in completion), default=0)
        opened = [at for tag in _THINK_OPEN if (at := completion.find(tag, start)) >= 0]
        end = min(opened, default=end)
    while special := _SPECIAL_END.search(completion, max(start, end - 64), end):
        end = special.start()
    return start, end


def _from_boxes(completion: str, start: int, end: int, question: str | None) -> Extraction | None:
    """Apply the rule `boxed`; return None if the next rule applies."""
    boxes, unclosed = last_boxes(completion, start, end, question)
    if boxes:
        spans = [trim(completion, *box) for box in boxes]
        contents = list(dict.fromkeys(completion[low:high] for low, high in spans))
        if any(contents):
            return Extraction(", ".join(contents), spans[0][0], spans[-1][1], "boxed", "")
        later = last_marker(completion, boxes[-1][1], end)
        if later is not None and later[0] < later[1]:
            return None
        return Extraction(None, *spans[0], "boxed", "empty")
    if unclosed is not None and last_marker(completion, start, end) is None:
        return Extraction(None, unclosed, end, "none", "unclosed")
    return None


def _from_marker(completion: str, start: int, end: int) -> Extraction | None:
    """Apply the rule `marker`; return None if there is no marker."""
    span = last_marker(completion, start, end)
    if span is None:
        return None
    low, high = span
    return Extraction(completion[low:high] or None, low, high, "marker", "" if low < high else "empty")


def _from_final_line(completion: str, start: int, end: int) -> Extraction:
    """Apply the rule `final_line`."""
    span, reason = final_line(completion, start, end)
    if span is None:
        return Extraction(None, end, end, "none", reason)
    return Extraction(completion[span[0] : span[1]], *span, "final_line", "")
