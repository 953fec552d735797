"""Padding and alignment, on the example drawn in the module."""

import pytest
import torch
from tiny_runs import scored_rollout

from mathppo.batch import collate
from mathppo.errors import BadInput

A, B, X, Y, Z, PAD = 3, 4, 5, 6, 7, 0


def test_example_of_the_module() -> None:
    batch = collate(
        [
            scored_rollout(prompt_ids=[A, B], completion_ids=[X, Y, Z], problem_id="q"),
            scored_rollout(prompt_ids=[1, A, B], completion_ids=[X, Y, Z, 2], truncated=True, reward=0.5),
        ],
        pad_id=PAD,
    )
    assert batch.ids.tolist() == [[PAD, A, B, X, Y, Z, PAD], [1, A, B, X, Y, Z, 2]]
    assert batch.attention_mask.long().tolist() == [[0, 1, 1, 1, 1, 1, 0], [1] * 7]
    assert batch.position_ids.tolist() == [[0, 0, 1, 2, 3, 4, 4], [0, 1, 2, 3, 4, 5, 6]]
    assert batch.completion_mask.long().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert (batch.prompt_width, batch.completion_width, batch.num_rows) == (3, 4, 2)
    assert batch.lengths.tolist() == [3, 4]
    assert batch.outcome.tolist() == [1.0, 0.5]
    assert batch.truncated.tolist() == [False, True]
    assert batch.behaviour_logprobs.tolist() == [[-1.0, -1.0, -1.0, 0.0], [-1.0] * 4]


def test_a_pad_id_within_a_completion_is_a_token() -> None:
    batch = collate([scored_rollout(completion_ids=[5, PAD, PAD], truncated=True)], pad_id=PAD)
    assert batch.completion_mask.tolist() == [[True, True, True]]


def test_grader_errors_and_dropped_truncations_keep_their_rows_without_a_loss() -> None:
    scored = [
        scored_rollout(completion_ids=[5, 2]),
        scored_rollout(completion_ids=[5, 6], reward=None, problem_id="q"),
        scored_rollout(completion_ids=[5, 6], truncated=True, problem_id="r"),
    ]
    kept = collate(scored, pad_id=PAD)
    assert kept.loss_mask.any(1).tolist() == [True, False, True]
    assert kept.completion_mask.all()
    assert collate(scored, pad_id=PAD, drop_truncated=True).loss_mask.any(1).tolist() == [True, False, False]


def test_rows_of_one_problem_share_a_group() -> None:
    scored = [scored_rollout(problem_id=name, sample_index=i) for i, name in enumerate(["b", "a", "b", "c"])]
    assert collate(scored, pad_id=PAD).group.tolist() == [0, 1, 0, 2]


def test_rows_index_every_tensor() -> None:
    scored = [scored_rollout(completion_ids=[5] * n, problem_id=str(n)) for n in (1, 2, 3)]
    batch, index = collate(scored, pad_id=PAD), torch.tensor([2, 0])
    picked = batch.rows(index)
    assert all(torch.equal(vars(picked)[name], tensor[index]) for name, tensor in vars(batch).items())


def test_no_rollouts_raise() -> None:
    with pytest.raises(BadInput, match="expected at least one scored rollout, got none"):
        collate([], pad_id=PAD)
