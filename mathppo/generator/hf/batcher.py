"""The sampling loop of the embedded engine: rows are admitted, advance one token a step, and leave when finished."""

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mathppo.errors import BrokenInvariant
from mathppo.generator.base import Request, Sampling
from mathppo.generator.hf.kv_cache import AppendCache, RowCache, SlotCache
from mathppo.generator.hf.sampler import draw, sampling_logprobs, uniforms
from mathppo.generator.stops import StopStrings

_REFILL_SHARE = 4  # waiting rows are prefilled when 1/4 of the slots are free: a prefill costs about what a step does
_STEPS_PER_LOOK = 8  # on an accelerator, steps between two looks at what was sampled: each look waits for the device
_STEPS_PER_LOOK_CPU = 1


@dataclass(slots=True)
class Row:
    """One completion in flight; filled as it is sampled."""

    request: Request
    budget: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False
    finished: bool = False

    @property
    def length(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.request.prompt_ids) + len(self.ids)


class Caller(Protocol):
    """What the loop needs of a model."""

    cache_type: Any
    takes_slots: bool

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def new_cache(self) -> Any: ...

    def __call__(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor: ...

    def pause_training(self) -> list[Any]: ...

    def resume_training(self, modules: list[Any], /) -> None: ...


class Flight:
    """All rows of one `generate`, at most `num_slots` of them at a time."""

    def __init__(
        self, caller: Caller, rows: list[Row], sampling: Sampling, num_slots: int, strings: StopStrings
    ) -> None:
        self._caller = caller
        self._sampling = sampling
        self._num_slots = num_slots
        self._stop = frozenset(sampling.stop_token_ids)
        self._strings = strings
        self._look_every = _STEPS_PER_LOOK_CPU if caller.device.type == "cpu" else _STEPS_PER_LOOK
        # Longest first, taken from the end of the list: like lengths share a prefill, and memory peaks at once.
        self._waiting = sorted(rows, key=lambda row: len(row.request.prompt_ids))
        self._rows: list[Row] = []
        self._cache: RowCache | None = None
        device, longest = caller.device, max(row.budget for row in rows)
        self._last_ids = torch.zeros(num_slots, dtype=torch.long, device=device)
        self._positions = torch.zeros(num_slots, dtype=torch.long, device=device)  # of the last id
        self._counts = torch.zeros(num_slots, dtype=torch.long, device=device)  # ids sampled
        self._longest = 0  # row, in tokens
        self._shortest_budget = 0  # left of any row, in tokens
        self._points: Tensor | None = None
        if sampling.temperature > 0:
            self._points = torch.zeros(num_slots, longest, dtype=torch.float64, device=device)

    @property
    def busy(self) -> bool:
        """Whether any row is unfinished."""
        return bool(self._waiting or self._rows)

    @torch.inference_mode()
    def advance(self) -> list[Row]:
        """Sample until at least one row finishes; give those that did."""
        training = self._caller.pause_training()
        try:
            finished: list[Row] = []
            while not finished and self.busy:
                finished = self._admit() if self._may_admit() else self._step()
            return finished
        finally:
            self._caller.resume_training(training)

    def _may_admit(self) -> bool:
        if not self._waiting or not self._rows:
            return bool(self._waiting)
        free = self._num_slots - len(self._rows)
        joinable = self._cache is not None and self._cache.can_join
        return joinable and free >= max(1, self._num_slots // _REFILL_SHARE)

    def _admit(self) -> list[Row]:
        """Prefill as many waiting rows as there are free slots and draw their first tokens."""
        first = len(self._rows)
        cut = max(0, len(self._waiting) - (self._num_slots - first))
        new, self._waiting = self._waiting[cut:], self._waiting[:cut]
        device = self._caller.device
        # Samples of one problem share their prompt, so it is read once.
        prompts = list(dict.fromkeys(row.request.prompt_ids for row in new))
        place = {prompt: i for i, prompt in enumerate(prompts)}
        source = None
        if len(prompts) < len(new):
            source = torch.tensor([place[row.request.prompt_ids] for row in new], device=device)
        ids, mask = (tensor.to(device) for tensor in _left_padded(prompts))
        prefilled = self._caller.new_cache()
        logits = self._caller(ids, mask, (mask.cumsum(dim=1) - 1).clamp_(min=0), prefilled)
        logits = logits if source is None else logits[source]

        lengths = [len(row.request.prompt_ids) for row in new]
        if not self._caller.takes_slots:
            self._cache = AppendCache(prefilled, source, mask)
        else:
            if self._cache is None:
                self._cache = SlotCache(self._caller.cache_type, self._num_slots, self._caller.dtype)
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
        """Feed every row's last token and draw the next, once or a few times."""
        assert self._cache is not None
        n = len(self._rows)
        live = slice(0, n)
        steps = min(self._look_every, self._shortest_budget)
        drawn = []
        for step in range(steps):
            mask = self._cache.open_column(self._longest + step)
            logits = self._caller(self._last_ids[:n, None], mask, self._positions[:n, None], self._cache.cache)
            drawn.append(self._draw(logits, live))
        self._longest += steps
        self._shortest_budget -= steps
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
        """Write down what was drawn, `[(ids, logprobs), ...]` step by step; drop and give the rows that finished."""
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
                row.stopped = token in self._stop or self._strings.end(row.ids, len(row.ids) - 1) is not None
                if row.stopped or len(row.ids) == row.budget:
                    row.finished = True
                    finished.append(row)
        if finished:
            self._drop_finished()
        if finished or rows is not self._rows:
            self._longest = max((row.length for row in self._rows), default=0)
            self._shortest_budget = min((row.budget - len(row.ids) for row in self._rows), default=0)
        return finished

    def _drop_finished(self) -> None:
        """Let the last live rows take the places of the finished ones."""
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
            origin = torch.tensor([order[i] for i in into], device=self._caller.device)
            for state in (self._last_ids, self._positions, self._counts, self._points):
                if state is not None:
                    state[into] = state[origin]


def _left_padded(prompts: list[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Give ids and mask [U, P], 1 = a token; the padding id is 0 and is never seen."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


def _non_finite(row: Row, logprob: float) -> str:
    return (
        f"problem {row.request.problem_id!r} sample {row.request.sample_index}: expected finite logits, got a "
        f"log-probability of {logprob} for new token {len(row.ids) + 1}; the weights are broken: go back to an earlier "
        "checkpoint, or lower the learning rate"
    )
