"""Continuous batching of the embedded engine: rows join, advance one token per step and leave when finished."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mathppo.errors import BrokenInvariant
from mathppo.generator.base import Request, Sampling
from mathppo.generator.hf.causal_lm import CausalLM
from mathppo.generator.hf.kv_cache import AppendCache, KVCache, SlotCache
from mathppo.generator.hf.sampler import draw, sampling_logprobs, uniforms
from mathppo.generator.stops import StopStrings

_REFILL_SHARE = 4  # prefill waiting rows when 1/4 of the slots are free: a prefill costs about as much as a step
_STEPS_PER_SYNC = 8  # steps between two reads of the sampled tokens on an accelerator: each read waits for the device
_STEPS_PER_SYNC_CPU = 1


@dataclass(slots=True)
class Row:
    """One completion while it is sampled."""

    request: Request
    budget: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False
    finished: bool = False

    @property
    def length(self) -> int:
        """Number of prompt and completion tokens."""
        return len(self.request.prompt_ids) + len(self.ids)


class Batcher:
    """Samples all rows of one `generate` call, at most `num_slots` at a time.

    Args:
        causal_lm: the policy.
        rows: one per request, empty.
        sampling: sampling parameters.
        num_slots: maximum number of rows in a forward pass.
        strings: stop strings.
    """

    def __init__(
        self, causal_lm: CausalLM, rows: list[Row], sampling: Sampling, num_slots: int, strings: StopStrings
    ) -> None:
        self._causal_lm = causal_lm
        self._sampling = sampling
        self._num_slots = num_slots
        self._stop_ids = frozenset(sampling.stop_token_ids)
        self._strings = strings
        self._steps_per_sync = _STEPS_PER_SYNC_CPU if causal_lm.device.type == "cpu" else _STEPS_PER_SYNC
        # Longest first, popped from the end: similar lengths share a prefill, and memory peaks at the start.
        self._waiting = sorted(rows, key=lambda row: len(row.request.prompt_ids))
        self._rows: list[Row] = []
        self._cache: KVCache | None = None
        device, max_budget = causal_lm.device, max(row.budget for row in rows)
        self._last_ids = torch.zeros(num_slots, dtype=torch.long, device=device)
        self._positions = torch.zeros(num_slots, dtype=torch.long, device=device)  # of the last ids
        self._counts = torch.zeros(num_slots, dtype=torch.long, device=device)  # of sampled ids
        self._longest = 0  # tokens of the longest row
        self._min_remaining = 0  # smallest remaining budget of any row, in tokens
        self._points: Tensor | None = None
        if sampling.temperature > 0:
            self._points = torch.zeros(num_slots, max_budget, dtype=torch.float64, device=device)

    @property
    def has_unfinished(self) -> bool:
        """True if any row is unfinished."""
        return bool(self._waiting or self._rows)

    @torch.inference_mode()
    def advance(self) -> list[Row]:
        """Sample until at least one row finishes and return the finished rows."""
        finished: list[Row] = []
        with self._causal_lm.eval_mode():
            while not finished and self.has_unfinished:
                finished = self._prefill() if self._should_prefill() else self._step()
        return finished

    def _should_prefill(self) -> bool:
        if not self._waiting or not self._rows:
            return bool(self._waiting)
        free = self._num_slots - len(self._rows)
        joinable = self._cache is not None and self._cache.can_join
        return joinable and free >= max(1, self._num_slots // _REFILL_SHARE)

    def _prefill(self) -> list[Row]:
        """Prefill as many waiting rows as there are free slots and sample their first tokens."""
        first = len(self._rows)
        cut = max(0, len(self._waiting) - (self._num_slots - first))
        new, self._waiting = self._waiting[cut:], self._waiting[:cut]
        device = self._causal_lm.device
        # Samples of one problem share a prompt, which is prefilled once.
        prompts = list(dict.fromkeys(row.request.prompt_ids for row in new))
        index = {prompt: i for i, prompt in enumerate(prompts)}
        source = None
        if len(prompts) < len(new):
            source = torch.tensor([index[row.request.prompt_ids] for row in new], device=device)
        ids, mask = (tensor.to(device) for tensor in _left_padded(prompts))
        prefilled = self._causal_lm.new_cache()
        logits = self._causal_lm(ids, mask, (mask.cumsum(dim=1) - 1).clamp_(min=0), prefilled)
        logits = logits if source is None else logits[source]

        lengths = [len(row.request.prompt_ids) for row in new]
        if not self._causal_lm.supports_slots:
            self._cache = AppendCache(prefilled, source, mask)
        else:
            if self._cache is None:
                self._cache = SlotCache(self._causal_lm.cache_type, self._num_slots, self._causal_lm.dtype)
            assert isinstance(self._cache, SlotCache)
            self._cache.join(prefilled, source, lengths, max(row.budget for row in new))
        self._rows.extend(new)
        slots = slice(first, first + len(new))
        self._positions[slots] = torch.tensor(lengths, device=device) - 1
        self._counts[slots] = 0
        if self._points is not None:
            width = self._points.shape[1]
            self._points[slots] = torch.from_numpy(np.stack([uniforms(row.request.seed, width) for row in new])).to(
                device
            )
        return self._record(new, [self._draw(logits, slots)])

    def _step(self) -> list[Row]:
        """Feed the last token of every row and sample the next, `steps_per_sync` times."""
        assert self._cache is not None
        n = len(self._rows)
        steps = min(self._steps_per_sync, self._min_remaining)
        drawn = []
        for step in range(steps):
            mask = self._cache.open_column(self._longest + step)
            logits = self._causal_lm(self._last_ids[:n, None], mask, self._positions[:n, None], self._cache.cache)
            drawn.append(self._draw(logits, slice(0, n)))
        self._longest += steps
        self._min_remaining -= steps
        return self._record(self._rows, drawn)

    def _draw(self, logits: Tensor, slots: slice) -> tuple[Tensor, Tensor]:
        sampling = self._sampling
        logprobs = sampling_logprobs(
            logits, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p
        )
        counts = self._counts[slots]
        points = None if self._points is None else self._points[slots].gather(1, counts[:, None]).squeeze(1)
        ids = draw(logprobs, points)
        self._last_ids[slots] = ids
        self._positions[slots] += 1
        counts += 1
        return ids, logprobs.gather(1, ids[:, None]).squeeze(1)

    def _record(self, rows: list[Row], drawn: list[tuple[Tensor, Tensor]]) -> list[Row]:
        """Append the sampled tokens, one (ids, logprobs) per step, to the rows; remove and return the finished rows."""
        finished = []
        all_ids = torch.stack([ids for ids, _ in drawn]).tolist()
        all_logprobs = torch.stack([logprobs for _, logprobs in drawn]).tolist()
        for ids, logprobs in zip(all_ids, all_logprobs, strict=True):
            for row, token, logprob in zip(rows, ids, logprobs, strict=True):
                if row.finished:
                    continue
                if not math.isfinite(logprob):
                    raise BrokenInvariant(_non_finite(row, logprob))
                row.ids.append(token)
                row.logprobs.append(logprob)
                row.stopped = token in self._stop_ids or self._strings.find_end(row.ids, len(row.ids) - 1) is not None
                if row.stopped or len(row.ids) == row.budget:
                    row.finished = True
                    finished.append(row)
        if finished:
            self._remove_finished()
        if finished or rows is not self._rows:
            self._longest = max((row.length for row in self._rows), default=0)
            self._min_remaining = min((row.budget - len(row.ids) for row in self._rows), default=0)
        return finished

    def _remove_finished(self) -> None:
        """Move the last unfinished rows to the slots of finished ones."""
        live = [i for i, row in enumerate(self._rows) if not row.finished]
        order = list(range(len(live)))
        movers = [i for i in live if i >= len(live)]
        for i in order:
            if self._rows[i].finished:
                order[i] = movers.pop()
        self._rows = [self._rows[i] for i in order]
        if not self._rows and self._cache is not None and not self._cache.can_join:
            self._cache = None
            return
        assert self._cache is not None
        self._cache.keep(order)
        into = [i for i, origin in enumerate(order) if i != origin]
        if into:
            origin = torch.tensor([order[i] for i in into], device=self._causal_lm.device)
            for state in (self._last_ids, self._positions, self._counts, self._points):
                if state is not None:
                    state[into] = state[origin]


def _left_padded(prompts: list[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Return ids and mask [U, P], 1 = a token; the padding id is 0 and is masked."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


def _non_finite(row: Row, logprob: float) -> str:
    return (
        f"{row.request.label}: expected finite logits, got a log-probability of {logprob} for new token "
        f"{len(row.ids) + 1}; the weights are broken: use an earlier checkpoint or lower the learning rate"
    )
