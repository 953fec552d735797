"""Cascade: several graders, cheapest first; an answer is correct if one of their verdicts is."""

import time
from typing import Any

import msgspec

from graders.errors import BadGrader, GraderError
from graders.grader import Grader, GraderOptions, SplitGrader, option_of, resolve
from graders.sandbox.child.grader_spec import reading_decoder
from graders.sandbox.child.validate_verdict import validate_verdict
from graders.verdict import Status, Verdict


def cascade(names: str) -> Grader:
    """Return the grader for `cascade:NAME,NAME,…`.

    Raises:
        BadGrader: there are fewer than two names, or one names a grader without `read` and `judge`.
        UnknownGrader: a name is unknown.
    """
    parts = [resolve(name.strip()) for name in names.split(",") if name.strip()]
    if len(parts) < 2:
        raise BadGrader(f"cascade {names!r}: expected two graders or more, separated by commas, got {len(parts)}")
    for part in parts:
        if not isinstance(part, SplitGrader) or option_of(part, "runs_programs", False):
            raise BadGrader(f"cascade {names!r}: expected graders with read and judge, got {part.name!r}")
    return CascadeGrader(parts)


class CascadeGrader:
    """Runs graders one after another and returns the first verdict `correct`.

    Without one, an `error` of any grader precedes the verdict of the last one, because the answer may be right.
    """

    def __init__(self, parts: list[Any]) -> None:
        self.name = "cascade:" + ",".join(part.name for part in parts)
        examples = [example for part in parts for example in option_of(part, "examples", ())]
        self.options = GraderOptions(examples=[example for example in examples if example[2] == "correct"])
        self._parts = parts
        self._decoders = [reading_decoder(part.read) for part in parts]

    def read(self, completion: str, *, question: str | None = None) -> list[msgspec.Raw]:
        """Return the encoded reading of each grader."""
        return [msgspec.Raw(msgspec.msgpack.encode(part.read(completion, question=question))) for part in self._parts]

    def judge(self, reading: list[msgspec.Raw], reference: str, *, question: str | None = None) -> Verdict:
        """Return the first `correct`, else the first `error`, else the last verdict."""
        begin = time.perf_counter()
        verdicts: list[Verdict] = []
        for part, decoder, encoded in zip(self._parts, self._decoders, reading, strict=True):
            try:
                judged = part.judge(decoder.decode(encoded), reference, question=question)
                verdict = validate_verdict(judged, part.name, 0.0)
            except GraderError as error:  # the next grader may be able to use the reference
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
