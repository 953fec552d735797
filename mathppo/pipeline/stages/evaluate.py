"""Stage `evaluate`: a policy and problem sets to accuracies with intervals.

`evaluate` samples, grades and summarises one set under one prompt, wherever the samples are stored. Two callers store
them differently: `evaluate_held_out` writes artefacts with token ids, which the report and the learner read, and
`evaluate_benchmark` adds to the logs of a `BenchmarkFolder`, which further sets, samples and policies extend.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from graders import GraderPool
from mathppo.config import Config
from mathppo.errors import BadInput, BadSetting
from mathppo.evaluate.accuracy import Evaluation, Mode, summarise_outcomes
from mathppo.evaluate.benchmarks import Benchmark
from mathppo.evaluate.outcomes import Answer, outcomes_of
from mathppo.evaluate.result import FirstPrompt, Result, counts_of, problems_hash, prompts_hash
from mathppo.evaluate.tables import csv_table, markdown_table
from mathppo.generator.base import Generator, Request, Sampling
from mathppo.pipeline.benchmark_folder import (
    BenchmarkFolder,
    answers_of,
    draw_samples,
    grade_samples,
    read_results,
    result_path,
    write_problems,
)
from mathppo.pipeline.stages.generate import check_size, generate, make_requests, sampling_of
from mathppo.pipeline.stages.grade import BackgroundGrader, grade
from mathppo.progress import SILENT, Reporter
from mathppo.prompts import TEMPLATES, PreTrainedTokenizerBase, encode_prompt
from mathppo.records import Problem
from mathppo.storage import store
from mathppo.storage.files import write_file, write_record


@dataclass(frozen=True)
class Policy:
    """A policy to evaluate.

    Args:
        engine: holds its weights.
        tokenizer: the policy's tokenizer.
        name: display name.
        weights: identity of the weights.
        step: number of updates that they have seen.
    """

    engine: Generator
    tokenizer: PreTrainedTokenizerBase
    name: str
    weights: str
    step: int


@dataclass(frozen=True)
class Task:
    """A problem set, its prompts and the samples to draw.

    Args:
        name: the problem set.
        problems: the whole set.
        template: prompt template.
        system: system prompt of a chat; None for the template's default.
        mode: greedy, or sampled at `evaluate.temperature`.
        samples: completions per problem.
        purpose: parts of each sample's seed.
        golds: `corrected` or `official`.
        notes: for the reader of the result.
    """

    name: str
    problems: Sequence[Problem]
    template: str
    mode: Mode
    samples: int
    purpose: tuple[int | str, ...]
    system: str | None = None
    golds: str = "corrected"  # as `prepare` loads a benchmark
    notes: tuple[str, ...] = ()


AnswerRequests = Callable[[Sequence[Request], Sampling, str], Sequence[Answer]]
"""Samples and grades the requests whose answers are not stored yet, under the evaluation's identity; returns all."""


def evaluate(
    policy: Policy, task: Task, config: Config, answer: AnswerRequests, pool: GraderPool | None = None
) -> tuple[Result, dict[str, list[int]]]:
    """Sample, grade and summarise one policy on one set under one prompt.

    Args:
        policy: what to evaluate.
        task: what to ask.
        config: sampling, seed and grader.
        answer: samples, grades and stores.
        pool: see `tally`.

    Returns:
        The result, and the prompts' token ids by problem id.

    Raises:
        BadInput: more samples than fit in memory, or a prompt that the policy's tokenizer cannot encode.
    """
    check_size(task.name, len(task.problems), task.samples)
    requests = make_requests(
        task.problems,
        policy.tokenizer,
        config,
        samples=task.samples,
        purpose=task.purpose,
        template=task.template,
        system=task.system,
    )
    temperature = 0.0 if task.mode is Mode.GREEDY else config.evaluate.temperature
    sampling = sampling_of(config, policy.tokenizer, temperature=temperature)
    seed = config.run.seed
    identity = store.fingerprint(
        weights=policy.weights,
        benchmark=task.name,
        template=task.template,
        system=task.system,
        sampling=sampling,
        seed=seed,
    )
    answers = answer(requests, sampling, identity)
    prompts = {request.problem_id: list(request.prompt_ids) for request in requests}
    first = task.problems[0].id
    result = Result(
        benchmark=task.name,
        template=task.template,
        golds=task.golds,
        weights=policy.weights,
        model=policy.name,
        grader=config.grader.name,
        identity=identity,
        system=task.system,
        temperature=sampling.temperature,
        max_new_tokens=sampling.max_new_tokens,
        seed=seed,
        problems_sha256=problems_hash(task.problems),
        prompts_sha256=prompts_hash(prompts),
        first_prompt=FirstPrompt(
            problem_id=first, text=str(policy.tokenizer.decode(prompts[first])), ids=prompts[first]
        ),
        notes=list(task.notes),
        problem_ids=[problem.id for problem in task.problems],
        **tally(task.name, policy.step, task.mode, task.problems, answers, pool)._asdict(),
    )
    return result, prompts


