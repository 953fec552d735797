"""Splits a batch into micro-batches across ranks and gathers the results.

Rows are sorted by length, so a micro-batch holds little padding. Packed micro-batches have none, and about the same
number of tokens each. Every rank runs the same number of micro-batches, because collectives of sharded weights wait for
all ranks: a rank without rows left repeats one row without a loss.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import torch
from jaxtyping import Int
from torch import Tensor

from mathppo.batch import Batch
from mathppo.config import LearnerSettings
from mathppo.learner.backend.sharding import SINGLE_PROCESS, DistContext

CPU = torch.device("cpu")


@dataclass(frozen=True)
class MicroBatches:
    """Splits batches into micro-batches, the rows of one forward pass each.

    Args:
        max_rows: rollouts per micro-batch if `max_tokens` is 0.
        max_tokens: tokens per micro-batch, at least one rollout; padding columns are trimmed.
        packed: rows are packed, so padding does not count.
        device: of the models.
        dist: the processes that share the work.
    """

    max_rows: int
    max_tokens: int = 0
    packed: bool = False
    device: torch.device = CPU
    dist: DistContext = SINGLE_PROCESS

    def split(self, batch: Batch) -> list[Int[Tensor, " N"]]:
        """Return the row indices of each micro-batch, shortest rows first."""
        if not self.max_tokens:
            return list(batch.lengths.argsort(stable=True).split(self.max_rows))
        if self.packed:
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
        """Return micro-batches of about equal token counts, at most `max_tokens` each, a multiple of the ranks.

        Source: Graham 1969, "Bounds on Multiprocessing Timing Anomalies": longest first, into the emptiest.
        """
        order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
        budget, step = max(self.max_tokens, lengths[order[0]]), self.dist.size
        count = -(-sum(lengths) // budget)
        while True:
            count = min(-(-count // step) * step, len(lengths))
            parts: list[list[int]] = [[] for _ in range(count)]
            sizes = [(0, index) for index in range(count)]
            for row in order:
                size, index = heappop(sizes)
                parts[index].append(row)
                heappush(sizes, (size + lengths[row], index))
            if count == len(lengths) or max(sizes)[0] <= budget:
                # Adjacent rows of equal length share one attention call.
                return [sorted(rows, key=lambda row: (lengths[row], row)) for rows in parts]
            count += 1

    def assign(self, batch: Batch) -> Iterator[tuple[Int[Tensor, " N"], Batch, bool]]:
        """Yield this rank's micro-batches: row indices, the rows as models read them, and False if they are a filler.

        Micro-batches of similar length run on different ranks at the same time. A filler has no `loss_mask`.
        """
        parts = self.split(batch)
        for start in range(0, len(parts), self.dist.size):
            is_own = start + self.dist.rank < len(parts)
            index = parts[start + self.dist.rank] if is_own else parts[start][:1]
            rows = batch.rows(index)
            rows = rows if is_own else replace(rows, loss_mask=torch.zeros_like(rows.loss_mask))
            yield index, self.trim_padding(rows), is_own

    def trim_padding(self, batch: Batch) -> Batch:
        """Return a micro-batch on the models' device, without all-padding columns if sized by tokens."""
        return (batch.trimmed() if self.max_tokens else batch).to(self.device)

    @torch.no_grad()
    def run(self, forward: Callable[[Batch], tuple[Tensor, ...]], batch: Batch) -> tuple[Tensor, ...]:
        """Run a forward pass over all rows without gradients; return its results for the whole batch, on the CPU."""
        results: list[Tensor] = []
        for index, rows, is_own in self.assign(batch):
            parts = [part.cpu() for part in forward(rows)]
            if not results:
                shapes = [(batch.num_rows, batch.completion_width)[: part.dim()] for part in parts]
                results = [part.new_zeros(shape) for part, shape in zip(parts, shapes, strict=True)]
            for result, part in zip(results, parts, strict=True):
                if is_own and part.dim() == 1:
                    result[index] = part
                elif is_own:
                    result[index, : part.shape[1]] = part
        return tuple(self.dist.all_reduce(result) for result in results)


def shuffled_minibatches(
    num_rows: int, num_minibatches: int, order: torch.Generator, *, epochs: int
) -> Iterator[Int[Tensor, " N"]]:
    """Yield the row indices of each minibatch: every row once per epoch, in a new order each epoch."""
    for _ in range(epochs):
        yield from torch.randperm(num_rows, generator=order).tensor_split(num_minibatches)


def choose_device(settings: LearnerSettings) -> torch.device:
    """Return the device that the settings name; `auto` is a GPU if available."""
    wants_gpu = settings.device == "cuda" or (settings.device == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if wants_gpu else "cpu")
