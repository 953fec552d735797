"""`graders audit` and `graders label-audit`: find references that the math grader cannot read, and labels that differ.

Both print every finding and return 1 if there is any.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from graders.builtin.answer_reader import read_reference
from graders.builtin.math import MathGrader
from graders.cli.pool_options import FOUND_FAILURE, OK, pool_of
from graders.cli.rows import read_rows
from graders.errors import BadInput, BadReference
from graders.parsing.tree import Text
from graders.verdict import Verdict


class ReferenceRow(msgspec.Struct, frozen=True):
    """One row of a data set: an id, and the reference under one of three names; other fields are ignored."""

    id: str | int = ""
    answer: str | None = None
    gold: str | None = None
    reference: str | None = None


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reference that needs attention.

    Args:
        place: its id or row number.
        reference: its text.
        kind: `unreadable`, `unequal` (not graded as equal to itself) or `words` (mathematics read as words).
        detail: the reason.
    """

    place: str
    reference: str
    kind: str
    detail: str


class Labelled(msgspec.Struct, frozen=True):
    """One row of a labelled file; `label` is True for a correct response; other fields are ignored."""

    response: str
    gold: str
    label: bool | None
    id: str = ""
    question: str | None = None


class Agreement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Agreement between verdicts and labels.

    Args:
        counts: number of rows by (label, verdict): `true_correct`, `true_incorrect`, `false_correct`,
            `false_incorrect`, and `unlabelled`.
        disagreements: (id, label, status, detail) of every row on which they differ.
    """

    counts: dict[str, int]
    disagreements: tuple[tuple[str, bool, str, str], ...]


def audit(options: argparse.Namespace) -> int:
    """List the references of a file that the math grader cannot read."""
    pairs: list[tuple[str, str]] = []
    for number, row in enumerate(read_rows(options.file, ReferenceRow), start=1):
        text = next((text for text in (row.answer, row.gold, row.reference) if text is not None), None)
        if text is None:
            raise BadInput(f"{options.file} row {number}: expected one of answer, gold, reference, got none")
        pairs.append((str(row.id) or f"row {number}", text))
    faults = audit_references(pairs)
    for fault in faults:
        print(f"{fault.place}: {fault.kind}: {fault.reference!r}: {fault.detail}")
    print(f"{len(pairs)} references, {len(faults)} to check")
    return FOUND_FAILURE if faults else OK


def label_audit(options: argparse.Namespace) -> int:
    """Print a confusion table of verdicts and labels, and every disagreement."""
    rows = list(read_rows(options.file, Labelled))
    with pool_of(options) as pool:
        found = audit_labels(rows, pool.grade([(row.response, row.gold, row.question) for row in rows]))
    for label in ("true", "false"):
        right, wrong = found.counts[f"{label}_correct"], found.counts[f"{label}_incorrect"]
        print(f"label {label:5}  correct {right:6}  incorrect {wrong:6}")
    for place, label, status, detail in found.disagreements:
        print(f"{place}: label {str(label).lower()}, graded {status}: {detail}")
    return FOUND_FAILURE if found.disagreements else OK


def audit_references(references: Iterable[tuple[str, str]]) -> list[Fault]:
    """Return the faults of (place, reference) pairs, in their order."""
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


def audit_labels(rows: Sequence[Labelled], verdicts: Sequence[Verdict]) -> Agreement:
    """Compare labels with the verdicts on the same rows, in the same order.

    Raises:
        BadInput: the number of verdicts differs from the number of rows.
    """
    if len(rows) != len(verdicts):
        raise BadInput(f"label audit: expected one verdict for each of {len(rows)} rows, got {len(verdicts)}")
    counts = Counter({f"{label}_{graded}": 0 for label in ("true", "false") for graded in ("correct", "incorrect")})
    disagreements: list[tuple[str, bool, str, str]] = []
    for row, verdict in zip(rows, verdicts, strict=True):
        if row.label is None:
            counts["unlabelled"] += 1
            continue
        counts[f"{str(row.label).lower()}_{'correct' if verdict.correct else 'incorrect'}"] += 1
        if verdict.correct != row.label:
            disagreements.append((row.id, row.label, verdict.status.value, verdict.detail))
    return Agreement(dict(counts), tuple(disagreements))
