"""How rows are divided into passes and over ranks: all of them, once, within the budget, little padding."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import scored_rollout, tiny_learner, tiny_rollouts

from mathppo.batch import Batch, collate
from mathppo.config import LearnerSettings
from mathppo.learner.backend.micro_batches import Passes, choose_device, without_loss
from mathppo.learner.backend.sharding import Ranks

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
def test_passes_hold_every_row_once_within_the_budget(lengths: list[tuple[int, int]], budget: int) -> None:
    batch, passes = batch_of(lengths), Passes(1, budget)
    split = passes.split(batch)
    assert sorted(torch.cat(split).tolist()) == list(range(len(lengths)))
    for index in split:
        narrowed = passes.narrow(batch.rows(index))
        assert narrowed.ids.numel() <= budget or len(index) == 1
        assert narrowed.ids.shape[1] == max(lengths[i][0] for i in index) + max(lengths[i][1] for i in index)
        assert narrowed.lengths.tolist() == [lengths[i][1] for i in index]
        assert narrowed.prompt_width + narrowed.completion_width == narrowed.ids.shape[1]


@given(lengths=LENGTHS, size=st.integers(1, 4), budget=st.integers(0, 40), packs=st.booleans())
def test_ranks_run_equally_many_passes_and_share_the_rows(
    lengths: list[tuple[int, int]], size: int, budget: int, packs: bool
) -> None:
    batch = batch_of(lengths)
    dealt = [list(Passes(2, budget, packs, ranks=Ranks(rank, size)).deal(batch)) for rank in range(size)]
    assert len({len(passes) for passes in dealt}) == 1
    rows = [row for passes in dealt for index, counts in passes if counts for row in index.tolist()]
    assert sorted(rows) == list(range(len(lengths)))


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize(("packs", "limit"), [(False, 0.12), (True, 0.04)])
def test_ranks_wait_little_for_each_other(packs: bool, limit: float, size: int) -> None:
    """Ranks pass side by side and wait for the one with most tokens: what they wait is a small share of the work."""
    rng = random.Random(0)
    lengths = [(rng.randint(5, 40), min(400, int(rng.lognormvariate(4.0, 0.8)) + 1)) for _ in range(512)]
    batch, work = batch_of(lengths), []
    for rank in range(size):
        passes = Passes(1, 1024, packs=packs, ranks=Ranks(rank, size))
        narrowed = [(passes.narrow(batch.rows(index)), counts) for index, counts in passes.deal(batch)]
        work.append([(int(rows.attention_mask.sum()) if packs else rows.ids.numel()) * n for rows, n in narrowed])
    assert len({len(of_rank) for of_rank in work}) == 1
    total, longest = sum(map(sum, work)), sum(map(max, zip(*work, strict=True)))
    assert 1 - total / (size * longest) < limit


@given(lengths=LENGTHS, budget=st.integers(0, 40))
def test_results_return_to_their_rows_and_columns(lengths: list[tuple[int, int]], budget: int) -> None:
    batch = batch_of(lengths)
    steps, totals = Passes(3, budget).run(
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


def test_a_token_budget_trains_as_one_pass_does() -> None:
    batch = collate(tiny_rollouts(8), pad_id=0)
    rows = []
    for tokens in (0, 24):
        learner = tiny_learner(micro_batch_tokens=tokens, packing="padded", critic_extra_epochs=1)
        rows.append(learner.update(learner.experience(batch, skip_old=True), progress=0.0, seed=0))
    assert rows[0].keys() == rows[1].keys()
    assert all(rows[0][name] == pytest.approx(rows[1][name], abs=2e-4) for name in rows[0])


def test_rows_that_count_nothing_keep_their_text() -> None:
    batch = batch_of([(2, 3), (1, 1)])
    silent = without_loss(batch)
    assert not silent.loss_mask.any()
    assert torch.equal(silent.ids, batch.ids)


def test_the_device_is_the_one_that_is_named() -> None:
    assert choose_device(LearnerSettings(device="cpu")) == torch.device("cpu")
    assert choose_device(LearnerSettings(device="cuda")) == torch.device("cuda")
    assert choose_device(LearnerSettings()).type == ("cuda" if torch.cuda.is_available() else "cpu")
