"""Conformance kit for authors of graders: `graders conformance SPEC`, or `conform(spec)` in a test.

Every check runs the grader in the sandbox, as training would.
"""

import inspect
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Literal, cast

import msgspec

from graders.grader import Grader, is_shipped, resolve
from graders.sandbox.child.grader_spec import read_grader_spec
from graders.sandbox.host.pool import GraderPool
from graders.verdict import Status, Verdict

TIME_LIMIT_S = 1.0
NUM_THROUGHPUT_ITEMS = 400
SLOW_BELOW_PER_S = 20.0
"""Answers per second on two workers; below this rate, grading would slow training down."""

HOSTILE = {
    "nothing": "",
    "blanks": " \n\t" * 100,
    "NUL and control characters": "\\boxed{1\x00\x07\x1b[31m2}",
    "right-to-left override": "\\boxed{\u202e24}",
    "lone surrogate": "\\boxed{\ud800}",
    "a hundred thousand characters": "x" * 100_000,
    "a hundred thousand digits": "\\boxed{" + "7" * 100_000 + "}",
    "deep nesting": "\\boxed{" + "(" * 5000 + "1" + ")" * 5000 + "}",
    "open braces": "\\boxed{" * 2000,
    "tower of powers": "\\boxed{9^{9^{9^{9}}}} 9**9**9",
    "huge factorial": "\\boxed{(10^9)!}",
    "code": "\\boxed{__import__('os').system('true')}",
    "comprehension": "\\boxed{[x for x in ().__class__.__base__.__subclasses__()]}",
    "catastrophic pattern": "\\boxed{" + "a" * 5000 + "!}",
    "many boxes": "\\boxed{1}" * 5000,
    "infinity and not a number": "\\boxed{\\infty} inf nan 0/0",
    "claims to be correct": "correct CORRECT status: correct {'score': 1.0} PASSED",
}


class Labelled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item and its expected status, or True for `correct` and False for any other status."""

    completion: str
    reference: str
    status: Status | bool
    question: str | None = None

    def agrees(self, verdict: Verdict) -> bool:
        return verdict.correct == self.status if isinstance(self.status, bool) else verdict.status == self.status

    @property
    def expected(self) -> str:
        if isinstance(self.status, bool):
            return "correct" if self.status else "not correct"
        return self.status.value


class LabelledRow(msgspec.Struct, frozen=True):
    """One row of a labelled file, under either of the usual names.

    Raises:
        ValueError: a completion, a reference or a label is missing.
    """

    completion: str | None = None
    response: str | None = None
    reference: str | None = None
    gold: str | None = None
    status: Status | None = None
    label: bool | None = None
    question: str | None = None

    def __post_init__(self) -> None:
        texts = (self.completion, self.response), (self.reference, self.gold), (self.status, self.label)
        if any(pair == (None, None) for pair in texts):
            raise ValueError("expected completion or response, reference or gold, and status or label")

    @property
    def labelled(self) -> Labelled:
        completion, reference = self.completion or self.response or "", self.reference or self.gold or ""
        return Labelled(
            completion, reference, self.label or False if self.status is None else self.status, self.question
        )


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Result of one check; `note` passes but deserves the author's attention."""

    name: str
    outcome: Literal["pass", "note", "fail"]
    detail: str


