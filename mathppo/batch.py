"""Batches of scored rollouts: padding, alignment and masks.

A row is a prompt padded on the left to P and a completion padded on the right to T, so column P is the first completion
token of every row. For the prompt `a b`, the completion `x y z`, P = 3 and T = 4:

    column            0    1    2  |  3    4    5    6
    ids               pad  a    b  |  x    y    z    pad
    attention_mask    .    1    1  |  1    1    1    .
    position_ids      0    0    1  |  2    3    4    4
    step t                         |  0    1    2    -        completion_mask = 1 1 1 .

    logits at column P - 1 + t     are of the distribution that token t was sampled from: 2, 3, 4
    value at column P - 1 + t      is values[t] = V(prompt + completion[:t]), before token t is chosen
    value at column P - 1 + 3      is bootstrap_values = V(prompt + whole completion), read only if truncated

Packed rows are concatenated without padding; with `a b | x` as a second row:

    index             0    1    2    3    4    5    6    7
    ids               a    b    x    y    z    a    b    x
    position_ids      0    1    2    3    4    0    1    2
    ends              0, 5, 8                 before = 1 2 3 6, the indices that x y z x were sampled from
                                              last = 4, 7, the indices of V(prompt + whole completion)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mathppo.errors import BadInput
from mathppo.records import ScoredRollout

SEQUENCE_FIELDS = ("ids", "attention_mask", "position_ids")
STEP_FIELDS = ("completion_mask", "loss_mask", "behaviour_logprobs")
"""Fields of a batch that are `[B L]`, and fields that are `[B T]`."""


@dataclass(frozen=True)
class Packed:
    """The rows of a batch, concatenated without padding: N tokens, M of them sampled.

    Args:
        ids: row by row.
        position_ids: from 0 in each row.
        ends: 0, and the end index of each row.
        longest: tokens of the longest row.
        before: indices of the distributions and values of the sampled tokens, row by row.
        last: index of each row's last token.
    """

    ids: Int[Tensor, "1 N"]
    position_ids: Int[Tensor, "1 N"]
    ends: Int[Tensor, " B+1"]
    longest: int
    before: Int[Tensor, " M"]
    last: Int[Tensor, " B"]


@dataclass(frozen=True)
class Batch:
    """B scored rollouts as padded tensors; L = P + T.

    Args:
        ids: prompt and completion token ids; padding elsewhere.
        attention_mask: True = a token, False = padding.
        position_ids: position within the row without padding; padding repeats a neighbouring position.
        completion_mask: True = a token that the behaviour policy sampled.
        loss_mask: True = this step is trained on; a subset of `completion_mask`.
        outcome: terminal reward; 0 if the grader failed, in which case the row has no `loss_mask`.
        correct: True = the verdict is correct.
        truncated: True = ran out of token budget.
        policy_step: number of updates that the behaviour policy had seen.
        behaviour_logprobs: the sampler's, nats; 0 on padding.
        group: index of the row's problem, 0 <= group < B, the same for all rows of a problem.
    """

    ids: Int[Tensor, "B L"]
    attention_mask: Bool[Tensor, "B L"]
    position_ids: Int[Tensor, "B L"]
    completion_mask: Bool[Tensor, "B T"]
    loss_mask: Bool[Tensor, "B T"]
    outcome: Float[Tensor, " B"]
    correct: Bool[Tensor, " B"]
    truncated: Bool[Tensor, " B"]
    policy_step: Int[Tensor, " B"]
    behaviour_logprobs: Float[Tensor, "B T"]
    group: Int[Tensor, " B"]

    @property
    def num_rows(self) -> int:
        return self.ids.shape[0]

    @property
    def prompt_width(self) -> int:
        return self.ids.shape[1] - self.completion_width

    @property
    def completion_width(self) -> int:
        return self.completion_mask.shape[1]

    @property
    def lengths(self) -> Int[Tensor, " B"]:
        """Completion tokens of each row."""
        return self.completion_mask.sum(1)

    def rows(self, index: Int[Tensor, " N"]) -> "Batch":
        """Return the rows of `index`, in that order, with unchanged widths."""
        return Batch(**{name: tensor[index] for name, tensor in vars(self).items()})

    def trimmed(self) -> "Batch":
        """Return the same rows without columns that are padding in all of them."""
        used = self.attention_mask.any(0).nonzero()
        first, end = int(used[0]), int(used[-1]) + 1
        start = self.prompt_width
        columns = {name: tensor[:, first:end] for name, tensor in vars(self).items() if name in SEQUENCE_FIELDS}
        steps = {name: tensor[:, : end - start] for name, tensor in vars(self).items() if name in STEP_FIELDS}
        return replace(self, **columns, **steps)

    def packed(self) -> Packed:
        """Return the rows concatenated without padding."""
        mask = self.attention_mask
        lengths = mask.sum(1)
        ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
        packed_index = mask.flatten().cumsum(0).view_as(mask) - 1
        return Packed(
            ids=self.ids[mask][None],
            position_ids=self.position_ids[mask][None],
            ends=ends,
            longest=int(lengths.max()),
            before=packed_index[:, self.prompt_width :][self.completion_mask] - 1,
            last=ends[1:].long() - 1,
        )

    def to(self, device: torch.device) -> "Batch":
        return Batch(**{name: tensor.to(device) for name, tensor in vars(self).items()})


def collate(scored: Sequence[ScoredRollout], *, pad_id: int, drop_truncated: bool = False) -> Batch:
    """Pad scored rollouts into a batch, in the given order.

    A rollout whose grader failed keeps its row without a `loss_mask`; so does a truncated one if `drop_truncated`.

    Args:
        scored: at least one scored rollout.
        pad_id: any id of the vocabulary; the result does not depend on it.
        drop_truncated: exclude truncated completions from losses and denominators.

    Raises:
        BadInput: an empty sequence.
    """
    if not scored:
        raise BadInput("batch: expected at least one scored rollout, got none; check the generate and grade stages")
    rollouts = [item.rollout for item in scored]
    num_rows = len(rollouts)
    prompt_width = max(len(r.prompt_ids) for r in rollouts)
    completion_width = max(len(r.completion_ids) for r in rollouts)
    ids = torch.full((num_rows, prompt_width + completion_width), pad_id, dtype=torch.long)
    attention_mask = torch.zeros_like(ids, dtype=torch.bool)
    behaviour_logprobs = torch.zeros(num_rows, completion_width)
    for row, rollout in enumerate(rollouts):
        start, end = prompt_width - len(rollout.prompt_ids), prompt_width + len(rollout.completion_ids)
        ids[row, start:end] = torch.tensor([*rollout.prompt_ids, *rollout.completion_ids])
        attention_mask[row, start:end] = True
        behaviour_logprobs[row, : len(rollout.completion_ids)] = torch.tensor(rollout.behaviour_logprobs)
    completion_mask = attention_mask[:, prompt_width:]
    truncated = torch.tensor([r.truncated for r in rollouts])
    kept = torch.tensor([item.reward is not None for item in scored])
    if drop_truncated:
        kept &= ~truncated
    problem_ids = {rollout.problem_id: None for rollout in rollouts}
    index_of = {problem_id: index for index, problem_id in enumerate(problem_ids)}
    return Batch(
        ids=ids,
        attention_mask=attention_mask,
        position_ids=(attention_mask.long().cumsum(1) - 1).clamp_(min=0),
        completion_mask=completion_mask,
        loss_mask=completion_mask & kept[:, None],
        outcome=torch.tensor([item.reward or 0.0 for item in scored]),
        correct=torch.tensor([item.verdict.correct for item in scored]),
        truncated=truncated,
        policy_step=torch.tensor([r.policy_step for r in rollouts]),
        behaviour_logprobs=behaviour_logprobs,
        group=torch.tensor([index_of[r.problem_id] for r in rollouts]),
    )
