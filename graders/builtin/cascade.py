"""Several graders in turn, cheapest first: correct as soon as one says so."""

import time
from typing import Any

import msgspec

from graders.errors import BadGrader, GraderError
from graders.grader import Grader, SplitGrader, option_of, resolve
from graders.sandbox.child.grader_spec import reading_decoder
from graders.sandbox.child.validate_verdict import sound
from graders.verdict import Status, Verdict


def cascade(names: str) -> Grader:
    """Give the grader for `cascade:NAME,NAME,…`.

    Raises:
        BadGrader: fewer than two names, or a grader that is not in two halves, as this one must be.
        UnknownGrader: a name that is not known.
    """
    parts = [resolve(name.strip()) for name in names.split(",") if name.strip()]
    if len(parts) < 2:
        raise BadGrader(f"cascade {names!r}: expected two graders or more, separated by commas, got {len(parts)}")
    for part in parts:
        if not isinstance(part, SplitGrader) or option_of(part, "runs_programs", False):
            raise BadGrader(f"cascade {names!r}: expected graders that read and judge apart, got {part.name!r}")
    return CascadeGrader(parts)


class CascadeGrader:
    """Asks each grader in turn and gives the first `correct`.

    If none says so, an `error` of any outranks the last one's verdict: the answer may have been right.
    """

    def __init__(self, parts: list[Any]) -> None:
        self.name = "cascade:" + ",".join(part.name for part in parts)
        self.examples = tuple(
            example for part in parts for example in option_of(part, "examples", ()) if example[2] == "correct"
        )
        self._parts = parts
        self._decoders = [reading_decoder(part.read) for part in parts]

    def read(self, completion: str, *, question: str | None = None) -> list[msgspec.Raw]:
        """Give each grader's reading, encoded."""
        return [msgspec.Raw(msgspec.msgpack.encode(part.read(completion, question=question))) for part in self._parts]

    def judge(self, reading: list[msgspec.Raw], reference: str, *, question: str | None = None) -> Verdict:
        """Give the first `correct`, else an `error`, else the last verdict."""
        begin = time.perf_counter()
        verdicts: list[Verdict] = []
        for part, decoder, encoded in zip(self._parts, self._decoders, reading, strict=True):
            try:
                verdict = sound(part.judge(decoder.decode(encoded), reference, question=question), part.name, 0.0)
            except GraderError as error:  # one grader that cannot use the reference must not hide another's verdict
                verdict = Verdict(Status.ERROR, None, part.name, "exception", f"{type(error).__name__}: {error}", 0.0)
            verdicts.append(verdict)
            if verdict.correct:
                break
        chosen = next((v for v in verdicts if v.correct), None)
        chosen = chosen or next((v for v in verdicts if v.status is Status.ERROR), verdicts[-1])
        return msgspec.structs.replace(chosen, duration_s=time.perf_counter() - begin)

    def grade(self, completion: str, reference: str, *, question: str | None = None) -> Verdict:
        """Read and judge."""
        return self.judge(self.read(completion, question=question), reference, question=question)
