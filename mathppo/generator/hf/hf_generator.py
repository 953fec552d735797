"""The embedded engine: samples from a transformers causal LM in this process, on a CPU or an accelerator with float64.

Its own loop, not `model.generate` (M-gen-1): every sample has its own seed, nothing of the model's `generation_config`
leaks in, rows leave as they finish and waiting ones take their places. A completion does not depend on its neighbours,
up to rounding: a uniform within about 1e-7 of the boundary between two tokens may fall on its other side.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from mathppo.errors import BadCheckpoint, BadInput, BrokenInvariant
from mathppo.generator.base import Request, Sampling
from mathppo.generator.budgets import check_requests
from mathppo.generator.hf.batcher import Flight, Row
from mathppo.generator.stops import StopStrings
from mathppo.load_errors import UNLOADABLE
from mathppo.records import FinishReason, Rollout

if TYPE_CHECKING:
    from transformers import DynamicCache


class HFGenerator:
    """A `Generator` over a transformers causal LM.

    Args:
        model: the policy, shared with whoever trains it or a copy; run in eval mode, its mode put back before a yield.
        tokenizer: only decodes completions for their text.
        policy_step: number of updates that the weights have seen.
        max_batch_size: most rows in flight; None = as many as `max_batch_tokens` allows.
        max_batch_tokens: most cached tokens, rows times longest prompt plus budget; one row runs whatever its size.
        on_progress: called with (finished, asked) after each yielded group.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        policy_step: int = 0,
        max_batch_size: int | None = None,
        max_batch_tokens: int = 1 << 16,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        for name, limit in (("max_batch_size", max_batch_size), ("max_batch_tokens", max_batch_tokens)):
            if limit is not None and limit < 1:
                raise BadInput(f"HFGenerator: expected {name} >= 1, got {limit}")
        self._forward: ModelCaller | None = ModelCaller(model)
        self._tokenizer = tokenizer
        self._max_batch_size = max_batch_size
        self._max_batch_tokens = max_batch_tokens
        self._on_progress = on_progress
        self._policy_step = policy_step
        self._weights_version = 0

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu", **options: Any
    ) -> Self:
        """Load a checkpoint folder: safetensors only, no code from the checkpoint.

        Args:
            path: a local folder as `save_pretrained` writes it, tokenizer included.
            dtype: of the weights in memory.
            device: where they go.
            options: the constructor's.

        Raises:
            BadCheckpoint: a missing or damaged folder, or weights that do not fill the model.
        """
        folder = Path(path)
        from transformers import AutoModelForCausalLM, AutoTokenizer

        remedy = "point to a folder written by `save_pretrained`"
        if not (folder / "config.json").is_file():
            raise BadCheckpoint(f"{folder}: expected a checkpoint folder with config.json, got none; {remedy}")
        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                # Weights of another shape are counted below, with those that are missing.
                folder, dtype=dtype, use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True,
                **local,
            )  # fmt: skip
            model, loading = loaded
            tokenizer = AutoTokenizer.from_pretrained(folder, **local)
        except UNLOADABLE as error:
            reason = " ".join(str(error).split())
            raise BadCheckpoint(
                f"{folder}: expected a loadable model and tokenizer, got {type(error).__name__}: {reason}; {remedy}"
            ) from error
        if loading["missing_keys"] or loading["mismatched_keys"]:
            missing = sorted([*loading["missing_keys"], *(name for name, *_ in loading["mismatched_keys"])])
            raise BadCheckpoint(
                f"{folder}: expected weights for every parameter, got none that fit for {len(missing)} of them, "
                f"first {missing[0]}; {remedy}"
            )
        return cls(model.to(device), tokenizer, **options)

    @property
    def tokenizer(self) -> Any:
        """The policy's tokenizer."""
        return self._tokenizer

    @property
    def policy_step(self) -> int:
        """Number of updates that the weights have seen."""
        return self._policy_step

    @property
    def shares_weights(self) -> bool:
        """Whether the module is the trainer's own, so that a refresh copies nothing."""
        return True

    def refresh(self, policy_step: int, weights: Mapping[str, Tensor] | None = None) -> None:
        """Say that the module now holds the weights of `policy_step`; completions in flight are given up.

        Args:
            policy_step: number of updates that they have seen.
            weights: copied into the module first, where it is not the trainer's own; see `load`.
        """
        if weights is not None:
            self.load(weights, policy_step)
            return
        self._policy_step = policy_step
        self._weights_version += 1

    def load(self, state_dict: Mapping[str, Tensor], policy_step: int) -> None:
        """Copy weights into the module, then `refresh`.

        Args:
            state_dict: every parameter and buffer by name; one that is tied to another may be left out.
            policy_step: number of updates that they have seen.

        Raises:
            BadCheckpoint: names or shapes of another model; the module is left as it was.
        """
        module = self._caller().model
        own = module.state_dict()
        tied = {weight.data_ptr() for name, weight in own.items() if name in state_dict}
        missing = [n for n, weight in own.items() if n not in state_dict and weight.data_ptr() not in tied]
        problems = [f"no {name}" for name in missing]
        problems += [f"unknown {name}" for name in state_dict if name not in own]
        problems += [
            f"{name} of shape {tuple(new.shape)} instead of {tuple(own[name].shape)}"
            for name, new in state_dict.items()
            if name in own and new.shape != own[name].shape
        ]
        if problems:
            raise BadCheckpoint(
                f"weights of step {policy_step}: expected those of this {type(module).__name__}, got {problems[0]} "
                f"({len(problems)} differences); load a checkpoint of the same model"
            )
        module.load_state_dict(dict(state_dict), strict=False)
        self.refresh(policy_step)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        """Yield one rollout per request as completions finish; requests are checked before anything is sampled.

        Raises:
            BadInput: an empty prompt, an id outside the vocabulary, a prompt that leaves no room for one new token, or
                two requests for the same sample.
            BrokenInvariant: while sampling, non-finite logits, or weights that changed under completions in flight.
        """
        caller = self._caller()
        budgets = check_requests(requests, sampling, caller.vocab_size, caller.context_length)
        rows = [Row(request, budget) for request, budget in zip(requests, budgets, strict=True)]
        return self._stream(caller, rows, sampling)

    def sleep(self) -> None:
        """Nothing: the weights are the trainer's, and between two calls no keys and values are kept."""

    def close(self) -> None:
        """Let go of the model; its weights are freed unless someone else holds them."""
        self._forward = None
        self._weights_version += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _caller(self) -> "ModelCaller":
        if self._forward is None:
            raise BadInput("HFGenerator: expected an open engine, got a closed one; build a new one")
        return self._forward

    def _stream(self, caller: "ModelCaller", rows: list[Row], sampling: Sampling) -> Iterator[Rollout]:
        if not rows:
            return
        version, step, asked, finished = self._weights_version, self._policy_step, len(rows), 0
        longest = max(len(row.request.prompt_ids) + row.budget for row in rows)
        num_slots = max(1, min(asked, self._max_batch_size or asked, self._max_batch_tokens // longest))
        flight = Flight(caller, rows, sampling, num_slots, StopStrings(self._tokenizer, sampling.stop))
        while flight.busy:
            if version != self._weights_version:
                raise BrokenInvariant(
                    f"HFGenerator: expected the weights of step {step} until the last completion, got refreshed ones "
                    f"with {asked - finished} of {asked} unfinished; exhaust or drop the iterator before refreshing"
                )
            done = flight.advance()
            for row, text in zip(done, self._decode(done), strict=True):
                yield _rollout(row, text, step)
            finished += len(done)
            if self._on_progress is not None:
                self._on_progress(finished, asked)

    def _decode(self, rows: list[Row]) -> list[str]:
        ids = [row.ids for row in rows]
        return self._tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


class ModelCaller:
    """One way to call any causal LM: prefill and single steps, logits of the last position only."""

    def __init__(self, model: Any) -> None:
        from transformers import Cache
        from transformers.cache_utils import DynamicLayer

        self.model = model
        config = model.config.get_text_config(decoder=True)
        self.vocab_size: int = model.get_input_embeddings().weight.shape[0]
        self.context_length: int | None = getattr(config, "max_position_embeddings", None)
        self.cache_type = Cache
        parameters = inspect.signature(model.forward).parameters
        self._cache_word = "cache" if "cache" in parameters else "past_key_values"
        self._takes_positions = "position_ids" in parameters
        self._fixed: dict[str, Any] = {"use_cache": True}
        if "logits_to_keep" in parameters:
            self._fixed["logits_to_keep"] = 1
        self._modules = list(model.modules())
        self.takes_slots = (
            self._takes_positions
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
        """Give logits [B, V] of the last column; `cache` takes the new keys and values."""
        words = {self._cache_word: cache, **self._fixed}
        if self._takes_positions:
            words["position_ids"] = positions
        return self.model(input_ids=ids, attention_mask=mask, **words).logits[:, -1]

    def pause_training(self) -> list[Any]:
        """Turn dropout off; give the modules that were in training mode, for `resume_training`."""
        training = [module for module in self._modules if module.training]
        for module in training:
            module.training = False
        return training

    @staticmethod
    def resume_training(modules: list[Any]) -> None:
        for module in modules:
            module.training = True


def _rollout(row: Row, completion: str, policy_step: int) -> Rollout:
    request = row.request
    return Rollout(
        problem_id=request.problem_id,
        sample_index=request.sample_index,
        prompt_ids=list(request.prompt_ids),
        completion_ids=row.ids,
        completion=completion,
        behaviour_logprobs=row.logprobs,
        finish_reason=FinishReason.STOP if row.stopped else FinishReason.LENGTH,
        policy_step=policy_step,
        seed=request.seed,
    )
