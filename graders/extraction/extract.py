r"""Where a completion states its final answer: one rule, one span, or the reason why there is none.

In this order, after any thinking section has been set aside:

    1. boxed      the last complete `\boxed{...}`; boxes joined by a comma, "and" or "or" are one list
    2. marker     the last `<answer>`, `####`, "the answer is", "Answer:" or the like
    3. final_line the value that ends the last sentence, if there is exactly one

A rule never looks at the reference, so no completion can be right by listing what might be.
"""

import re

import msgspec

from graders.extraction.boxes import BOX_COMMANDS, last_boxes
from graders.extraction.markers import final_line, last_marker, trim

_THINK_OPEN = ("<think>", "<thinking>")
_THINK_CLOSE = ("</think>", "</thinking>")
_SPECIAL_END = re.compile(r"(?:<\|[^<>|]{1,40}\|>|</s>|<eos>|<end_of_turn>)\s*\Z")


class ExtractionPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What counts as stating a final answer.

    Args:
        boxed: whether `\\boxed{...}` and `\\fbox{...}` are read.
        markers: whether `####`, `<answer>` and "the answer is" are read where there is no box.
        final_line: whether the last sentence is read where there is neither.
        tail_chars: characters from the end in which a marker is looked for.
        max_answer_chars: a longer answer is no answer (`too_long`).
    """

    boxed: bool = True
    markers: bool = True
    final_line: bool = True
    tail_chars: int = 4_000
    max_answer_chars: int = 20_000


class Extraction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The span `completion[start:end]` that states the answer.

    Args:
        answer: the text of the span (for a list of boxes: their contents joined by commas); None where there is none.
        start: first character of the span.
        end: one past its last character.
        rule: `boxed`, `marker`, `final_line` or `none`.
        reason: empty where there is an answer; else `no_answer`, `empty`, `ambiguous`, `unclosed` or `too_long`.
    """

    answer: str | None
    start: int
    end: int
    rule: str
    reason: str


DEFAULT_POLICY = ExtractionPolicy()


def extract(completion: str, *, question: str | None = None, policy: ExtractionPolicy = DEFAULT_POLICY) -> Extraction:
    """The final answer that `completion` states, by the rules above; linear in its length.

    Args:
        completion: what the model wrote, thinking included.
        question: the problem text; a box that stands in it word for word is a quotation, not an answer.
        policy: which rules apply.
    """
    start, end = _answer_region(completion)
    if policy.boxed and any(command in completion for command in BOX_COMMANDS):
        found = _from_boxes(completion, start, end, question)
        if found is not None:
            return _bounded(found, policy)
    if policy.markers:
        span = last_marker(completion, max(start, end - policy.tail_chars), end)
        if span is not None:
            reason = "" if span[0] < span[1] else "empty"
            return _bounded(_span(completion, span, "marker", reason), policy)
    if policy.final_line:
        span, reason = final_line(completion, max(start, end - policy.tail_chars), end)
        if span is not None:
            return _bounded(_span(completion, span, "final_line", ""), policy)
        return Extraction(None, end, end, "none", reason)
    return Extraction(None, end, end, "none", "no_answer")


def _answer_region(completion: str) -> tuple[int, int]:
    """The part after the last closed thinking section and before one that was left open."""
    start, end = 0, len(completion)
    if "think" in completion:
        start = max((completion.rfind(tag) + len(tag) for tag in _THINK_CLOSE if tag in completion), default=0)
        opened = [at for tag in _THINK_OPEN if (at := completion.find(tag, start)) >= 0]
        end = min(opened, default=end)
    while special := _SPECIAL_END.search(completion, max(start, end - 64), end):
        end = special.start()
    return start, end


def _from_boxes(completion: str, start: int, end: int, question: str | None) -> Extraction | None:
    """The last box, or the boxes listed with it; None where the search should go on to markers."""
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


def _span(completion: str, span: tuple[int, int], rule: str, reason: str) -> Extraction:
    answer = None if reason else completion[span[0] : span[1]]
    return Extraction(answer, *span, rule, reason)


def _bounded(found: Extraction, policy: ExtractionPolicy) -> Extraction:
    if found.answer is not None and len(found.answer) > policy.max_answer_chars:
        return Extraction(None, found.start, found.end, found.rule, "too_long")
    return found
