"""Metrics of an iteration compared with independent loops."""

import math
import statistics
from dataclasses import replace

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import scored_rollout, tiny_learner, tiny_rollouts

from graders.verdict import Status
from mathppo.batch import collate
from mathppo.learner import diagnostics
from mathppo.learner.experience import Experience, OldPolicy
from mathppo.metrics import NUM_POSITIONS, TRAINING_METRICS, check


def test_rollout_metrics_by_verdict_length_and_finish_reason() -> None:
    scored = [
        scored_rollout(completion_ids=[6] * 3, reward=1.0),
        scored_rollout(completion_ids=[6] * 8, reward=0.0, truncated=True, status=Status.NO_ANSWER),
        scored_rollout(completion_ids=[6] * 5, reward=0.0, status=Status.UNPARSABLE),
        scored_rollout(completion_ids=[6] * 4, reward=None),
        scored_rollout(completion_ids=[6] * 2, reward=0.0, status=Status.OVER_BUDGET),
    ]
    row = diagnostics.rollout_metrics(scored)
    assert row["reward_mean"] == row["accuracy"] == 0.25
    shares = ("truncated", "no_answer", "unparsable", "over_budget", "grader_error")
    assert [row[f"{name}_share"] for name in shares] == pytest.approx([0.2] * 5)
    assert row["length_mean_tokens"] == pytest.approx(4.4)
    assert row["length_terminated_mean_tokens"] == 3.5
    assert (row["length_correct_mean_tokens"], row["length_incorrect_mean_tokens"]) == (3.0, 4.75)
    assert (row["length_p95_tokens"], row["num_tokens"], row["num_rollouts_dropped"]) == (8.0, 22.0, 1.0)


def test_a_metric_without_a_value_is_left_out() -> None:
    row = diagnostics.rollout_metrics([scored_rollout(truncated=True, reward=None)])
    assert not {"reward_mean", "accuracy", "length_terminated_mean_tokens"} & row.keys()
    check(row)


def picked(experience: Experience, name: str) -> list[float]:
    mask = experience.batch.loss_mask.tolist()
    source = next(x for x in (experience, experience.old, experience.batch) if hasattr(x, name))
    return oracles.pick(getattr(source, name).tolist(), mask)


def test_experience_metrics_are_over_trained_tokens() -> None:
    learner = tiny_learner(kl_place="loss", kl_coef=0.25, lam=0.9, importance_cap=1.5)
    scored = [*tiny_rollouts(6), scored_rollout(reward=None, problem_id="broken", completion_ids=[4, 5, 6])]
    experience = learner.experience(collate(scored, pad_id=0))
    assert isinstance(experience.old, OldPolicy)
    row = diagnostics.experience_metrics(experience, experience.old, learner.settings, kl_coef=0.25)
    old, behaviour = picked(experience, "logprobs"), picked(experience, "behaviour_logprobs")
    log_ratios = [o - b for o, b in zip(old, behaviour, strict=True)]
    ref_gaps = [r - o for o, r in zip(old, picked(experience, "ref_logprobs"), strict=True)]
    ratios = [math.exp(x) for x in log_ratios]
    values, returns = picked(experience, "values"), picked(experience, "returns")
    outcomes = oracles.pick(
        [[item.reward or 0.0] * experience.batch.completion_width for item in scored],
        experience.batch.loss_mask.tolist(),
    )
    advantages = picked(experience, "raw_advantages")
    expected = {
        "behaviour_kl": oracles.mean([math.exp(x) - 1 - x for x in log_ratios]),
        "behaviour_logratio_mean": oracles.mean([abs(x) for x in log_ratios]),
        "behaviour_logratio_max": max(map(abs, log_ratios)),
        "behaviour_ess_share": sum(ratios) ** 2 / (len(ratios) * sum(x * x for x in ratios)),
        "importance_weight_mean": oracles.mean([min(x, 1.5) for x in ratios]),
        "importance_weight_capped_share": oracles.mean([float(x > 1.5) for x in ratios]),
        "entropy": oracles.mean(picked(experience, "entropies")),
        "advantage_mean": oracles.mean(advantages),
        "advantage_std": statistics.pstdev(advantages),
        "return_mean": oracles.mean(returns),
        "return_std": statistics.pstdev(returns),
        "ref_kl": oracles.mean([math.exp(x) - 1 - x for x in ref_gaps]),
        "kl_coef": 0.25,
        "stale_share": 0.0,
        "value_mean": oracles.mean(values),
        "explained_variance_outcome": oracles.explained_variance(values, outcomes),
        "explained_variance_target": oracles.explained_variance(values, returns),
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)
    lists = {"advantage_by_position", "value_by_position", "behaviour_logratio_by_size"}
    assert row.keys() == expected.keys() | lists
    check(row)