class Conformance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Findings of the kit; `confusion` counts the rows of a labelled file by "expected > given" status."""

    grader: str
    checks: list[Check]
    confusion: dict[str, int]

    @property
    def passed(self) -> bool:
        return all(check.outcome != "fail" for check in self.checks)


def conform(spec: str, labelled: Sequence[Labelled] = ()) -> Conformance:
    """Run every check on the grader that a specification names, and on labelled items if there are any.

    Raises:
        GraderError: the grader cannot be loaded or started.
    """
    grader = resolve(spec)
    examples = read_grader_spec(grader, trusted=is_shipped(spec)).examples
    known = [Labelled(example.completion, example.reference, Status(example.status)) for example in examples]
    with GraderPool(spec, num_workers=2, time_limit_s=TIME_LIMIT_S) as pool:
        verdicts = pool.grade([(row.completion, row.reference, row.question) for row in labelled])
        checks = [
            _signature(grader),
            _examples(pool, known),
            _determinism(pool, [*known, *labelled]),
            *_hostility(pool, known),
            _throughput(pool, [*known, *labelled]),
        ]
    if labelled:
        checks.append(_agreement(labelled, verdicts))
    confusion = Counter(f"{row.expected} > {v.status}" for row, v in zip(labelled, verdicts, strict=True))
    return Conformance(grader.name, checks, dict(sorted(confusion.items())))


def render(conformance: Conformance) -> str:
    """Return the findings as readable text."""
    lines = [f"{conformance.grader}: {'conforms' if conformance.passed else 'does not conform'}"]
    lines += [f"  {check.outcome:5} {check.name}: {check.detail}" for check in conformance.checks]
    if conformance.confusion:
        lines += ["", "expected > given"]
        lines += [f"  {pair:30} {count}" for pair, count in conformance.confusion.items()]
    return "\n".join(lines)


def _signature(grader: Grader) -> Check:
    if inspect.iscoroutinefunction(grader.grade):
        detail = "expected a plain method grade, got an async one; wrap an async reward function with trl:…"
        return Check("signature", "fail", detail)
    parameters = inspect.signature(grader.grade).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    question = parameters.get("question")
    positional = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2 or not (takes_any or (question is not None and question.default is None)):
        return Check("signature", "fail", f"expected (completion, reference, *, question=None), got {list(parameters)}")
    return Check("signature", "pass", "grade(completion, reference, *, question=None)")


def _examples(pool: GraderPool, known: list[Labelled]) -> Check:
    statuses = {row.status for row in known}
    if not {Status.CORRECT, Status.INCORRECT} <= statuses:
        detail = "expected `examples` with a correct and an incorrect answer, for the warm-up and as canaries"
        return Check("examples", "note", detail)
    return _compared("examples", known, pool.grade([(row.completion, row.reference) for row in known]))


def _determinism(pool: GraderPool, rows: list[Labelled]) -> Check:
    """Grade the items again in another order; every status must be the same."""
    items = [(row.completion, row.reference, row.question) for row in rows[:200]]
    items = items or [("1", "1", None), ("1", "2", None)]
    order = list(range(len(items)))
    random.Random(0).shuffle(order)
    first = pool.grade(items)
    again = dict(zip(order, pool.grade([items[k] for k in order]), strict=True))
    changed = [k for k, verdict in enumerate(first) if verdict.status != again[k].status]
    if changed:
        k = changed[0]
        detail = f"{items[k][0]!r:.60}: {first[k].status} at first, {again[k].status} in another order"
        return Check("determinism", "fail", detail)
    return Check("determinism", "pass", f"{len(items)} verdicts are the same in another order")


def _hostility(pool: GraderPool, known: list[Labelled]) -> list[Check]:
    """Grade hostile completions, then check that the known answers still get the right verdicts."""
    reference = known[0].reference if known else "42"
    verdicts = dict(zip(HOSTILE, pool.grade([(text, reference) for text in HOSTILE.values()]), strict=True))
    checks: list[Check] = []
    for kind, statuses in {
        "exceptions": (Status.ERROR,),
        "hangs and memory": (Status.OVER_BUDGET,),
        "false praise": (Status.CORRECT,),
    }.items():
        hit = [
            f"{name} ({verdict.method}: {verdict.detail[:80]})"
            for name, verdict in verdicts.items()
            if verdict.status in statuses
        ]
        bad = "note" if kind == "hangs and memory" else "fail"
        outcome = cast(Literal["pass", "note", "fail"], bad if hit else "pass")
        checks.append(Check(kind, outcome, "; ".join(hit)[:500] or f"none on {len(HOSTILE)} hostile completions"))
    after = pool.grade([(row.completion, row.reference) for row in known])
    return [*checks, _compared("poisoning", known, after)]


def _throughput(pool: GraderPool, rows: list[Labelled]) -> Check:
    items = [(row.completion, row.reference, row.question) for row in rows] or [("1", "1", None)]
    items = (items * NUM_THROUGHPUT_ITEMS)[:NUM_THROUGHPUT_ITEMS]
    begin = time.perf_counter()
    pool.grade(items)
    rate = len(items) / (time.perf_counter() - begin)
    return Check(
        "throughput", "note" if rate < SLOW_BELOW_PER_S else "pass", f"{rate:,.0f} answers per second on 2 workers"
    )


def _agreement(labelled: Sequence[Labelled], verdicts: list[Verdict]) -> Check:
    wrong = sum(not row.agrees(verdict) for row, verdict in zip(labelled, verdicts, strict=True))
    return Check("labelled file", "fail" if wrong else "pass", f"{wrong} of {len(labelled)} verdicts differ")


def _compared(name: str, rows: list[Labelled], verdicts: list[Verdict]) -> Check:
    for row, verdict in zip(rows, verdicts, strict=True):
        if not row.agrees(verdict):
            detail = f"{row.completion!r:.60}: expected {row.expected}, got {verdict.status} ({verdict.detail[:200]})"
            return Check(name, "fail", detail)
    return Check(name, "pass", f"{len(rows)} known answers get the right verdict")
