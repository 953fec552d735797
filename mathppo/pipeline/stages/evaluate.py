"""Stage `evaluate`: a policy and held-out problems to accuracies with intervals."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from graders import GraderPool
from mathppo.config import Config
from mathppo.evaluate.accuracy import Evaluation, Mode, summarise
from mathppo.evaluate.outcomes import Outcome
from mathppo.evaluate.result import FirstPrompt, Result, counts_of, problems_hash, prompts_hash
from mathppo.generator.base import Generator
from mathppo.pipeline.stages.result_files import write_record
from mathppo.pipeline.stages.sample_and_grade import Grading, make_requests, sampling_of, write_rollouts, write_scored
from mathppo.progress import SILENT, Reporter
from mathppo.prompts import PreTrainedTokenizerBase
from mathppo.records import Problem, ScoredRollout
from mathppo.storage import store


def evaluate_policy(
    engine: Generator,
    tokenizer: PreTrainedTokenizerBase,
    pool: GraderPool,
    problems: Sequence[Problem],
    config: Config,
    out: Path,
    *,
    mode: Mode,
    policy_step: int,
    weights: str,
    reporter: Reporter = SILENT,
) -> Evaluation:
    """Write `out/<mode>/` with rollouts and verdicts and `out/<mode>.json` with the evaluation, and give the latter.

    `out/<mode>.result.json` says the same problem by problem, for `mathppo compare`.

    Args:
        engine: holds the policy.
        tokenizer: the policy's.
        pool: the grader.
        problems: held-out problems.
        config: of the run.
        out: folder of this evaluation.
        mode: greedy (one completion a problem), or sampled at `evaluate.temperature`.
        policy_step: number of updates that the policy has seen.
        weights: says which weights they are, so that no other policy's rollouts are taken for its own.
        reporter: shows progress.
    """
    greedy = mode is Mode.GREEDY
    requests = make_requests(
        problems,
        tokenizer,
        config,
        samples=1 if greedy else config.evaluate.samples_per_problem,
        purpose=f"evaluate {mode}",
    )
    sampling = sampling_of(config, tokenizer, temperature=0.0 if greedy else config.evaluate.temperature)
    made_from = store.fingerprint(weights=weights, requests=requests, sampling=sampling)
    grading = Grading(pool, {problem.id: problem for problem in problems})
    rollouts = write_rollouts(
        engine,
        requests,
        sampling,
        out / mode / "rollouts",
        made_from=made_from,
        on_rollout=grading.add,
        reporter=reporter,
        title=f"{mode} answers",
    )
    made_from = store.fingerprint(
        rollouts=made_from, problems=list(problems), grader=config.grader, reward=config.reward
    )
    scored = write_scored(
        grading,
        rollouts,
        config,
        out / mode / "scored",
        made_from=made_from,
        reporter=reporter,
        title=f"{mode} verdicts",
    )
    evaluation = summarise(config.problems.held_out, policy_step, mode, problems, scored)
    prompts = {request.problem_id: list(request.prompt_ids) for request in requests}
    result = _result(tokenizer, problems, scored, config, evaluation, prompts, sampling.temperature, weights)
    write_record(out / f"{mode}.result.json", result)
    write_record(out / f"{mode}.json", evaluation)
    return evaluation


def _result(
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    scored: Sequence[ScoredRollout],
    config: Config,
    evaluation: Evaluation,
    prompts: Mapping[str, list[int]],
    temperature: float,
    weights: str,
) -> Result:
    """Give what comparisons read, problem by problem."""
    by_problem: dict[str, list[Outcome]] = {problem.id: [] for problem in problems}
    for item in scored:
        rollout = item.rollout
        outcome = Outcome(item.verdict.status, len(rollout.completion_ids), rollout.truncated)
        by_problem[rollout.problem_id].append(outcome)
    counts = [counts_of(outcomes) for outcomes in by_problem.values()]
    first = problems[0].id
    return Result(
        benchmark=config.problems.held_out,
        template=config.problems.template,
        golds="corrected",  # as `prepare` loads a benchmark
        weights=weights,
        model=f"step {evaluation.policy_step}",
        grader=config.grader.name,
        identity=store.fingerprint(weights=weights, prompts=prompts, mode=evaluation.mode, seed=config.run.seed),
        system=None,
        temperature=temperature,
        max_new_tokens=config.generator.max_new_tokens,
        seed=config.run.seed,
        problems_sha256=problems_hash(problems),
        prompts_sha256=prompts_hash(prompts),
        first_prompt=FirstPrompt(problem_id=first, text=str(tokenizer.decode(prompts[first])), ids=prompts[first]),
        notes=[],
        evaluation=evaluation,
        problem_ids=list(by_problem),
        num_correct=[correct for correct, _ in counts],
        num_graded=[graded for _, graded in counts],
    )


def read_evaluations(folder: Path) -> list[Evaluation]:
    """Give the evaluations of one step, one per mode."""
    return [msgspec.json.decode((folder / f"{mode}.json").read_bytes(), type=Evaluation) for mode in Mode]