def test_by_size_counts_magnitudes_per_decade() -> None:
    gaps = torch.tensor([0.0, 5e-8, 2e-7, -2e-7, 0.05, -0.5, 3.0, 40.0], dtype=torch.float64)
    shares = diagnostics.by_size(gaps)
    assert [round(8 * share) for share in shares] == [2, 2, 0, 0, 0, 0, 1, 1, 1, 1]
    assert sum(shares) == pytest.approx(1.0)


def test_capped_share_counts_sequence_weights_per_token() -> None:
    learner = tiny_learner(importance="sequence", importance_cap=1.5)
    batch = collate(tiny_rollouts(8), pad_id=0)
    experience = learner.experience(replace(batch, behaviour_logprobs=-3.0 * batch.completion_mask))
    assert isinstance(experience.old, OldPolicy)
    row = diagnostics.experience_metrics(experience, experience.old, learner.settings, kl_coef=0.0)
    capped = []
    for old, behaviour, mask in zip(
        experience.old.logprobs, experience.batch.behaviour_logprobs, experience.batch.loss_mask, strict=True
    ):
        ratio = math.exp(math.fsum((old - behaviour)[mask].tolist()))
        capped += [float(ratio > 1.5)] * int(mask.sum())
    assert 0 < oracles.mean(capped) < 1
    assert row["importance_weight_capped_share"] == pytest.approx(oracles.mean(capped))


@given(st.lists(st.lists(st.floats(-9, 9, width=32), min_size=0, max_size=25), min_size=1, max_size=4))
def test_by_position_is_the_mean_per_tenth(rows: list[list[float]]) -> None:
    width = max(max(map(len, rows)), 1)
    x = torch.tensor([row + [99.0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[t < len(row) for t in range(width)] for row in rows])
    tenths: list[list[float]] = [[] for _ in range(NUM_POSITIONS)]
    for row in rows:
        for t, number in enumerate(row):
            tenths[math.floor(t / len(row) * NUM_POSITIONS + 1e-9)].append(number)
    expected: list[float] = []
    for numbers in tenths:
        expected.append(oracles.mean(numbers) if numbers else (expected[-1] if expected else 0.0))
    assert diagnostics.by_position(x, mask) == pytest.approx(expected, abs=1e-5)


def test_update_metrics_are_means_over_steps_and_maxima_of_maxima() -> None:
    part = {name: torch.tensor(1.0) for name in ("policy_loss", "approx_kl", "ratio_max", "policy_grad_norm")}
    other = {**{name: torch.tensor(2.0) for name in part}, "policy_grad_norm": torch.tensor(math.inf)}
    row = diagnostics.update_metrics([part, other], num_skipped=3, stopped_early=True, lr={"policy_lr": 0.5})
    assert row == {
        **{"policy_loss": 1.5, "approx_kl": 1.5, "ratio_max": 2.0, "policy_lr": 0.5},
        **{"num_updates_skipped": 3.0, "stopped_early": 1.0},
    }
    nothing = diagnostics.update_metrics([], num_skipped=1, stopped_early=False, lr={})
    assert nothing == {"num_updates_skipped": 1.0, "stopped_early": 0.0}


def test_critic_metrics_explain_held_out_outcomes() -> None:
    held_out = collate([scored_rollout(reward=r, problem_id=str(r)) for r in (0.0, 1.0)], pad_id=0)
    parts = [{"value_loss": torch.tensor(x), "critic_grad_norm": torch.tensor(1.0)} for x in (0.1, 0.3)]
    values = torch.tensor([[0.5, 0.0], [0.5, 1.0]])
    row = diagnostics.critic_metrics(parts, values, held_out)
    assert row == pytest.approx({"value_loss": 0.2, "critic_grad_norm": 1.0, "explained_variance_outcome": 0.5})
    constant = replace(held_out, outcome=torch.ones(2))
    assert diagnostics.critic_metrics(parts, values, constant)["explained_variance_outcome"] == 0.0


def test_every_metric_of_an_update_is_in_the_table() -> None:
    learner, batch = tiny_learner(), collate(tiny_rollouts(6), pad_id=0)
    row = learner.update(learner.experience(batch), progress=0.0, seed=0)
    assert row.keys() <= TRAINING_METRICS.keys()
