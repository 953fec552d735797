"""Synthetic run directory with every file that a report reads, from a few formulas and one seed."""

import json
import math
import random
from pathlib import Path

import msgspec

from graders.verdict import Status, Verdict
from mathppo.evaluate.accuracy import Evaluation, EvaluationRow, Group, Mode
from mathppo.evaluate.result import Result
from mathppo.evaluate.statistics import wilson_interval
from mathppo.metrics import NUM_POSITIONS, CriticPretraining, Iteration, append_row
from mathppo.records import FinishReason, Problem, Rollout, ScoredRollout
from mathppo.report.rollout_views import RolloutView, write_views
from mathppo.storage import store

CONFIG = """[run]
seed = 7

[learner]
algorithm = "ppo"
lr = 3e-4

[reward]
kind = "grader"

[problems]
held_out = "linear"
"""


def skill(iteration: int, lift: float) -> float:
    """Return the accuracy of the synthetic policy, which rises and saturates."""
    return 0.36 + lift * (1 - math.exp(-iteration / 38))


def metrics_row(iteration: int, lift: float, source: random.Random) -> Iteration:
    accuracy = min(1.0, max(0.0, source.gauss(skill(iteration, lift) - 0.06, 0.04)))
    fade = math.exp(-iteration / 40)
    known = 0.3 + 0.25 * (1 - fade)
    return Iteration(
        iteration=iteration,
        metrics={
            "reward_mean": accuracy,
            "accuracy": accuracy,
            "truncated_share": 0.08 * fade + abs(source.gauss(0, 0.006)),
            "no_answer_share": 0.07 * fade + abs(source.gauss(0, 0.004)),
            "unparsable_share": 0.05 * fade + abs(source.gauss(0, 0.003)),
            "over_budget_share": 0.0,
            "grader_error_share": 0.004 if iteration % 40 == 0 else 0.0,
            "length_mean_tokens": 16 - 2 * (1 - fade) + source.gauss(0, 0.15),
            "length_terminated_mean_tokens": 15.2 - 1.6 * (1 - fade) + source.gauss(0, 0.12),
            "length_p95_tokens": 24 - 5 * (1 - fade) + source.gauss(0, 0.6),
            "approx_kl": abs(source.gauss(0.0026, 0.0008)),
            "behaviour_kl": abs(source.gauss(2e-5, 1e-5)),
            "clip_share_high": abs(source.gauss(0.021, 0.006)),
            "clip_share_low": abs(source.gauss(0.014, 0.005)),
            "entropy": 0.11 + 0.26 * fade + source.gauss(0, 0.01),
            "importance_weight_mean": 1 + source.gauss(0, 1e-4),
            "value_mean": accuracy - 0.06 * fade,
            "return_mean": accuracy,
            "policy_loss": source.gauss(-0.01, 0.004),
            "value_loss": 0.1 * fade + 0.05 + source.gauss(0, 0.004),
            "explained_variance_outcome": known + source.gauss(0, 0.05),
            "explained_variance_target": known + 0.04 + source.gauss(0, 0.04),
            "policy_grad_norm": 0.6 + abs(source.gauss(0, 0.12)),
            "critic_grad_norm": 0.9 * fade + 0.4 + abs(source.gauss(0, 0.12)),
            "policy_lr": 3e-4 * (1 - iteration / 141),
            "critic_lr": 1e-3,
            "num_tokens": 2048.0,
            "generate_s": 0.21,
            "grade_s": 0.05,
            "learn_s": 0.42,
            "other_s": 0.02,
            "tokens_per_s": 9752.0,
            "value_by_position": [accuracy + 0.15 * (i / 9 - 0.3) * (1 - fade) for i in range(NUM_POSITIONS)],
            "behaviour_ess_share": 1 - abs(source.gauss(2e-4, 1e-4)),
            "behaviour_logratio_by_size": [0.0, 0.1, 0.3, 0.4, 0.15, 0.05, 0.0, 0.0, 0.0, 0.0],
            "advantage_by_position": [0.05 * math.sin(i / 2) * fade - 0.01 for i in range(NUM_POSITIONS)],
        },
    )


