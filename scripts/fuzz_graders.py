"""Fuzz the extractor, the parser and the judge: no input may raise, crash or exceed the time limit of an answer.

    python scripts/fuzz_graders.py [--inputs N] [--seconds S] [--seed K] [--engine mutate|coverage] [--json]

`mutate` breaks, splices and nests the labelled cases; the same seed generates the same inputs. `coverage` searches for
inputs that reach new code with libFuzzer and needs the package atheris. Both stop at the first exhausted budget.
The exit code is 0 if every input got a verdict, else 1; each failure is printed with the input that reproduces it.
"""

import argparse
import importlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

CASES = ROOT / "data" / "grading" / "cases.jsonl"
LIMIT_S = 2.0
"""Processor time per answer; equal to the default limit of the pool."""
MEMORY_BYTES = 4 << 30
MAX_CHARS = 4096
MAX_SHOWN = 20
GRADERS = ("math", "exact", "math", "numeric", "math", "choice", "math", "equation")
"""Used one after another; `python` is left out because it runs programs and has no parser."""
REFERENCES = {
    "numeric": ("42.5", "\\pi", "-\\frac{3}{7}", "1e400", "10 cm", "0", "\\sqrt{2}^{100}", '{"from": "1", "to": "2"}'),
    "choice": ("B", "A, C", "(D)", '["A", "B"]', "b"),
    "equation": tuple(
        """x^2 - 5x + 6 = 0|Solve for x: 3x + 5 = 20|x + y = 3; x - y = 1|x = x + 1|x + x = 2x|x^{24} = 1|x^2 = -1
        |a + b + c = 1; a - b = 0; c = 2a|(x-1)^9 (x+1)^9 = 0|\\frac{x}{3} = \\sqrt{2}|x^3 = 2x + \\frac{1}{7}""".split(
            "|"
        )
    ),
}
"""References that these graders accept; they replace the reference of a labelled case in four of five inputs."""
ANSWERS = {
    "choice": ("(B)", "option A and C", "\\boxed{\\text{D. } 7}", "A, B", "\\frac{1}{2}"),
    "equation": ("2, 3", "x = 1 \\pm \\sqrt{2}", "(2, 1)", "x = 2, y = 1", "\\text{no solution}", "\\{-1, 1\\}"),
}
OPTIONS = "Which? (A) 1 (B) 2 (C) \\frac{1}{2} (D) x + 1 (E) none of these"
PIECES = (
    *r"\boxed{¦\frac{¦\sqrt[¦\begin{pmatrix}¦\left(¦\text{¦\sum_{k=1}^{¦\mathbb{¦}{¦}¦\pi¦\infty¦\cup¦\pm¦\le¦\in".split(
        "¦"
    ),
    *r"\%¦\circ¦\cdot¦\times¦\ldots¦\\¦&¦^¦_¦!¦(¦)¦[¦]¦{¦|¦,¦;¦:¦=¦<¦+¦-¦*¦/¦$¦#### ¦**".split("¦"),
    "\n",
    *"9^9^9^9¦10^{10^{10}}¦(10^9)!¦0¦1e400¦-0.0¦1/0¦x¦xyz¦i¦e¦2025¦3 1/2¦mod 7¦The answer is ¦or¦and".split("¦"),
    *(" cm^2", " degrees", "(A) ", "twenty-one ", "\x00", "\u202e", "\u0661", "\u2212", "\ud800", "\u00bd", "\u221a"),
    *("\ufe0f", "\U0001d7d8", "\u00b2", "\\u0041", "%s", "{0}", "\r\n", "\t", "\u2028"),
)


class OverLimitError(BaseException):
    """An input exceeded the time limit; not an Exception, so that graders do not catch it."""


@dataclass
class Tally:
    """Outcomes of the inputs."""

    statuses: Counter[str] = field(default_factory=Counter)
    graders: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[dict[str, str]] = field(default_factory=list)
    slowest_s: float = 0.0
    begin: float = field(default_factory=time.monotonic)

    @property
    def num_inputs(self) -> int:
        return self.statuses.total()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=["mutate", "coverage"], default="mutate")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    tally = Tally()

    def report() -> None:
        seconds = time.monotonic() - tally.begin
        found = {
            "engine": options.engine, "seed": options.seed, "inputs": tally.num_inputs, "seconds": round(seconds, 1),
            "inputs_per_s": round(tally.num_inputs / max(seconds, 1e-9)), "slowest_s": round(tally.slowest_s, 3),
            "statuses": dict(tally.statuses), "failures": tally.failures,
            "graders": {f"{name} {outcome}": count for (name, outcome), count in sorted(tally.graders.items())},
        }  # fmt: skip
        print(json.dumps(found) if options.json else "\n".join(f"{key:14} {value}" for key, value in found.items()))

    if options.engine == "mutate":
        mutate(tally, options.inputs, options.seconds, options.seed)
        report()
    else:
        cover(tally, options.inputs, options.seconds, options.seed, report)
    return 1 if tally.failures else 0


