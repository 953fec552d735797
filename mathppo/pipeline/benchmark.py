"""`mathppo evaluate --benchmarks`: a policy on many sets under many prompts, resumable sample by sample.

    OUT/
      samples.jsonl                 every completion, append-only, keyed (see evaluate/samples.py)
      verdicts.jsonl                every verdict, append-only, keyed
      problems/<set>.<golds>/       the problems as they were asked
      prompts/<set>.<template>.<hash>.json   the prompts as the model saw them
      results/<policy>/<set>.<template>.<mode>.json
      table.md, table.csv           one line a row of every result

Touches: the output folder, through the store; benchmark files, through their loader.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from graders import GraderPool
from mathppo import store
from mathppo.append_log import AppendLog, read_log
from mathppo.config import Config
from mathppo.errors import BadArtefact, BadInput, BadSetting
from mathppo.evaluate.benchmarks import Benchmark
from mathppo.evaluate.metrics import Evaluation, Mode, summarise_outcomes
from mathppo.evaluate.result import FirstPrompt, Result, counts_of, problems_hash, prompts_hash
from mathppo.evaluate.samples import SAMPLES, GradedSample, Sample
from mathppo.evaluate.tables import csv_table, markdown_table
from mathppo.generator.base import Generator, Request, Sampling
from mathppo.pipeline.grading import grade_samples, outcomes_of
from mathppo.pipeline.stages import sampling_of
from mathppo.progress import SILENT, Reporter
from mathppo.prompts import TEMPLATES, PreTrainedTokenizerBase, encode_prompt
from mathppo.records import Problem, Rollout
from mathppo.seeds import derive_seed

SAMPLED_AT_ONCE = 512
"""Samples that are drawn together and logged together: what a kill may cost, and what makes a resumed run the same."""


@dataclass(frozen=True)
class Policy:
    """A policy that is evaluated.

    Args:
        engine: holds its weights.
        tokenizer: its own.
        name: what a person calls it.
        weights: identity of the weights.
        step: number of updates that they have seen.
    """

    engine: Generator
    tokenizer: PreTrainedTokenizerBase
    name: str
    weights: str
    step: int


@dataclass(frozen=True)
class Prompting:
    """How questions become prompts: a template, and a chat's system prompt (None for the template's own)."""

    template: str
    system: str | None = None


def applicable_templates(policy: Policy, problem: Problem, system: str | None, reporter: Reporter) -> list[str]:
    """Give every template that the policy's tokenizer can write, saying which it cannot and why."""
    found = []
    for template in TEMPLATES:
        try:
            encode_prompt(problem, policy.tokenizer, template=template, system=_system(template, system))
            found.append(template)
        except (BadInput, BadSetting) as error:
            reporter.say(f"template {template} left out: {error}")
    return found


def evaluate_benchmarks(
    policy: Policy,
    pool: GraderPool,
    benchmarks: Sequence[tuple[Benchmark, int]],
    prompting: Prompting,
    config: Config,
    out: Path,
    *,
    golds: str = "corrected",
    reporter: Reporter = SILENT,
) -> Iterator[Result]:
    """Evaluate a policy on sets with their samples a problem, and yield each result; template `all` means each in turn.

    The tables in the folder then show all results that it holds, those of other policies included.
    """
    for benchmark, samples in benchmarks:
        templates = [prompting.template]
        if prompting.template == "all":
            templates = applicable_templates(policy, benchmark.problems[0], prompting.system, reporter)
        for template in templates:
            chosen = Prompting(template, prompting.system)
            yield evaluate_benchmark(
                policy, pool, benchmark, samples, chosen, config, out, golds=golds, reporter=reporter
            )
            results = read_results(out / "results")
            store.write_file(out / "table.md", markdown_table(results))
            store.write_file(out / "table.csv", csv_table(results))


def evaluate_benchmark(
    policy: Policy,
    pool: GraderPool,
    benchmark: Benchmark,
    samples: int,
    prompting: Prompting,
    config: Config,
    out: Path,
    *,
    golds: str = "corrected",
    reporter: Reporter = SILENT,
) -> Result:
    """Evaluate a policy on one set under one prompt; what earlier runs logged is not done again.

    One sample a problem is greedy; several are drawn at `evaluate.temperature`.
    """
    problems, template, tokenizer = benchmark.problems, prompting.template, policy.tokenizer
    system = _system(template, prompting.system)
    name = benchmark.card.name
    _keep_problems(out, name, golds, problems)
    prompts = {p.id: encode_prompt(p, tokenizer, template=template, system=system) for p in problems}
    sampling = sampling_of(config, tokenizer, temperature=0.0 if samples == 1 else config.evaluate.temperature)
    identity = store.fingerprint(
        weights=policy.weights,
        benchmark=name,
        template=template,
        system=system,
        sampling=sampling,
        seed=config.run.seed,
    )
    requests = [
        Request(
            problem_id=problem.id,
            sample_index=index,
            prompt_ids=tuple(prompts[problem.id]),
            seed=derive_seed(config.run.seed, "benchmark", name, problem.id, index),
        )
        for problem in problems
        for index in range(samples)
    ]
    logged = draw_samples(
        policy, requests, sampling, out / "samples.jsonl", benchmark=name, identity=identity, reporter=reporter
    )
    by_id = {problem.id: problem for problem in problems}
    graded = grade_samples(
        pool, config.grader, logged, by_id, out / "verdicts.jsonl", template=template, reporter=reporter,
        title=f"{name} verdicts",
    )  # fmt: skip
    first, tallied = problems[0].id, tally(pool, name, policy.step, problems, logged, graded)
    result = Result(
        benchmark=name,
        template=template,
        golds=golds,
        weights=policy.weights,
        model=policy.name,
        grader=config.grader.name,
        identity=identity,
        system=system,
        temperature=sampling.temperature,
        max_new_tokens=sampling.max_new_tokens,
        seed=config.run.seed,
        problems_sha256=problems_hash(problems),
        prompts_sha256=prompts_hash(prompts),
        first_prompt=FirstPrompt(problem_id=first, text=str(tokenizer.decode(prompts[first])), ids=prompts[first]),
        notes=_notes(benchmark),
        evaluation=tallied.evaluation,
        problem_ids=[problem.id for problem in problems],
        num_correct=tallied.num_correct,
        num_graded=tallied.num_graded,
    )
    texts = {name: str(tokenizer.decode(ids)) for name, ids in prompts.items()}
    store.write_file(prompts_file(out, result), msgspec.json.encode(texts))
    write_record(out / "results" / policy_folder(policy.step, policy.weights) / f"{result.label}.json", result)
    return result