def evaluation(step: int, mode: Mode, lift: float, count: int = 2000) -> Evaluation:
    def row(group: Group, label: str, accuracy: float, problems: int) -> EvaluationRow:
        correct = round(accuracy * problems)
        low, high = wilson_interval(correct, problems)
        return EvaluationRow(
            group=group, label=label, num_problems=problems, num_samples=problems, accuracy=correct / problems,
            low=low, high=high, finished_accuracy=accuracy, truncated_share=0.06 * math.exp(-step / 40),
            no_answer_share=0.04 * math.exp(-step / 40), unparsable_share=0.0, over_budget_share=0.0, error_share=0.0,
            mean_length_tokens=15.0, p95_length_tokens=22.0,
        )  # fmt: skip

    base = skill(step, lift) - (0.07 if mode is Mode.SAMPLED else 0.0)
    rows = [row(Group.ALL, "all", base, count), row(Group.FAMILY, "linear", base, count)]
    rows += [row(Group.LEVEL, str(n), max(0.02, min(0.99, base + 0.24 - 0.1 * n)), count // 5) for n in range(1, 6)]
    return Evaluation(name="linear", policy_step=step, mode=mode, samples_per_problem=1, rows=rows)


def result(found: Evaluation, step: int) -> Result:
    """Return the evaluation problem by problem; problems solved at one step mostly stay solved at the next."""
    count = found.overall.num_problems
    hardness = random.Random(1)
    luck = random.Random(step + 1)
    correct = [int(hardness.random() + luck.gauss(0, 0.1) < (found.overall.accuracy or 0.0)) for _ in range(count)]
    return Result(
        benchmark=found.name, template="plain", golds="official", weights="w", model=f"step {step}", grader="math",
        identity="i", system=None, temperature=0.0, max_new_tokens=32, seed=7, problems_sha256="p",
        prompts_sha256="q", first_prompt=None, notes=[], evaluation=found,
        problem_ids=[f"p{i}" for i in range(count)], num_correct=correct, num_graded=[1] * count,
    )  # fmt: skip


def write_regressions(folder: Path) -> None:
    """Write problems, rollouts and scores of the first and last greedy evaluation, with two problems lost."""
    texts = [("Solve $\\frac{x}{2}+3=7$ <b>", "8"), ("What is $\\sqrt{16}$?", "4"), ("What is 1+1?", "2")]
    problems = [Problem(id=f"p{i}", question=text, reference=right) for i, (text, right) in enumerate(texts)]
    store.write_artefact(folder / "problems" / "held_out", store.PROBLEMS, problems, "made")
    steps = sorted(int(path.name) for path in (folder / "evaluations").iterdir())
    for step, solved in ((steps[0], (True, True, False)), (steps[-1], (False, False, True))):
        scored = [
            ScoredRollout(
                rollout=Rollout(
                    problem_id=problem.id, sample_index=0, prompt_ids=[1], completion_ids=[5, 2],
                    completion=f"so \\boxed{{{problem.reference if right else '-1'}}}", behaviour_logprobs=[-1.0, -1.0],
                    finish_reason=FinishReason.STOP, policy_step=step, seed=0,
                ),
                verdict=Verdict(
                    Status.CORRECT if right else Status.INCORRECT, problem.reference if right else "-1", "math",
                    "exact", "" if right else f"-1 is not {problem.reference}", 0.0,
                ),
                reward=float(right),
            )
            for problem, right in zip(problems, solved, strict=True)
        ]  # fmt: skip
        at = folder / "evaluations" / f"{step:06d}" / "greedy"
        store.write_artefact(at / "rollouts", store.ROLLOUTS, [item.rollout for item in scored], "made")
        scores = [item.score for item in scored]
        store.write_artefact(at / "scored", store.SCORED, scores, "made", source=at / "rollouts")


def view(index: int, source: random.Random, completion: list[str] | None = None) -> RolloutView:
    a, b, x = source.randint(2, 5), source.randint(1, 9), source.randint(-9, 9)
    status = source.choices(list(Status), [60, 25, 6, 6, 2, 2])[0]
    answer = str(x if status is Status.CORRECT else x + 1)
    text = f"{a} x = {a * x + b} - {b} \n {a} x = {a * x} \n \\boxed{{ {answer} }} <eos>"
    tokens = completion or text.replace(" ", "|").split("|")
    if status is Status.NO_ANSWER:
        tokens = [*tokens[:9], "+", "0", "+", "0", "+", "0"]
    final = 0.9 if status is Status.CORRECT else 0.15
    values = [0.5 + (final - 0.5) * t / len(tokens) + source.gauss(0, 0.05) for t in range(len(tokens))]
    reward = None if status is Status.ERROR else float(status is Status.CORRECT)
    logprobs = [-abs(source.gauss(0, 0.4)) for _ in tokens]
    return RolloutView(
        problem_id=f"p{index}", question=f"Solve {a}x + {b} = {a * x + b}", reference=str(x),
        prompt=["<bos>", *f"{a}x+{b}={a * x + b}", "\n"], completion=tokens, behaviour_logprobs=logprobs,
        old_logprobs=[p + source.gauss(0, 1e-4) for p in logprobs], values=values,
        advantages=[(reward or 0.0) - v for v in values],
        verdict=Verdict(status, None if status is Status.NO_ANSWER else answer, "math", "exact", "", 0.001),
        reward=reward, truncated=status is Status.NO_ANSWER, policy_step=20 * (index % 8),
    )  # fmt: skip


def write_run(folder: Path, *, lift: float = 0.58, iterations: int = 140, seed: int = 0, views: int = 60) -> Path:
    """Write the whole run directory; `lift` is the gain in accuracy."""
    source = random.Random(seed)
    folder.mkdir(parents=True)
    for epoch in range(1, 9):
        pretraining = {"value_loss": 0.25 - 0.012 * epoch, "explained_variance_outcome": 0.04 * epoch}
        append_row(folder / "metrics.jsonl", CriticPretraining(epoch=epoch, metrics=pretraining))
    lines = [msgspec.json.encode(metrics_row(i, lift, source)) + b"\n" for i in range(1, iterations + 1)]
    with open(folder / "metrics.jsonl", "ab") as log:
        log.writelines(lines)
    for step in sorted({*range(0, iterations + 1, 20), iterations}):
        for mode in Mode:
            found = evaluation(step, mode, lift, 2000 if step in (0, iterations) else 500)
            path = folder / "evaluations" / f"{step:06d}" / f"{mode}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.encode(found))
            path.with_name(f"{mode}.result.json").write_bytes(msgspec.json.encode(result(found, step)))
    summary = {"wall_s": {"generate": 29.4, "learn": 58.8, "total": 98.2}, "versions": {"torch": "2.13.0"}}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.toml").write_text(CONFIG)
    (folder / "manifest.json").write_text(json.dumps({"seed": 7, "versions": {"torch": "2.13.0"}}, indent=2))
    write_views(folder, [view(i, source) for i in range(views)])
    write_regressions(folder)
    return folder