def target(tally: Tally) -> Any:
    """Return a function that runs one grader as a worker would and tallies the outcome."""
    from graders.errors import BadReference
    from graders.grader import resolve
    from graders.sandbox.child.grader_spec import read_grader_spec
    from graders.sandbox.child.late_imports import warm_up
    from graders.sandbox.child.validate_verdict import validate_verdict
    from graders.sandbox.isolation.rlimits import INT_DIGITS_LIMIT, RECURSION_LIMIT

    sys.setrecursionlimit(RECURSION_LIMIT)
    sys.set_int_max_str_digits(INT_DIGITS_LIMIT)
    signal.signal(signal.SIGPROF, _over_limit)
    graders: dict[str, Any] = {name: resolve(name) for name in GRADERS}
    for grader in graders.values():
        warm_up(grader, read_grader_spec(grader, trusted=True))

    def try_one(name: str, completion: str, reference: str, question: str | None) -> None:
        grader = graders[name]
        begin = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        try:
            reading = grader.read(completion, question=question)
            sent = msgspec.msgpack.decode(msgspec.msgpack.encode(reading), type=type(reading))
            outcome = validate_verdict(grader.judge(sent, reference, question=question), name, 0.0).status.value
        except BadReference:
            outcome = "bad reference"
        except (Exception, OverLimitError) as error:  # noqa: BLE001  the failures that fuzzing looks for
            outcome = "failure"
            if len(tally.failures) < MAX_SHOWN:
                message = f"{type(error).__name__}: {error}"[:300]
                tally.failures.append(
                    {"grader": name, "error": message, "completion": completion, "reference": reference,
                     "question": question or ""}
                )  # fmt: skip
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        tally.statuses[outcome] += 1
        tally.graders[name, outcome] += 1
        tally.slowest_s = max(tally.slowest_s, time.process_time() - begin)

    return try_one


def mutate(tally: Tally, max_inputs: int, max_seconds: float, seed: int) -> None:
    """Try mutations of the labelled cases."""
    chance = random.Random(seed)
    try_one = target(tally)
    cases = seeds()
    for number in range(max_inputs):
        if time.monotonic() - tally.begin > max_seconds:
            return
        completion, reference = chance.choice(cases)
        name = GRADERS[number % len(GRADERS)]
        if name in REFERENCES and chance.random() < 0.8:
            reference = chance.choice(REFERENCES[name])
        question = chance.choice((None, None, None, reference, chance.choice(cases)[0], OPTIONS))
        if chance.random() < 0.3:
            completion = "The answer is " + chance.choice(ANSWERS.get(name, (reference,)))
        completion = mutated(chance, completion, cases)
        if chance.random() < 0.2:
            reference = mutated(chance, reference, cases)
        texts = [None if text is None else encodable(text) for text in (completion, reference, question)]
        try_one(name, texts[0] or "", texts[1] or "", texts[2])


def encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def mutated(chance: random.Random, text: str, cases: list[tuple[str, str]]) -> str:
    """Return the text after one to six random mutations."""
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        here, there = sorted((chance.randint(0, len(text)), chance.randint(0, len(text))))
        match chance.randrange(7):
            case 0:
                text = text[:here] + chance.choice(PIECES) + text[here:]
            case 1:
                text = text[:here] + text[min(there, here + 8) :]
            case 2:
                text = text[:here] + chance.choice(cases)[chance.randrange(2)][: chance.randint(1, 60)] + text[there:]
            case 3:
                text = text[:here] + text[here:there] * chance.choice((2, 3, 9)) + text[there:]
            case 4:
                opening, closing = chance.choice(("()", "{}", "[]", "||", ("\\frac{1}{", "}"), ("\\sqrt{", "}")))
                depth = chance.choice((1, 2, 8, 70))
                text = text[:here] + opening * depth + text[here:there] + closing * depth + text[there:]
            case 5:
                text = (
                    text[:here] + chr(chance.choice((chance.randint(0, 127), chance.randint(0, 0xFFFF)))) + text[there:]
                )
            case _:
                text = "\\boxed{" + text[here:there] + "}"
        text = text[:MAX_CHARS]
    return text


def seeds() -> list[tuple[str, str]]:
    """Return (completion, reference) of every labelled case."""
    rows = [json.loads(line) for line in CASES.read_text("utf-8").splitlines()]
    return [(row["response"], row["gold"]) for row in rows]


def cover(tally: Tally, max_inputs: int, max_seconds: float, seed: int, report: Callable) -> None:
    """Run libFuzzer, which never returns; a record separator splits an input into completion and reference."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["graders"]):
        try_one = target(tally)
    tally.begin = time.monotonic()

    def try_bytes(given: bytes) -> None:
        completion, _, reference = given[1:].decode("utf-8", "replace").rpartition("\x1e")
        number = given[0] if given else 0
        name = GRADERS[number % len(GRADERS)]
        try_one(name, completion, reference or "42", reference if number >= 128 else None)
        is_over = tally.num_inputs >= max_inputs or time.monotonic() - tally.begin > max_seconds
        if is_over or tally.failures:
            report()
            sys.stdout.flush()
            os._exit(1 if tally.failures else 0)

    with tempfile.TemporaryDirectory() as corpus:
        for number, (completion, reference) in enumerate(seeds()):
            name = GRADERS[number % len(GRADERS)]
            reference = random.Random(number).choice(REFERENCES.get(name, (reference,)))
            text = f"{chr(number % len(GRADERS))}{completion}\x1e{reference}"
            (Path(corpus) / f"{number:05d}").write_text(text, "utf-8")
        settings = [f"-seed={seed or 1}", f"-max_len={MAX_CHARS}", "-verbosity=0"]
        atheris.Setup([sys.argv[0], *settings, corpus], try_bytes)
        atheris.Fuzz()


def _over_limit(number: int, frame: object) -> None:
    raise OverLimitError(f"expected an outcome within {LIMIT_S} s")


if __name__ == "__main__":
    sys.exit(main())