class Tally(NamedTuple):
    """The part of a result that the verdicts decide; the fields are those of `Result`."""

    evaluation: Evaluation
    num_correct: list[int]
    num_graded: list[int]


def tally(
    pool: GraderPool,
    name: str,
    policy_step: int,
    problems: Sequence[Problem],
    samples: Sequence[Sample],
    graded: Sequence[GradedSample],
) -> Tally:
    """Turn verdicts into rows and counts; the same log gives the same bytes."""
    outcomes = outcomes_of(pool, samples, graded, {problem.id: problem for problem in problems})
    mode = Mode.SAMPLED if len(samples) > len(problems) else Mode.GREEDY
    evaluation = summarise_outcomes(name, policy_step, mode, problems, outcomes, by_answer=True)
    counts = [counts_of(outcomes[problem.id]) for problem in problems]
    return Tally(evaluation, [correct for correct, _ in counts], [graded for _, graded in counts])


def draw_samples(
    policy: Policy,
    requests: Sequence[Request],
    sampling: Sampling,
    log: Path,
    *,
    benchmark: str,
    identity: str,
    reporter: Reporter = SILENT,
) -> list[Sample]:
    """Sample what the log does not hold yet; give all samples in the requests' order.

    A portion of requests that is not in the log as a whole is drawn again as a whole, and what is missing is added:
    what is batched with what, and so the last bit, does not depend on where an earlier run was killed.
    """
    keys = [_sample_key(policy, request, sampling) for request in requests]
    wanted = set(keys)
    with AppendLog(log, SAMPLES) as out:
        found = {sample.key: sample for sample in read_log(log, SAMPLES) if sample.key in wanted}
        done = sum(key in found for key in keys)
        with reporter.task(f"{benchmark} answers", len(requests), done=done) as advance:
            for start in range(0, len(requests), SAMPLED_AT_ONCE):
                portion = dict(zip(keys[start : start + SAMPLED_AT_ONCE], requests[start:], strict=False))
                missing = [key for key in portion if key not in found]
                if not missing:
                    continue
                drawn: dict[tuple[str, int], Rollout] = {}
                new_ones = {(portion[key].problem_id, portion[key].sample_index) for key in missing}
                for rollout in policy.engine.generate(list(portion.values()), sampling):
                    drawn[rollout.problem_id, rollout.sample_index] = rollout
                    advance(int((rollout.problem_id, rollout.sample_index) in new_ones))
                new = [
                    _logged(key, drawn[portion[key].problem_id, portion[key].sample_index], benchmark, identity)
                    for key in missing
                ]
                out.append(new)
                found |= {sample.key: sample for sample in new}
    return [found[key] for key in keys]


def read_results(folder: Path) -> list[Result]:
    """Read the results of an output folder, or of one policy's folder within it, by name.

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
        raise BadArtefact(f"{folder}: expected results of evaluate, found none; run `mathppo evaluate` with --out")
    return results


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Write one record for a person to read."""
    store.write_file(path, msgspec.json.format(msgspec.json.encode(record)))


def problems_folder(out: Path, benchmark: str, golds: str) -> Path:
    """Give where an evaluation keeps the problems as it asked them."""
    return out / "problems" / f"{benchmark}.{golds}"


def policy_folder(step: int, weights: str) -> str:
    """Give the name of a policy's own folder among the results."""
    return f"step{step:06d}-{weights[:8]}"


def prompts_file(out: Path, result: Result) -> Path:
    """Give where an evaluation keeps its prompts as the model saw them, by problem id."""
    name = f"{result.benchmark}.{result.template}.{result.prompts_sha256[:8]}.json"
    return out / "prompts" / name


def _keep_problems(out: Path, name: str, golds: str, problems: Sequence[Problem]) -> None:
    made_from, path = problems_hash(problems), problems_folder(out, name, golds)
    if not store.is_finished(path, store.PROBLEMS, made_from):
        store.write_artefact(path, store.PROBLEMS, problems, made_from)


def _sample_key(policy: Policy, request: Request, sampling: Sampling) -> str:
    return store.fingerprint(
        weights=policy.weights,
        prompt=request.prompt_ids,
        sampling=sampling,
        seed=request.seed,
        sample_index=request.sample_index,
    )


def _logged(key: str, rollout: Rollout, benchmark: str, identity: str) -> Sample:
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


def _system(template: str, system: str | None) -> str | None:
    """A system prompt is the chat's alone."""
    return system if template == "chat_boxed" else None


def _notes(benchmark: Benchmark) -> list[str]:
    notes = list(benchmark.card.notes)
    if benchmark.corrected:
        notes.append(f"{len(benchmark.corrected)} right answers corrected: {', '.join(benchmark.corrected)}")
    if benchmark.as_stated is False:
        notes.append("problems or right answers are not those that the card's hash states")
    return notes
