"""The commands `graders audit` and `graders label-audit`."""

import argparse

import msgspec

from graders.errors import BadInput


class ReferenceRow(msgspec.Struct, frozen=True):
    """A row of a data set: its reference under one of three names, and an id; other fields are ignored."""

    id: str | int = ""
    answer: str | None = None
    gold: str | None = None
    reference: str | None = None


def audit(options: argparse.Namespace) -> int:
    """List the references of a file that the math grader cannot read; 1 where there are any."""
    from graders.cli.audit import audit_references
    from graders.cli.entry_point import FOUND_FAILURE, OK, read_rows

    pairs: list[tuple[str, str]] = []
    for number, row in enumerate(read_rows(options.file, ReferenceRow), start=1):
        text = next((text for text in (row.answer, row.gold, row.reference) if text is not None), None)
        if text is None:
            raise BadInput(f"{options.file} row {number}: expected one of answer, gold, reference, got none")
        pairs.append((str(row.id) or f"row {number}", text))
    faults = audit_references(pairs)
    for fault in faults:
        print(f"{fault.place}: {fault.kind}: {fault.reference!r}: {fault.detail}")
    print(f"{len(pairs)} references, {len(faults)} to look at")
    return FOUND_FAILURE if faults else OK


def label_audit(options: argparse.Namespace) -> int:
    """Compare verdicts with labels: a confusion table and every disagreement; 1 where there are any."""
    from graders.cli.audit import Labelled, audit_labels
    from graders.cli.entry_point import FOUND_FAILURE, OK, pool_of, read_rows

    rows = read_rows(options.file, Labelled)
    with pool_of(options) as pool:
        found = audit_labels(rows, pool.grade([(row.response, row.gold, row.question) for row in rows]))
    for label in ("true", "false"):
        right, wrong = found.counts[f"{label}_correct"], found.counts[f"{label}_incorrect"]
        print(f"label {label:5}  correct {right:6}  incorrect {wrong:6}")
    for place, label, status, detail in found.disagreements:
        print(f"{place}: label {str(label).lower()}, graded {status}: {detail}")
    return FOUND_FAILURE if found.disagreements else OK
