"""Key-value caches of the embedded engine, with rows that join and leave.

Each row is one unfinished completion (M-gen-2). Rows are left-padded: all end at the same column, where the next token
is written. `SlotCache` writes in place: a row that leaves is overwritten by the last live row, a row that joins takes
the next free slot, and columns that no live row needs are dropped at the left. `AppendCache` wraps the cache of the
transformers library for attention layouts that slots do not support; rows cannot join it later.

Worked example, 3 slots, prompts of 4 and 2 tokens, `.` masked:

    columns   0 1 2 3 4 5
    row 0     a b c d e        start = 0, end = 5: both rows have sampled one token
    row 1     . . f g h
    row 2     (free)

When row 0 leaves, row 1 moves to slot 0 and start becomes 2.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

_SLACK_COLUMNS = 64  # spare columns when buffers are (re)built, so that copies are rare


class KVCache(Protocol):
    """Cache interface of the batcher."""

    cache: Any
    """Cache object that is passed to the model."""

    can_join: bool
    """True if rows may join after the first step."""

    def open_column(self, longest: int) -> Tensor:
        """Add a column for the next token and return the mask; `longest` is the new length of the longest row."""
        ...

    def keep(self, order: list[int]) -> None:
        """Keep `len(order)` rows; the new row i is the old row `order[i]`."""
        ...


class SlotLayer:
    """Keys and values of one layer [slots, heads, columns, head size]; a transformers cache layer."""

    is_compileable = False
    is_sliding = False

    def __init__(self, owner: "SlotCache", keys: Tensor, values: Tensor) -> None:
        self.owner = owner
        self.keys = keys
        self.values = values

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the newest column and return all live columns."""
        rows, start, end = len(key_states), self.owner.start, self.owner.end
        self.keys[:rows, :, end - 1 : end] = key_states
        self.values[:rows, :, end - 1 : end] = value_states
        return self.keys[:rows, :, start:end], self.values[:rows, :, start:end]

    def get_seq_length(self) -> int:
        return self.owner.end - self.owner.start - 1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.end - self.owner.start - 1 + query_length, 0

    def get_max_length(self) -> int:
        return -1


class SlotCache:
    """Keys, values and attention mask of up to `num_slots` rows.

    Args:
        cache_type: transformers cache class, called with a list of layers.
        num_slots: maximum number of rows.
        dtype: dtype of the model and of the additive mask.
    """

    can_join = True

    def __init__(self, cache_type: Any, num_slots: int, dtype: torch.dtype) -> None:
        self.num_slots = num_slots
        self.rows = 0
        self.start = 0
        self.end = 0
        self.layers: list[SlotLayer] = []
        self.mask = torch.zeros(0)  # [slots, 1, 1, columns]: 0 = visible, minimum = masked; future columns are 0
        self.dtype = dtype
        self.cache: Any = None
        self._cache_type = cache_type

    def join(self, prefilled: Any, source: Tensor | None, lengths: list[int], max_new_columns: int) -> None:
        """Add rows after the live ones.

        Args:
            prefilled: cache whose layers have `keys` and `values` [U, heads, P, head size], left-padded.
            source: [m], the prefilled row of each new row; None = the same order.
            lengths: [m] tokens of each new row.
            max_new_columns: upper bound of columns still to be added, for the size of the first buffers.
        """
        width = prefilled.layers[0].keys.shape[2]
        if not self.layers:
            self._build(prefilled, width, max_new_columns)
        elif width > self.end:
            self._rebuild(width)
        first, last, end = self.rows, self.rows + len(lengths), self.end
        old_start = self.start if first else end
        self.start = min(old_start, end - width)
        for layer, new in zip(self.layers, prefilled.layers, strict=True):
            for buffer, states in ((layer.keys, new.keys), (layer.values, new.values)):
                buffer[first:last, :, end - width : end] = states if source is None else states[source]
                # A masked column still enters attention as 0 * value, so it must be finite.
                buffer[first:last, :, self.start : end - width] = 0
                buffer[:first, :, self.start : old_start] = 0
        columns = torch.arange(self.mask.shape[-1], device=self.mask.device)
        masked = columns < end - torch.tensor(lengths, device=self.mask.device)[:, None]
        self.mask[first:last, 0, 0] = self.mask.new_zeros(masked.shape).masked_fill_(
            masked, torch.finfo(self.dtype).min
        )
        self.rows = last

    def open_column(self, longest: int) -> Tensor:
        self.start = max(self.start, self.end + 1 - longest)
        if self.end == self.mask.shape[-1]:
            self._rebuild(self.end - self.start)
        self.end += 1
        # Contiguous: attention kernels need aligned masks, and a slice may start at any offset.
        return self.mask[: self.rows, :, :, self.start : self.end].contiguous()

    def keep(self, order: list[int]) -> None:
        moved = [i for i, row in enumerate(order) if i != row]
        if moved:
            into = torch.tensor(moved, device=self.mask.device)
            origin = torch.tensor([order[i] for i in moved], device=self.mask.device)
            for layer in self.layers:
                layer.keys[into, :, self.start : self.end] = layer.keys[origin, :, self.start : self.end]
                layer.values[into, :, self.start : self.end] = layer.values[origin, :, self.start : self.end]
            self.mask[into] = self.mask[origin]
        self.rows = len(order)

    def _build(self, prefilled: Any, width: int, max_new_columns: int) -> None:
        columns = width + min(max_new_columns, _SLACK_COLUMNS)
        for new in prefilled.layers:
            buffers = (
                old.new_empty(self.num_slots, old.shape[1], columns, old.shape[3]) for old in (new.keys, new.values)
            )
            self.layers.append(SlotLayer(self, *buffers))
        self.mask = torch.zeros(self.num_slots, 1, 1, columns, dtype=self.dtype, device=self.layers[0].keys.device)
        self.cache = self._cache_type(layers=self.layers)
        self.end = width

    def _rebuild(self, width: int) -> None:
        """Move the live columns so that they end at column max(width, their number), with spare columns after them."""
        live = self.end - self.start
        end = max(width, live)
        columns = end + max(_SLACK_COLUMNS, end // 4)

        def moved(old: Tensor) -> Tensor:
            new = old.new_empty(*old.shape[:2], columns, old.shape[3])
            new[: self.rows, :, end - live : end] = old[: self.rows, :, self.start : self.end]
            return new

        for layer in self.layers:
            layer.keys, layer.values = moved(layer.keys), moved(layer.values)
        mask = self.mask.new_zeros(*self.mask.shape[:3], columns)
        mask[..., : end - live] = torch.finfo(self.dtype).min
        mask[: self.rows, ..., end - live : end] = self.mask[: self.rows, ..., self.start : self.end]
        self.mask, self.start, self.end = mask, end - live, end


class AppendCache:
    """Growing transformers cache with a 2D mask, for models that slots do not support (sliding windows, ...).

    Args:
        cache: prefilled cache with `batch_select_indices`.
        source: [m], the prefilled row of each row; None = the same order.
        mask: [U, P], 1 = a prompt token.
    """

    can_join = False

    def __init__(self, cache: Any, source: Tensor | None, mask: Tensor) -> None:
        self.cache = cache
        self.mask = mask
        if source is not None:
            self.mask = mask[source]
            self.cache.batch_select_indices(source)

    def open_column(self, longest: int) -> Tensor:
        self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=1)
        return self.mask

    def keep(self, order: list[int]) -> None:
        rows = torch.tensor(order, device=self.mask.device)
        self.cache.batch_select_indices(rows)
        self.mask = self.mask[rows]
