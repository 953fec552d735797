"""Folder of `mathppo evaluate --benchmarks`: its layout, and its append-only logs of samples and verdicts.

OUT/
  samples.jsonl                 every completion, with its key (see evaluate/samples.py)
  verdicts.jsonl                every verdict, with its key
  problems/<set>.<golds>/       the problems as they were asked
  prompts/<set>.<template>.<hash>.json   the prompts as given to the model
  results/<policy>/<set>.<template>.<mode>.json
  table.md, table.csv           one line per row of every result
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from graders import GraderPool
from mathppo.config import GraderSettings
from mathppo.errors import BadArtefact, BadInput
from mathppo.evaluate.outcomes import Answer
from mathppo.evaluate.result import Result, problems_hash
from mathppo.evaluate.samples import GRADED_SAMPLES, SAMPLES, GradedSample, Sample
from mathppo.generator.base import Generator, Request, Sampling
from mathppo.pipeline.run_directory import versions
from mathppo.pipeline.stages.generate import TokenRate
from mathppo.pipeline.stages.grade import check_grader_errors, grading_item
from mathppo.progress import SILENT, Reporter
from mathppo.records import FinishReason, Problem, Rollout
from mathppo.storage import store

SAMPLED_AT_ONCE = 512
"""Samples per call of the engine and per write: the most work that a kill loses."""

GRADED_AT_ONCE = 8192
"""Samples per write of verdicts."""


class BenchmarkFolder:
    """Paths in an output folder.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.samples = root / "samples.jsonl"
        self.verdicts = root / "verdicts.jsonl"
        self.results = root / "results"
        self.rescored = root / "rescored"

    def problems(self, benchmark: str, golds: str) -> Path:
        return self.root / "problems" / f"{benchmark}.{golds}"

    def prompts(self, result: Result) -> Path:
        name = f"{result.benchmark}.{result.template}.{result.prompts_sha256[:8]}.json"
        return self.root / "prompts" / name


def result_path(result: Result) -> str:
    """Return the path of a result within a folder of results; each policy has a folder."""
    return f"step{result.evaluation.policy_step:06d}-{result.weights[:8]}/{result.label}.json"


def read_results(folder: Path) -> list[Result]:
    """Read the results of an output folder, or of one policy's folder within it, in order of their paths.

    Raises:
        BadArtefact: there is none, or one that cannot be read.
    """
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*.json"))
    results = []
    for path in paths:
        content = path.read_bytes()
        if b'"result/1"' not in content[:200]:
            continue
        try:
            results.append(msgspec.json.decode(content, type=Result))
        except (msgspec.DecodeError, BadInput) as error:
            raise BadArtefact(f"{path}: expected a result of evaluate, got: {error}; run evaluate again") from None
    if not results:
        raise BadArtefact(
            f"{folder}: expected results of evaluate, found none; run `mathppo evaluate` with --out, for score "
            "and export with --benchmarks too"
        )
    return results


def write_problems(path: Path, problems: Sequence[Problem]) -> None:
    """Write the problems as they were asked, unless they are there already."""
    made_from = problems_hash(problems)
    if not store.is_finished(path, store.PROBLEMS, made_from):
        store.write_artefact(path, store.PROBLEMS, problems, made_from)


def draw_samples(
    engine: Generator,
    weights: str,
    requests: Sequence[Request],
    sampling: Sampling,
    log: Path,
    *,
    benchmark: str,
    identity: str,
    reporter: Reporter = SILENT,
) -> list[Sample]:
    """Draw the samples that the log lacks, and return all in the requests' order; `weights` is the policy's identity.

    An incomplete portion of requests is drawn again as a whole, and the missing samples are added: the composition of
    batches, and with it the last bit, does not depend on when an earlier run was killed.
    """
    keys = [
        store.fingerprint(
            weights=weights,
            prompt=request.prompt_ids,
            sampling=sampling,
            seed=request.seed,
            sample_index=request.sample_index,
        )
        for request in requests
    ]
    wanted = set(keys)
    with store.open_log(log) as out:
        found = {sample.key: sample for sample in store.read_log(log, SAMPLES) if sample.key in wanted}
        done = sum(key in found for key in keys)
        with reporter.task(f"{benchmark} answers", len(requests), done=done) as advance:
            rate = TokenRate()
            for start in range(0, len(requests), SAMPLED_AT_ONCE):
                at_once = slice(start, start + SAMPLED_AT_ONCE)
                portion = list(zip(keys[at_once], requests[at_once], strict=True))
                missing = {(r.problem_id, r.sample_index): key for key, r in portion if key not in found}
                if not missing:
                    continue
                drawn = {}
                for rollout in engine.generate([request for _, request in portion], sampling):
                    drawn[rollout.key] = rollout
                    advance(int(rollout.key in missing), **rate(rollout))
                new = [_sample(key, drawn[place], benchmark, identity) for place, key in missing.items()]
                out.append(map(SAMPLES.encode, new))
                found |= {sample.key: sample for sample in new}
    return [found[key] for key in keys]


