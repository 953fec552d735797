"""Stage `evaluate`: a policy and held-out problems to accuracies with intervals.

Touches: artefacts and evaluation files, through the store.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from graders import GraderPool
from mathppo import store
from mathppo.config import Config
from mathppo.evaluate.metrics import Evaluation, Mode, summarise
from mathppo.generator.base import Generator
from mathppo.pipeline.stages import Grading, make_requests, sampling_of, write_rollouts, write_scored
from mathppo.progress import SILENT, Reporter
from mathppo.prompts import PreTrainedTokenizerBase
from mathppo.records import Problem


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
    store.write_file(out / f"{mode}.json", msgspec.json.format(msgspec.json.encode(evaluation)))
    return evaluation


def read_evaluations(folder: Path) -> list[Evaluation]:
    """Give the evaluations of one step, one per mode."""
    return [msgspec.json.decode((folder / f"{mode}.json").read_bytes(), type=Evaluation) for mode in Mode]
