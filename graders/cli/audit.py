"""Data sets under the eye of the math grader: references that it cannot read, labels that it does not share."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from graders.builtin.answer_reader import read_reference
from graders.builtin.math import MathGrader
from graders.errors import BadInput, BadReference
from graders.parsing.tree import Text
from graders.verdict import Verdict


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reference worth a look.

    Args:
        place: where it stands, such as an id or a line number.
        reference: its text.
        kind: `unreadable`, `unequal` (it is not graded as equal to itself) or `words` (mathematics read as words).
        detail: the reason.
    """

    place: str
    reference: str
    kind: str
    detail: str


def audit_references(references: Iterable[tuple[str, str]]) -> list[Fault]:
    """The faults of (place, reference) pairs, in their order."""
    grader = MathGrader()
    return [fault for place, text in references if (fault := _fault(place, text, grader)) is not None]


def _fault(place: str, text: str, grader: MathGrader) -> Fault | None:
    try:
        nodes = read_reference(text)
    except BadReference as error:
        return Fault(place, text, "unreadable", str(error))
    if any(isinstance(node, Text) and ("\\" in text or "=" in text) and " " in node.text for node in nodes):
        return Fault(place, text, "words", "read as words, so only the same words are right")
    verdict = grader.grade(f"\\boxed{{{text}}}", text)
    if "\\boxed" not in text and "####" not in text and len(nodes) == 1 and not verdict.correct:
        return Fault(place, text, "unequal", f"graded {verdict.status} against itself: {verdict.detail}")
    return None


class Labelled(msgspec.Struct, frozen=True):
    """A completion with its reference and whether a person holds it right; other fields of a row are ignored."""

    response: str
    gold: str
    label: bool | None
    id: str = ""
    question: str | None = None


class Agreement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How verdicts compare with labels.

    Args:
        counts: number of rows by (label, verdict): `true_correct`, `true_incorrect`, `false_correct`,
            `false_incorrect`, and `unlabelled`.
        disagreements: (id, label, status, detail) of every row on which they differ.
    """

    counts: dict[str, int]
    disagreements: tuple[tuple[str, bool, str, str], ...]


def audit_labels(rows: Sequence[Labelled], verdicts: Sequence[Verdict]) -> Agreement:
    """Compare labels with the verdicts on the same rows, in the same order.

    Raises:
        BadInput: there are not as many verdicts as rows.
    """
    if len(rows) != len(verdicts):
        raise BadInput(f"label audit: expected a verdict for each of {len(rows)} rows, got {len(verdicts)}")
    counts = Counter({f"{label}_{said}": 0 for label in ("true", "false") for said in ("correct", "incorrect")})
    different: list[tuple[str, bool, str, str]] = []
    for row, verdict in zip(rows, verdicts, strict=True):
        if row.label is None:
            counts["unlabelled"] += 1
            continue
        counts[f"{str(row.label).lower()}_{'correct' if verdict.correct else 'incorrect'}"] += 1
        if verdict.correct != row.label:
            different.append((row.id, row.label, verdict.status.value, verdict.detail))
    return Agreement(dict(counts), tuple(different))