def _sample(key: str, rollout: Rollout, benchmark: str, identity: str) -> Sample:
    return Sample(
        key=key,
        identity=identity,
        benchmark=benchmark,
        problem_id=rollout.problem_id,
        sample_index=rollout.sample_index,
        completion=rollout.completion,
        num_tokens=len(rollout.completion_ids),
        finish_reason=rollout.finish_reason,
        policy_step=rollout.policy_step,
        seed=rollout.seed,
    )


def samples_of(folder: BenchmarkFolder, results: Sequence[Result]) -> list[list[Sample]]:
    """Return each result's samples in order of problem and index, from one pass over the log.

    Raises:
        BadArtefact: samples that the log lacks.
    """
    found: dict[str, dict[tuple[str, int], Sample]] = defaultdict(dict)
    for sample in store.read_log(folder.samples, SAMPLES):
        found[sample.identity][sample.problem_id, sample.sample_index] = sample
    per_result = []
    for result in results:
        logged, n = found[result.identity], result.evaluation.samples_per_problem
        wanted = [(problem_id, index) for problem_id in result.problem_ids for index in range(n)]
        missing = [key for key in wanted if key not in logged]
        if missing:
            raise BadArtefact(
                f"{folder.samples}: expected {len(wanted)} samples of {result.label}, got "
                f"{len(wanted) - len(missing)}; run evaluate again"
            )
        per_result.append([logged[key] for key in wanted])
    return per_result


def grader_identity(settings: GraderSettings) -> list[str | float]:
    """Return the identity of a grader, with version and hash of its file, so that a changed one grades again."""
    file = Path(settings.name.partition(":")[0])
    source = hashlib.sha256(file.read_bytes()).hexdigest() if file.suffix == ".py" and file.is_file() else ""
    return [settings.name, source, versions()["mathppo"], settings.time_limit_s, settings.memory_limit_bytes]


def verdict_key(sample_key: str, grader: Sequence[str | float], problem: Problem) -> str:
    """Return the key of the verdict of a grader, given by its identity, on a sample."""
    return store.fingerprint(sample=sample_key, grader=grader, reference=problem.reference, question=problem.question)


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
    """Grade the samples whose verdicts the log lacks, and return all verdicts in the samples' order.

    Raises:
        BadInput: a sample of an unknown problem.
        StageFailed: the grader itself failed on more than `grader.max_error_share` of them.
    """
    grader = grader_identity(settings)
    keys = []
    for sample in samples:
        if sample.problem_id not in problems:
            raise BadInput(f"sample of {sample.problem_id!r}: expected one of the {len(problems)} problems at hand")
        keys.append(verdict_key(sample.key, grader, problems[sample.problem_id]))
    wanted = set(keys)
    with store.open_log(log) as out:
        found = {graded.key: graded for graded in store.read_log(log, GRADED_SAMPLES) if graded.key in wanted}
        missing = [i for i, key in enumerate(keys) if key not in found]
        with reporter.task(title, len(samples), done=len(samples) - len(missing)) as advance:
            for start in range(0, len(missing), GRADED_AT_ONCE):
                part = missing[start : start + GRADED_AT_ONCE]
                items = [grading_item(samples[i].completion, problems[samples[i].problem_id], template) for i in part]
                new = [
                    GradedSample(key=keys[i], sample=samples[i].key, reference=reference, verdict=verdict)
                    for i, (_, reference, _), verdict in zip(part, items, pool.grade(items), strict=True)
                ]
                out.append(map(GRADED_SAMPLES.encode, new))
                found |= {graded.key: graded for graded in new}
                advance(len(part))
    graded = [found[key] for key in keys]
    check_grader_errors(log, "samples", [item.verdict for item in graded], settings.max_error_share)
    return graded


def answers_of(samples: Sequence[Sample], graded: Sequence[GradedSample]) -> list[Answer]:
    """Return samples with their verdicts as answers."""
    return [
        Answer(s.problem_id, s.sample_index, s.num_tokens, s.finish_reason is FinishReason.LENGTH, g.verdict)
        for s, g in zip(samples, graded, strict=True)
    ]