class Tally(NamedTuple):
    """The part of a result that the verdicts decide; the fields are those of `Result`."""

    evaluation: Evaluation
    num_correct: list[int]
    num_graded: list[int]


def tally(
    name: str,
    policy_step: int,
    mode: Mode,
    problems: Sequence[Problem],
    answers: Sequence[Answer],
    pool: GraderPool | None = None,
) -> Tally:
    """Summarise answers as rows and counts per problem; the same answers give the same bytes.

    Args:
        name: the problem set.
        policy_step: number of updates that the policy had seen.
        mode: sampling mode.
        problems: the whole set.
        answers: every sample of every problem.
        pool: classifies answers for maj@k, and rows by type of the right answer are added; None leaves both out.
    """
    outcomes = outcomes_of(name, problems, answers, pool=pool)
    evaluation = summarise_outcomes(name, policy_step, mode, problems, outcomes, by_answer=pool is not None)
    counts = [counts_of(outcomes[problem.id]) for problem in problems]
    return Tally(evaluation, [correct for correct, _ in counts], [graded for _, graded in counts])


def evaluate_held_out(
    policy: Policy,
    pool: GraderPool,
    problems: Sequence[Problem],
    config: Config,
    out: Path,
    mode: Mode,
    *,
    reporter: Reporter = SILENT,
) -> Evaluation:
    """Evaluate a policy on the held-out problems of a run, and return the evaluation.

    Writes `out/<mode>/` with rollouts and scores, `out/<mode>.json` with the evaluation, and `out/<mode>.result.json`
    with the result problem by problem, for `mathppo compare`.

    Args:
        policy: what to evaluate.
        pool: the grader.
        problems: held-out problems.
        config: of the run.
        out: folder of this evaluation.
        mode: greedy with one completion per problem, or sampled.
        reporter: shows progress.
    """
    template = config.problems.template

    def answer(requests: Sequence[Request], sampling: Sampling, identity: str) -> list[Answer]:
        made_from = store.fingerprint(weights=policy.weights, requests=requests, sampling=sampling)
        grader = BackgroundGrader(pool, {problem.id: problem for problem in problems}, template)
        rollouts = generate(
            policy.engine,
            requests,
            sampling,
            out / mode / "rollouts",
            made_from=made_from,
            on_rollout=grader.add,
            reporter=reporter,
            title=f"{mode} answers",
        )
        scored = grade(
            grader,
            rollouts,
            config,
            out / mode / "scored",
            source=out / mode / "rollouts",
            made_from=store.fingerprint(
                rollouts=made_from, problems=list(problems), grader=config.grader, reward=config.reward
            ),
            reporter=reporter,
            title=f"{mode} verdicts",
        )
        return [
            Answer(*item.rollout.key, len(item.rollout.completion_ids), item.rollout.truncated, item.verdict)
            for item in scored
        ]

    samples = 1 if mode is Mode.GREEDY else config.evaluate.samples_per_problem
    purpose = (f"evaluate {mode}", 0)
    task = Task(config.problems.held_out, problems, template, mode, samples, purpose)
    result, _ = evaluate(policy, task, config, answer)
    write_record(out / f"{mode}.result.json", result)
    write_record(out / f"{mode}.json", result.evaluation)
    return result.evaluation


