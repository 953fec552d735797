"""How the rows of a batch are divided into forward passes, and by ranks, and put together again.

Rows are sorted by length, so that a pass holds little padding; packed ones have none, and passes as many tokens as each
other, about. Every rank runs as many passes as every other, for the collectives of sharded weights wait for all: a rank
without rows left repeats one that counts nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import torch
from jaxtyping import Int
from torch import Tensor

from mathppo.batch import Batch
from mathppo.config import LearnerSettings
from mathppo.learner.backend.sharding import ALONE, Ranks

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Passes:
    """How much goes into one pass.

    Args:
        max_rows: rollouts a pass, where `max_tokens` is 0.
        max_tokens: tokens a pass, at least one rollout; its rows lose the columns they do not need.
        packs: padding does not count.
        device: where the models are.
        ranks: the processes that share the work.
    """

    max_rows: int
    max_tokens: int = 0
    packs: bool = False
    device: torch.device = CPU
    ranks: Ranks = ALONE

    def split(self, batch: Batch) -> list[Int[Tensor, " N"]]:
        """Give the indices of all rows, shortest first, by pass."""
        if not self.max_tokens:
            return list(batch.lengths.argsort(stable=True).split(self.max_rows))
        if self.packs:
            return [torch.tensor(rows) for rows in self._balanced(batch.attention_mask.sum(1).tolist())]
        prompts, completions = (batch.attention_mask.sum(1) - batch.lengths).tolist(), batch.lengths.tolist()
        order = sorted(range(batch.num_rows), key=lambda row: (prompts[row] + completions[row], row))
        found: list[list[int]] = []
        widths = (0, 0)
        for row in order:
            wider = max(widths[0], prompts[row]), max(widths[1], completions[row])
            if not found or sum(wider) * (len(found[-1]) + 1) > self.max_tokens:
                found.append([])
                wider = prompts[row], completions[row]
            found[-1].append(row)
            widths = wider
        return [torch.tensor(rows) for rows in found]

    def _balanced(self, lengths: list[int]) -> list[list[int]]:
        """Give passes of about as many tokens each, as many as the ranks can share evenly, none above the budget.

        Source: Graham 1969, "Bounds on Multiprocessing Timing Anomalies": longest first, each where most room is.
        """
        order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
        budget, step = max(self.max_tokens, lengths[order[0]]), self.ranks.size
        count = -(-sum(lengths) // budget)
        while True:
            count = min(-(-count // step) * step, len(lengths))
            passes: list[list[int]] = [[] for _ in range(count)]
            sizes = [(0, index) for index in range(count)]
            for row in order:
                size, index = heappop(sizes)
                passes[index].append(row)
                heappush(sizes, (size + lengths[row], index))
            if count == len(lengths) or max(sizes)[0] <= budget:
                # Neighbours of a length share a call of attention.
                return [sorted(rows, key=lambda row: (lengths[row], row)) for rows in passes]
            count += 1

    def deal(self, batch: Batch) -> Iterator[tuple[Int[Tensor, " N"], bool]]:
        """Yield the passes of this rank, and whether each counts; neighbours in length run side by side."""
        passes = self.split(batch)
        for start in range(0, len(passes), self.ranks.size):
            own = start + self.ranks.rank
            yield (passes[own], True) if own < len(passes) else (passes[start][:1], False)

    def narrow(self, batch: Batch) -> Batch:
        """Give the rows of one pass as the models get them."""
        return (batch.narrowed() if self.max_tokens else batch).to(self.device)

    @torch.no_grad()
    def run(self, function: Callable[[Batch], tuple[Tensor, ...]], batch: Batch) -> tuple[Tensor, ...]:
        """Apply a forward pass to all rows, pass by pass, and give its results for the whole batch, on the CPU."""
        whole: list[Tensor] = []
        for index, counts in self.deal(batch):
            parts = [part.cpu() for part in function(self.narrow(batch.rows(index)))]
            if not whole:
                shapes = [(batch.num_rows, batch.completion_width)[: part.dim()] for part in parts]
                whole = [part.new_zeros(shape) for part, shape in zip(parts, shapes, strict=True)]
            for result, part in zip(whole, parts, strict=True):
                if counts and part.dim() == 1:
                    result[index] = part
                elif counts:
                    result[index, : part.shape[1]] = part
        return tuple(self.ranks.add(result) for result in whole)


def shuffled(num_rows: int, num_parts: int, order: torch.Generator, *, epochs: int) -> Iterator[Int[Tensor, " N"]]:
    """Yield the rows' indices by minibatch, every row once an epoch, in a new order each."""
    for _ in range(epochs):
        yield from torch.randperm(num_rows, generator=order).tensor_split(num_parts)


def choose_device(settings: LearnerSettings) -> torch.device:
    """Give the device that the settings name: `auto` takes a GPU where there is one."""
    wants_gpu = settings.device == "cuda" or (settings.device == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if wants_gpu else "cpu")


def without_loss(batch: Batch) -> Batch:
    """Give the same rows, none of whose steps is trained on."""
    return replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
