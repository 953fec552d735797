"""`mathppo evaluate --benchmarks`: a policy on many sets under many prompts, resumable sample by sample.

OUT/
  samples.jsonl                 every completion, append-only, keyed (see evaluate/samples.py)
  verdicts.jsonl                every verdict, append-only, keyed
  problems/<set>.<golds>/       the problems as they were asked
  prompts/<set>.<template>.<hash>.json   the prompts as the model saw them
  results/<policy>/<set>.<template>.<mode>.json
  table.md, table.csv           one line a row of every result
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from graders import GraderPool
from mathppo.config import Config
from mathppo.errors import BadInput, BadSetting
from mathppo.evaluate.accuracy import Evaluation, Mode, summarise_outcomes
from mathppo.evaluate.benchmarks import Benchmark
from mathppo.evaluate.result import FirstPrompt, Result, counts_of, problems_hash, prompts_hash
from mathppo.evaluate.samples import GradedSample, Sample
from mathppo.evaluate.tables import csv_table, markdown_table
from mathppo.generator.base import Request
from mathppo.pipeline.stages.grade_samples import grade_samples, outcomes_of
from mathppo.pipeline.stages.result_files import keep_problems, policy_folder, prompts_file, read_results, write_record
from mathppo.pipeline.stages.sample_and_grade import check_size, sampling_of
from mathppo.pipeline.stages.sample_log import Policy, draw_samples
from mathppo.progress import SILENT, Reporter
from mathppo.prompts import TEMPLATES, encode_prompt
from mathppo.records import Problem
from mathppo.seeds import derive_seed
from mathppo.storage import store


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

    Raises:
        BadInput: more samples than can be summarised, or a prompt that the policy's tokenizer cannot write.
    """
    name, problems, template, tokenizer = benchmark.card.name, benchmark.problems, prompting.template, policy.tokenizer
    check_size(name, len(problems), samples)
    system = _system(template, prompting.system)
    keep_problems(out, name, golds, problems)
    prompts = {p.id: encode_prompt(p, tokenizer, template=template, system=system) for p in problems}
    sampling = sampling_of(config, tokenizer, temperature=0.0 if samples == 1 else config.evaluate.temperature)
    identity = store.fingerprint(
        weights=policy.weights, benchmark=name, template=template, system=system, sampling=sampling,
        seed=config.run.seed,
    )  # fmt: skip
    logged = draw_samples(
        policy, _requests(name, prompts, samples, config.run.seed), sampling, out / "samples.jsonl", benchmark=name,
        identity=identity, reporter=reporter,
    )  # fmt: skip
    graded = grade_samples(
        pool, config.grader, logged, {p.id: p for p in problems}, out / "verdicts.jsonl", template=template,
        reporter=reporter, title=f"{name} verdicts",
    )  # fmt: skip
    first, tallied = problems[0].id, tally(pool, name, policy.step, problems, logged, graded)
    texts = {problem_id: str(tokenizer.decode(ids)) for problem_id, ids in prompts.items()}
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
        first_prompt=FirstPrompt(problem_id=first, text=texts[first], ids=prompts[first]),
        notes=_notes(benchmark),
        problem_ids=[problem.id for problem in problems],
        **tallied._asdict(),
    )
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


def _requests(name: str, prompts: Mapping[str, list[int]], samples: int, seed: int) -> list[Request]:
    return [
        Request(
            problem_id=problem_id,
            sample_index=index,
            prompt_ids=ids,
            seed=derive_seed(seed, "benchmark", name, problem_id, index),
        )
        for problem_id, ids in ((problem_id, tuple(ids)) for problem_id, ids in prompts.items())
        for index in range(samples)
    ]


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