def read_evaluations(folder: Path) -> list[Evaluation]:
    """Return the evaluations of one step, one per mode."""
    return [msgspec.json.decode((folder / f"{mode}.json").read_bytes(), type=Evaluation) for mode in Mode]


def evaluate_benchmarks(
    policy: Policy,
    pool: GraderPool,
    benchmarks: Sequence[tuple[Benchmark, int]],
    template: str,
    config: Config,
    out: Path,
    *,
    system: str | None = None,
    golds: str = "corrected",
    reporter: Reporter = SILENT,
) -> Iterator[Result]:
    """Evaluate a policy on sets, each with its samples per problem, and yield each result.

    The template `all` means every template that the policy's tokenizer can encode. The tables in the folder then show
    all results that it holds, those of other policies included.
    """
    for benchmark, samples in benchmarks:
        templates = [template]
        if template == "all":
            templates = applicable_templates(policy, benchmark.problems[0], system, reporter)
        for chosen in templates:
            yield evaluate_benchmark(
                policy, pool, benchmark, samples, chosen, config, out, system=system, golds=golds, reporter=reporter
            )
            results = read_results(BenchmarkFolder(out).results)
            write_file(out / "table.md", markdown_table(results))
            write_file(out / "table.csv", csv_table(results))


def applicable_templates(policy: Policy, problem: Problem, system: str | None, reporter: Reporter) -> list[str]:
    """Return every template that the policy's tokenizer can encode, and report the others with the reason."""
    found = []
    for template in TEMPLATES:
        try:
            encode_prompt(problem, policy.tokenizer, template=template, system=_system(template, system))
            found.append(template)
        except (BadInput, BadSetting) as error:
            reporter.say(f"template {template} left out: {error}")
    return found


def evaluate_benchmark(
    policy: Policy,
    pool: GraderPool,
    benchmark: Benchmark,
    samples: int,
    template: str,
    config: Config,
    out: Path,
    *,
    system: str | None = None,
    golds: str = "corrected",
    reporter: Reporter = SILENT,
) -> Result:
    """Evaluate a policy on one set under one prompt; what earlier runs logged is not done again.

    One sample per problem is greedy; several are drawn at `evaluate.temperature`. Raises as `evaluate` does.
    """
    folder, name, problems = BenchmarkFolder(out), benchmark.card.name, benchmark.problems

    def answer(requests: Sequence[Request], sampling: Sampling, identity: str) -> list[Answer]:
        write_problems(folder.problems(name, golds), problems)
        logged = draw_samples(
            policy.engine, policy.weights, requests, sampling, folder.samples, benchmark=name, identity=identity,
            reporter=reporter,
        )  # fmt: skip
        graded = grade_samples(
            pool, config.grader, logged, {p.id: p for p in problems}, folder.verdicts, template=template,
            reporter=reporter, title=f"{name} verdicts",
        )  # fmt: skip
        return answers_of(logged, graded)

    mode = Mode.SAMPLED if samples > 1 else Mode.GREEDY
    purpose, system = ("benchmark", name), _system(template, system)
    task = Task(name, problems, template, mode, samples, purpose, system, golds, _notes(benchmark))
    result, prompts = evaluate(policy, task, config, answer, pool)
    texts = {problem_id: str(policy.tokenizer.decode(ids)) for problem_id, ids in prompts.items()}
    write_file(folder.prompts(result), msgspec.json.encode(texts))
    write_record(folder.results / result_path(result), result)
    return result


def _system(template: str, system: str | None) -> str | None:
    """Return the system prompt for a template: only the chat template takes one."""
    return system if template == "chat_boxed" else None


def _notes(benchmark: Benchmark) -> tuple[str, ...]:
    notes = list(benchmark.card.notes)
    if benchmark.corrected:
        notes.append(f"{len(benchmark.corrected)} right answers corrected: {', '.join(benchmark.corrected)}")
    if benchmark.as_stated is False:
        notes.append("problems or right answers are not those that the card's hash states")
    return tuple(notes)
