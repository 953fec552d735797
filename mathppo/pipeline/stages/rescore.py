"""`mathppo score`: an old log under another grader, without sampling anything."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mathppo.config import GraderSettings
from mathppo.errors import BadArtefact
from mathppo.evaluate.flips import Flip, Rescore, list_flips
from mathppo.evaluate.result import Result
from mathppo.evaluate.samples import SAMPLES, GradedSample, Sample
from mathppo.evaluate.tables import markdown_table
from mathppo.pipeline.stages.benchmark import tally
from mathppo.pipeline.stages.grade_samples import grade_samples
from mathppo.pipeline.stages.result_files import policy_folder, problems_folder, read_results, write_record
from mathppo.pipeline.stages.sample_and_grade import open_pool
from mathppo.progress import SILENT, Reporter
from mathppo.storage import store
from mathppo.storage.append_log import read_log


def rescore(
    log: Path, new: GraderSettings, old: GraderSettings | None = None, *, reporter: Reporter = SILENT
) -> tuple[Rescore, list[Result]]:
    """Grade all samples behind a folder's results with a new grader, and list every flip.

    Writes `rescored/<grader>.json` with the flips, `rescored/<grader>.md` with the table, and the results beside.

    Args:
        log: the folder that evaluate wrote, or its `samples.jsonl`.
        new: the grader to grade with.
        old: what to hold it against; None for the grader of the results.
        reporter: shows progress.

    Returns:
        The flips, and each result as the new grader has it.

    Raises:
        BadArtefact: no results, or samples that the log lacks.
    """
    out = log.parent if log.is_file() else log
    results = read_results(out / "results")
    old = old or msgspec.structs.replace(new, name=results[0].grader)
    flips: list[Flip] = []
    rescored: list[Result] = []
    num_samples = before = after = 0
    with open_pool(old) as old_pool, open_pool(new) as new_pool:
        for result, samples in zip(results, samples_of(out, results), strict=True):
            problems = store.read_artefact(problems_folder(out, result.benchmark, result.golds), store.PROBLEMS)
            by_id = {problem.id: problem for problem in problems}
            graded: list[list[GradedSample]] = []
            for pool, settings in ((old_pool, old), (new_pool, new)):
                graded.append(
                    grade_samples(
                        pool, settings, samples, by_id, out / "verdicts.jsonl", template=result.template,
                        reporter=reporter, title=f"{result.benchmark} by {settings.name}",
                    )
                )  # fmt: skip
            flips += list_flips(samples, *graded)
            num_samples += len(samples)
            before += sum(item.verdict.correct for item in graded[0])
            after += sum(item.verdict.correct for item in graded[1])
            name, step = result.benchmark, result.evaluation.policy_step
            tallied = tally(new_pool, name, step, problems, samples, graded[1])
            rescored.append(msgspec.structs.replace(result, grader=new.name, **tallied._asdict()))
    report = Rescore(
        before=old.name, after=new.name, num_samples=num_samples, num_correct_before=before, num_correct_after=after,
        flips=flips,
    )  # fmt: skip
    folder = out / "rescored"
    stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in new.name)
    write_record(folder / f"{stem}.json", report)
    store.write_file(folder / f"{stem}.md", markdown_table(rescored))
    for path, result in zip(_paths(results), rescored, strict=True):
        write_record(folder / stem / path, result)
    return report, rescored


def samples_of(out: Path, results: Sequence[Result]) -> list[list[Sample]]:
    """Give each result's samples in order of problem and index; one pass over the log for all."""
    found: dict[str, dict[tuple[str, int], Sample]] = defaultdict(dict)
    for sample in read_log(out / "samples.jsonl", SAMPLES):
        found[sample.identity][sample.problem_id, sample.sample_index] = sample
    per_result = []
    for result in results:
        own, n = found[result.identity], result.evaluation.samples_per_problem
        wanted = [(problem_id, index) for problem_id in result.problem_ids for index in range(n)]
        missing = [key for key in wanted if key not in own]
        if missing:
            raise BadArtefact(
                f"{out / 'samples.jsonl'}: expected {len(wanted)} samples of {result.label}, got "
                f"{len(wanted) - len(missing)}; run evaluate again"
            )
        per_result.append([own[key] for key in wanted])
    return per_result


def _paths(results: Sequence[Result]) -> list[str]:
    return [f"{policy_folder(r.evaluation.policy_step, r.weights)}/{r.label}.json" for r in results]
