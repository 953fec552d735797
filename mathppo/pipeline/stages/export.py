"""Stage `export`: an evaluation as the result files of lm-eval or lighteval."""

import io
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Literal

import msgspec

from mathppo.config import GraderSettings
from mathppo.evaluate.harness_formats import (
    lighteval_details,
    lighteval_results,
    lighteval_tasks,
    lm_eval_results,
    lm_eval_samples,
    sanitised,
    task_names,
)
from mathppo.evaluate.result import Result
from mathppo.evaluate.samples import GradedSample, Sample
from mathppo.pipeline.benchmark_folder import BenchmarkFolder, grade_samples, read_results, samples_of
from mathppo.pipeline.run_directory import versions
from mathppo.pipeline.stages.grade import open_pool
from mathppo.records import Problem
from mathppo.storage import store
from mathppo.storage.files import write_file, write_record

Format = Literal["lm-eval", "lighteval"]


def export(folder: Path, format: Format, out: Path, grader: GraderSettings, *, when_s: float) -> list[Path]:
    """Write the results and samples of `evaluate --benchmarks` in another harness's format, and return the files.

    Verdicts are read from the folder's log. Samples are JSON lines for lm-eval, Parquet for lighteval.

    Args:
        folder: output folder of `evaluate --benchmarks`.
        format: the other harness.
        out: folder to write into.
        grader: limits of the grader; its name is that of the results.
        when_s: time in the file names, seconds since 1970.

    Raises:
        BadArtefact: no results in the folder, or a log without their samples.
    """
    time = datetime.fromtimestamp(when_s, UTC).strftime("%Y-%m-%dT%H-%M-%S.%f")
    written: list[Path] = []
    source = BenchmarkFolder(folder)
    for model, results in _by_policy(read_results(source.results)):
        if format == "lighteval":
            path = out / "results" / sanitised(model) / f"results_{time}.json"
            written.append(_write(path, lighteval_results(results, when_s=when_s)))
            for task, result in lighteval_tasks(results).items():
                path = out / "details" / sanitised(model) / time / f"details_{task}_{time}.parquet"
                write_file(path, _parquet(lighteval_details(task, result, *_samples(source, result, grader))))
                written.append(path)
            continue
        home = out / sanitised(model)
        content = lm_eval_results(results, when_s=when_s, version=versions()["mathppo"])
        written.append(_write(home / f"results_{time}.json", content))
        for task, result in task_names(results).items():
            rows = lm_eval_samples(result, *_samples(source, result, grader))
            lines = b"".join(msgspec.json.encode(line) + b"\n" for line in rows)
            write_file(home / f"samples_{task}_{time}.jsonl", lines)
            written.append(home / f"samples_{task}_{time}.jsonl")
    return written


def _by_policy(results: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    ordered = sorted(results, key=lambda result: (result.model, result.weights))
    for (model, _), group in groupby(ordered, key=lambda result: (result.model, result.weights)):
        yield model, list(group)


def _samples(
    folder: BenchmarkFolder, result: Result, grader: GraderSettings
) -> tuple[list[Problem], list[Sample], list[GradedSample], Mapping[str, str]]:
    """Read a result's problems, samples, verdicts and prompts."""
    problems = store.read_artefact(folder.problems(result.benchmark, result.golds), store.PROBLEMS)
    (samples,) = samples_of(folder, [result])
    settings = msgspec.structs.replace(grader, name=result.grader)
    with open_pool(settings) as pool:
        graded = grade_samples(
            pool, settings, samples, {p.id: p for p in problems}, folder.verdicts, template=result.template
        )
    prompts = msgspec.json.decode(folder.prompts(result).read_bytes(), type=dict[str, str])
    return problems, samples, graded, prompts


def _parquet(rows: Sequence[dict[str, object]]) -> bytes:
    import pyarrow.parquet  # slow to import, and needed here only

    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), content)
    return content.getvalue()


def _write(path: Path, content: dict[str, object]) -> Path:
    write_record(path, content)
    return path
