"""Stage `score`: grades the samples of an evaluation again under another grader, without sampling anything."""

from pathlib import Path

import msgspec

from mathppo.config import GraderSettings
from mathppo.evaluate.flips import Flip, Rescore, list_flips
from mathppo.evaluate.result import Result
from mathppo.evaluate.tables import markdown_table
from mathppo.pipeline.benchmark_folder import (
    BenchmarkFolder,
    answers_of,
    grade_samples,
    read_results,
    result_path,
    samples_of,
)
from mathppo.pipeline.stages.evaluate import tally
from mathppo.pipeline.stages.grade import open_pool
from mathppo.progress import SILENT, Reporter
from mathppo.storage import store
from mathppo.storage.files import write_file, write_record


def rescore(
    log: Path, new: GraderSettings, old: GraderSettings | None = None, *, reporter: Reporter = SILENT
) -> tuple[Rescore, list[Result]]:
    """Grade all samples of a folder's results with a new grader, and list every verdict that flips.

    Writes `rescored/<grader>.json` with the flips, `rescored/<grader>.md` with the table, and the results to
    `rescored/<grader>/`.

    Args:
        log: the folder that evaluate wrote, or its `samples.jsonl`.
        new: the grader to grade with.
        old: the grader to compare with; None for the grader of the results.
        reporter: shows progress.

    Returns:
        The flips, and each result under the new grader.

    Raises:
        BadArtefact: no results, or samples that the log lacks.
    """
    folder = BenchmarkFolder(log.parent if log.is_file() else log)
    results = read_results(folder.results)
    old = old or msgspec.structs.replace(new, name=results[0].grader)
    flips: list[Flip] = []
    rescored: list[Result] = []
    num_samples = before = after = 0
    with open_pool(old) as old_pool, open_pool(new) as new_pool:
        for result, samples in zip(results, samples_of(folder, results), strict=True):
            problems = store.read_artefact(folder.problems(result.benchmark, result.golds), store.PROBLEMS)
            by_id = {problem.id: problem for problem in problems}
            graded_old, graded_new = (
                grade_samples(
                    pool, settings, samples, by_id, folder.verdicts, template=result.template, reporter=reporter,
                    title=f"{result.benchmark} by {settings.name}",
                )
                for pool, settings in ((old_pool, old), (new_pool, new))
            )  # fmt: skip
            flips += list_flips(samples, graded_old, graded_new)
            num_samples += len(samples)
            before += sum(item.verdict.correct for item in graded_old)
            after += sum(item.verdict.correct for item in graded_new)
            found, answers = result.evaluation, answers_of(samples, graded_new)
            tallied = tally(result.benchmark, found.policy_step, found.mode, problems, answers, new_pool)
            rescored.append(msgspec.structs.replace(result, grader=new.name, **tallied._asdict()))
    report = Rescore(
        before=old.name, after=new.name, num_samples=num_samples, num_correct_before=before, num_correct_after=after,
        flips=flips,
    )  # fmt: skip
    stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in new.name)
    write_record(folder.rescored / f"{stem}.json", report)
    write_file(folder.rescored / f"{stem}.md", markdown_table(rescored))
    for before_result, result in zip(results, rescored, strict=True):
        write_record(folder.rescored / stem / result_path(before_result), result)
    return report, rescored
