"""Measure the math grader: agreement with labels, self-consistency on benchmark references, and speed.

    scripts/bench_grading.py --labels FILE.jsonl --golds FILE.jsonl ... [--peer math-verify] [--show N]

A label file has `response` (or `gen` = {pre, unit, n, post}), `gold`, `label` and optionally `question`, `id`, `kind`;
a gold file has `answer`. Each answer must parse, equal itself, and differ from perturbed copies.
"""

import argparse
import json
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from graders.builtin.answer_reader import read_reference
from graders.builtin.math import MathGrader
from graders.errors import BadReference

Row = dict[str, Any]
Grade = Callable[[str, str, str | None], bool]


def main(arguments: list[str] | None = None) -> int:
    """Run the requested measurements and return 1 if a reference answer fails, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--labels", type=Path, nargs="*", default=[], help="labelled completions")
    parser.add_argument("--golds", type=Path, nargs="*", default=[], help="benchmark files")
    parser.add_argument("--peer", choices=["math-verify"], help="also measure this grader (must be installed)")
    parser.add_argument("--show", type=int, default=20, help="disagreements to list")
    options = parser.parse_args(arguments)
    grader = MathGrader()
    for path in options.labels:
        rows = [row for row in read_rows(path) if row.get("label") is not None]
        report_agreement("math", rows, math_grader(grader), options.show)
        if options.peer:
            report_agreement(options.peer, rows, math_verify(), 0)
    failures = sum(report_golds(path, grader, options.show) for path in options.golds)
    return 1 if failures else 0


def read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def response(row: Row) -> str:
    if row.get("gen"):
        made = row["gen"]
        return made["pre"] + made["unit"] * int(made["n"]) + made["post"]
    return row["response"]


def math_grader(grader: MathGrader) -> Grade:
    def grade(completion: str, reference: str, question: str | None) -> bool:
        try:
            return grader.grade(completion, reference, question=question).correct
        except BadReference:
            return False

    return grade


def math_verify() -> Grade:
    """Return Math-Verify, called as its documentation recommends."""
    from math_verify import parse, verify  # type: ignore[import-not-found]

    def grade(completion: str, reference: str, question: str | None) -> bool:
        return bool(verify(parse(f"${reference}$"), parse(completion)))

    return grade


def report_agreement(name: str, rows: Iterable[Row], grade: Grade, show: int) -> None:
    """Print the confusion table by kind of case, the disagreements, and the speed."""
    table: Counter[tuple[str, bool, bool]] = Counter()
    seconds: list[float] = []
    for row in rows:
        text = response(row)
        start = time.perf_counter()
        is_correct = grade(text, row["gold"], row.get("question"))
        seconds.append(time.perf_counter() - start)
        table[(str(row.get("id", ""))[:2], row["label"], is_correct)] += 1
        if is_correct != row["label"] and show > 0:
            show -= 1
            shown = text if len(text) < 90 else f"...{text[-90:]}"
            print(f"  {row.get('id')}: label {row['label']}, gold {row['gold'][:80]!r}, response {shown!r}")
    total, right = sum(table.values()), sum(n for (_, label, graded), n in table.items() if label == graded)
    wrong_pass = sum(n for (_, label, graded), n in table.items() if graded and not label)
    print(f"{name}: {right}/{total} agree ({100 * right / max(total, 1):.2f} %), {wrong_pass} false positives")
    for kind in sorted({key[0] for key in table}):
        cells = {(label, graded): n for (k, label, graded), n in table.items() if k == kind}
        print(f"  {kind}: " + ", ".join(f"label {a} graded {b}: {n}" for (a, b), n in sorted(cells.items())))
    seconds.sort()
    print(
        f"  {len(seconds) / sum(seconds):.0f} answers/s, median {statistics.median(seconds) * 1e6:.0f} us, "
        f"99th percentile {seconds[int(0.99 * (len(seconds) - 1))] * 1e3:.2f} ms, longest {seconds[-1] * 1e3:.1f} ms"
    )


def perturbed(gold: str) -> list[str]:
    """Return changed copies of a reference answer: another digit, another letter, or an added sign."""
    copies = []
    digit = re.search(r"\d(?=\D*\Z)", gold)
    if digit is not None:
        copies.append(gold[: digit.start()] + str((int(digit.group()) + 1) % 10) + gold[digit.end() :])
    if re.fullmatch(r"[A-Z]", gold):
        copies.append(chr((ord(gold) - 64) % 26 + 65))
    if re.fullmatch(r"\d[\d.]*", gold) and float(gold) != 0:
        copies.append(f"-{gold}")
    return copies or [f"{gold} + 1" if re.search(r"[\\^=+]", gold) else f"not {gold}"]


def report_golds(path: Path, grader: MathGrader, show: int) -> int:
    """Print and return the number of reference answers that do not parse, equal themselves, or differ from a copy."""
    rows = read_rows(path)
    failures: list[str] = []
    for row in rows:
        gold = row["answer"]
        try:
            read_reference(gold)
        except BadReference as error:
            failures.append(f"unreadable: {error}")
            continue
        if not grader.grade(f"\\boxed{{{gold}}}", gold).correct:
            failures.append(f"not equal to itself: {gold!r}")
        for copy in perturbed(gold):
            if grader.grade(f"\\boxed{{{copy}}}", gold).correct:
                failures.append(f"equal to a perturbed copy: {gold!r} and {copy!r}")
    print(f"{path.name}: {len(rows)} golds, {len(failures)} failures")
    for failure in failures[:show]:
        print(f"  {failure}")
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
