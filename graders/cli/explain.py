"""Explanation of a verdict: the extraction, both trees, the rungs up to the one that decided, and the reason."""

from graders.builtin.answer_reader import read_reference
from graders.builtin.math import MathGrader
from graders.equivalence import RUNGS
from graders.extraction.extract import extract
from graders.parsing.tree import (
    Apply,
    Cases,
    Choice,
    Clock,
    Interval,
    Matrix,
    Name,
    Node,
    Number,
    Quantity,
    Relation,
    Text,
    children,
)

MAX_SKETCH_CHARS = 400


def explain(completion: str, reference: str, *, question: str | None = None, grader: MathGrader | None = None) -> str:
    """Return the reasons for the math grader's verdict, one line per step.

    Raises:
        BadReference: the reference cannot be read.
    """
    grader = grader or MathGrader()
    found = extract(completion, question=question, policy=grader.policy)
    reading = grader.read(completion, question=question)
    verdict = grader.judge(reading, reference, question=question)
    where = f"rule {found.rule}, characters {found.start} to {found.end}"
    stated = repr(found.answer) if found.answer is not None else f"none: {found.reason}"
    lines = [f"extracted  {stated} ({where})"]
    if reading.node is not None:
        lines.append(f"answer     {sketch(reading.node)}")
    lines += [f"reference  {sketch(node)}" for node in read_reference(reference)]
    if verdict.method in RUNGS[:-2]:
        lines.append(f"rungs      {', '.join(RUNGS[: RUNGS.index(verdict.method) + 1])}")
    lines.append(f"verdict    {verdict.status} by {verdict.method}: {verdict.detail}")
    return "\n".join(lines)


def sketch(node: Node) -> str:
    """Return the tree on one line, such as `(+ 1 (/ x 2))`, cut at `MAX_SKETCH_CHARS`."""
    text = _sketch(node)
    return text if len(text) <= MAX_SKETCH_CHARS else text[: MAX_SKETCH_CHARS - 1] + "…"


def _sketch(node: Node) -> str:
    match node:
        case Number(text=text) | Name(text=text):
            return text
        case Text(text=text):
            return repr(text)
        case Choice(letter=letter, content=content):
            return f"option {letter}" if content is None else f"option {letter}: {_sketch(content)}"
        case Clock(seconds=seconds, half=half):
            return f"time {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{' ' + half if half else ''}"
        case Quantity(value=value, unit=unit):
            return f"{_sketch(value)} [{unit}]"
        case Interval(low=low, high=high):
            opening, closing = "(["[node.low_closed], ")]"[node.high_closed]
            return f"interval {opening}{_sketch(low)}, {_sketch(high)}{closing}"
        case Relation(ops=ops, terms=terms):
            return _sketch(terms[0]) + "".join(
                f" {sign} {_sketch(term)}" for sign, term in zip(ops, terms[1:], strict=True)
            )
        case Apply(op=op, args=arguments):
            return f"({op} {' '.join(_sketch(argument) for argument in arguments)})"
        case Matrix(rows=rows):
            return "matrix [" + "; ".join(", ".join(_sketch(cell) for cell in row) for row in rows) + "]"
        case Cases(branches=branches):
            return "cases [" + "; ".join(f"{_sketch(value)} if {_sketch(when)}" for value, when in branches) + "]"
    return f"{type(node).__name__.lower()} <{', '.join(_sketch(item) for item in children(node))}>"
