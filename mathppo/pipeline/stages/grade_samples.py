"""Logged samples to verdicts, to classes of equivalent answers, and to outcomes: what comes after sampling."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from graders import GraderPool
from graders.verdict import Status
from mathppo.config import GraderSettings
from mathppo.errors import BadInput, StageFailed
from mathppo.evaluate.outcomes import Outcome
from mathppo.evaluate.samples import GRADED_SAMPLES, GradedSample, GraderIdentity, Sample, graded_key
from mathppo.pipeline.run_directory import versions
from mathppo.pipeline.stages.sample_and_grade import DETAIL_SHOWN
from mathppo.progress import SILENT, Reporter
from mathppo.prompts import own_turn
from mathppo.records import FinishReason, Problem
from mathppo.storage.append_log import AppendLog, read_log

GRADED_AT_ONCE = 8192
"""Samples between two writes: what a kill may cost."""

CORRECT_CLASS = "correct"
"""The class of all right answers; wrong ones are numbered."""


def identify(settings: GraderSettings) -> GraderIdentity:
    """Say what decides a verdict; the version counts, so that a mended grader grades anew."""
    file = Path(settings.name.partition(":")[0])
    source = hashlib.sha256(file.read_bytes()).hexdigest() if file.suffix == ".py" and file.is_file() else ""
    return GraderIdentity(
        settings.name, source, versions()["mathppo"], settings.time_limit_s, settings.memory_limit_bytes
    )


def grade_samples(
    pool: GraderPool,
    settings: GraderSettings,
    samples: Sequence[Sample],
    problems: Mapping[str, Problem],
    log: Path,
    *,
    template: str,
    reporter: Reporter = SILENT,
    title: str = "grade",
) -> list[GradedSample]:
    """Grade what the log does not hold yet; give all verdicts in the samples' order.

    Raises:
        BadInput: a sample of an unknown problem.
        StageFailed: the grader itself failed on more than `grader.max_error_share` of them.
    """
    grader = identify(settings)
    keys = []
    for sample in samples:
        if sample.problem_id not in problems:
            raise BadInput(f"sample of {sample.problem_id!r}: expected one of the {len(problems)} problems at hand")
        problem = problems[sample.problem_id]
        keys.append(graded_key(sample.key, grader, problem.reference, problem.question))
    wanted = set(keys)
    with AppendLog(log, GRADED_SAMPLES) as out:
        found = {graded.key: graded for graded in read_log(log, GRADED_SAMPLES) if graded.key in wanted}
        missing = [i for i, key in enumerate(keys) if key not in found]
        with reporter.task(title, len(samples), done=len(samples) - len(missing)) as advance:
            for start in range(0, len(missing), GRADED_AT_ONCE):
                part = missing[start : start + GRADED_AT_ONCE]
                new = _graded(pool, [(keys[i], samples[i], problems[samples[i].problem_id]) for i in part], template)
                out.append(new)
                found |= {graded.key: graded for graded in new}
                advance(len(part))
    graded = [found[key] for key in keys]
    errors = [item.verdict for item in graded if item.verdict.status is Status.ERROR]
    if len(errors) > settings.max_error_share * len(graded):
        raise StageFailed(
            f"{log}: the grader itself failed on {len(errors)} of {len(graded)} samples, more than "
            f"grader.max_error_share={settings.max_error_share:g} allows; first: {errors[0].detail[:DETAIL_SHOWN]}"
        )
    return graded


def outcomes_of(
    pool: GraderPool, samples: Sequence[Sample], graded: Sequence[GradedSample], problems: Mapping[str, Problem]
) -> dict[str, list[Outcome]]:
    """Give the outcomes of each problem's samples by problem id, in order of sample index.

    Answers get their classes where a problem has several samples, for maj@k.
    """
    by_problem: dict[str, list[tuple[Sample, GradedSample]]] = defaultdict(list)
    for pair in zip(samples, graded, strict=True):
        by_problem[pair[0].problem_id].append(pair)
    answers = {
        name: [g.verdict.answer for _, g in pairs if g.verdict.answer is not None and not g.verdict.correct]
        for name, pairs in by_problem.items()
        # Wrong answers compete with right ones; where there is no right one, no vote can win.
        if len(pairs) > 1 and any(g.verdict.correct for _, g in pairs)
    }
    classes = answer_classes(pool, answers, problems)
    return {
        name: [
            Outcome(
                status=g.verdict.status,
                num_tokens=s.num_tokens,
                truncated=s.finish_reason is FinishReason.LENGTH,
                answer=_class_of(g, classes.get(name)),
            )
            for s, g in sorted(pairs, key=lambda pair: pair[0].sample_index)
        ]
        for name, pairs in by_problem.items()
    }


def answer_classes(
    pool: GraderPool, answers: Mapping[str, Sequence[str]], problems: Mapping[str, Problem]
) -> dict[str, dict[str, str]]:
    """Give each problem's wrong answers the name of their class: equivalent ones, as the grader sees it, share one.

    In rounds, for all problems together: the first answer without a class founds one, and every other without a class
    is graded against it.
    """
    classes: dict[str, dict[str, str]] = {name: {} for name in answers}
    # Sorted, so that the order of the samples changes nothing; spacing alone makes no other answer.
    waiting = {name: sorted({_squeezed(answer) for answer in found}) for name, found in answers.items() if found}
    number = 0
    while waiting:
        number += 1
        items = []
        for name, texts in waiting.items():
            classes[name][texts[0]] = f"wrong {number}"
            items += [(name, text, texts[0]) for text in texts[1:]]
        verdicts = pool.grade(
            [(f"\\boxed{{{text}}}", founder, problems[name].question) for name, text, founder in items]
        )
        left: dict[str, list[str]] = defaultdict(list)
        for (name, text, _), verdict in zip(items, verdicts, strict=True):
            if verdict.correct:
                classes[name][text] = f"wrong {number}"
            else:
                left[name].append(text)
        waiting = left
    return classes


def _graded(pool: GraderPool, items: Sequence[tuple[str, Sample, Problem]], template: str) -> list[GradedSample]:
    asked = [(own_turn(s.completion, template), problem.reference, problem.question) for _, s, problem in items]
    return [
        GradedSample(key=key, sample=sample.key, reference=problem.reference, verdict=verdict)
        for (key, sample, problem), verdict in zip(items, pool.grade(asked), strict=True)
    ]


def _class_of(graded: GradedSample, classes: Mapping[str, str] | None) -> str | None:
    if graded.verdict.correct:
        return CORRECT_CLASS
    if graded.verdict.answer is None or classes is None:
        return None
    return classes[_squeezed(graded.verdict.answer)]


def _squeezed(answer: str) -> str:
    return " ".join(answer.split())
