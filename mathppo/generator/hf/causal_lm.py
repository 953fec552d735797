"""Calls any transformers causal LM for sampling: prefill and single decoding steps."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import DynamicCache


class CausalLM:
    """A causal LM with one calling convention; computes the logits of the last position only."""

    def __init__(self, model: Any) -> None:
        from transformers import Cache
        from transformers.cache_utils import DynamicLayer

        self.model = model
        config = model.config.get_text_config(decoder=True)
        self.vocab_size: int = model.get_input_embeddings().weight.shape[0]
        self.context_length: int | None = getattr(config, "max_position_embeddings", None)
        self.cache_type = Cache
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._accepts_positions = "position_ids" in parameters
        self._fixed: dict[str, Any] = {"use_cache": True}
        if "logits_to_keep" in parameters:
            self._fixed["logits_to_keep"] = 1
        self._modules = list(model.modules())
        self.supports_slots = (
            self._accepts_positions
            and config._attn_implementation in ("sdpa", "eager")
            and not getattr(config, "alibi", False)
            and all(type(layer) is DynamicLayer for layer in self.new_cache().layers)
        )

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def new_cache(self) -> "DynamicCache":
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def __call__(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """Return logits [B, V] of the last column; new keys and values are appended to `cache`."""
        arguments = {self._cache_argument: cache, **self._fixed}
        if self._accepts_positions:
            arguments["position_ids"] = positions
        return self.model(input_ids=ids, attention_mask=mask, **arguments).logits[:, -1]

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Set all modules to eval mode and restore the mode of each on exit."""
        training = [module for module in self._modules if module.training]
        for module in training:
            module.training = False
        try:
            yield
        finally:
            for module in training:
                module.training = True
