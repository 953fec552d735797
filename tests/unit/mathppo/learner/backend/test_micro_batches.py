"""Micro-batches across ranks: every row once, within the token budget, little padding."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import scored_rollout, tiny_learner, tiny_rollouts

from mathppo.batch import Batch, collate
from mathppo.config import LearnerSettings
from mathppo.learner.backend.micro_batches import MicroBatches, choose_device
from mathppo.learner.backend.sharding import DistContext

pytestmark = pytest.mark.gpu

LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12)


def batch_of(lengths: list[tuple[int, int]]) -> Batch:
    return collate(
        [
            scored_rollout(prompt_ids=[1] * prompt, completion_ids=[6] * completion, problem_id=str(index))
            for index, (prompt, completion) in enumerate(lengths)
        ],
        pad_id=0,
    )


@given(lengths=LENGTHS, budget=st.integers(1, 60))
def test_micro_batches_hold_every_row_once_within_the_budget(lengths: list[tuple[int, int]], budget: int) -> None:
    batch, micro_batches = batch_of(lengths), MicroBatches(1, budget)
    split = micro_batches.split(batch)
    assert sorted(torch.cat(split).tolist()) == list(range(len(lengths)))
    for index in split:
        trimmed = micro_batches.trim_padding(batch.rows(index))
        assert trimmed.ids.numel() <= budget or len(index) == 1
        assert trimmed.ids.shape[1] == max(lengths[i][0] for i in index) + max(lengths[i][1] for i in index)
        assert trimmed.lengths.tolist() == [lengths[i][1] for i in index]
        assert trimmed.prompt_width + trimmed.completion_width == trimmed.ids.shape[1]


@given(lengths=LENGTHS, size=st.integers(1, 4), budget=st.integers(0, 40), packed=st.booleans())
def test_ranks_run_equally_many_micro_batches_and_share_the_rows(
    lengths: list[tuple[int, int]], size: int, budget: int, packed: bool
) -> None:
    batch = batch_of(lengths)
    by_rank = [
        list(MicroBatches(2, budget, packed, dist=DistContext(rank, size)).assign(batch)) for rank in range(size)
    ]
    assert len({len(assigned) for assigned in by_rank}) == 1
    rows = [row for assigned in by_rank for index, _, is_own in assigned if is_own for row in index.tolist()]
    assert sorted(rows) == list(range(len(lengths)))
    for index, part, is_own in (item for assigned in by_rank for item in assigned):
        assert torch.equal(part.lengths, batch.lengths[index])
        assert bool(part.loss_mask.any()) == is_own


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize(("packed", "limit"), [(False, 0.12), (True, 0.04)])
def test_ranks_wait_little_for_each_other(packed: bool, limit: float, size: int) -> None:
    """Micro-batches of all ranks run side by side; the share of time spent waiting for the longest one is small."""
    rng = random.Random(0)
    lengths = [(rng.randint(5, 40), min(400, int(rng.lognormvariate(4.0, 0.8)) + 1)) for _ in range(512)]
    batch, work = batch_of(lengths), []
    for rank in range(size):
        assigned = MicroBatches(1, 1024, packed=packed, dist=DistContext(rank, size)).assign(batch)
        work.append([(int(rows.attention_mask.sum()) if packed else rows.ids.numel()) * n for _, rows, n in assigned])
    assert len({len(of_rank) for of_rank in work}) == 1
    total, longest = sum(map(sum, work)), sum(map(max, zip(*work, strict=True)))
    assert 1 - total / (size * longest) < limit


@given(lengths=LENGTHS, budget=st.integers(0, 40))
def test_results_return_to_their_rows_and_columns(lengths: list[tuple[int, int]], budget: int) -> None:
    batch = batch_of(lengths)
    steps, totals = MicroBatches(3, budget).run(
        lambda rows: (rows.completion_mask.cumsum(1) * rows.completion_mask, rows.lengths), batch
    )
    assert totals.tolist() == [completion for _, completion in lengths]
    for row, (_, completion) in enumerate(lengths):
        expected = [*range(1, completion + 1), *[0] * (batch.completion_width - completion)]
        assert steps[row].tolist() == expected


@pytest.mark.parametrize("budget", [1, 20, 40])
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_a_token_budget_changes_no_gradient(algorithm: str, budget: int) -> None:
    batch = collate(tiny_rollouts(8, samples=2), pad_id=0)
    found = []
    for tokens in (0, budget):
        learner = tiny_learner(
            algorithm=algorithm, micro_batch_tokens=tokens, packing="padded", entropy_coef=0.01, value_clip=0.1
        )
        experience = learner.experience(batch)
        learner.accumulate(experience, learner.count(batch), is_first=True)
        found.append([p.grad for model in learner.models.values() for p in model.parameters()])
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-4)


def test_a_token_budget_changes_no_update() -> None:
    batch = collate(tiny_rollouts(8), pad_id=0)
    rows = []
    for tokens in (0, 24):
        learner = tiny_learner(micro_batch_tokens=tokens, packing="padded", critic_extra_epochs=1)
        rows.append(learner.update(learner.experience(batch, for_update=True), progress=0.0, seed=0))
    assert rows[0].keys() == rows[1].keys()
    assert all(rows[0][name] == pytest.approx(rows[1][name], abs=2e-4) for name in rows[0])


def test_a_filler_keeps_its_tokens_and_has_no_loss() -> None:
    batch = batch_of([(2, 3)])
    ((index, filler, is_own),) = MicroBatches(1, dist=DistContext(1, 2)).assign(batch)
    assert (index.tolist(), is_own) == ([0], False)
    assert not filler.loss_mask.any()
    assert torch.equal(filler.ids, batch.ids)


def test_device_follows_the_settings() -> None:
    assert choose_device(LearnerSettings(device="cpu")) == torch.device("cpu")
    assert choose_device(LearnerSettings(device="cuda")) == torch.device("cuda")
    assert choose_device(LearnerSettings()).type == ("cuda" if torch.cuda.is_available() else "cpu")
