"""Embedded engine: samples from a transformers causal LM in this process, on a CPU or an accelerator with float64.

It uses `Batcher` instead of `model.generate` (M-gen-1): every sample has its own seed, the model's `generation_config`
is ignored, and finished rows are replaced by waiting ones. A completion does not depend on the rest of the batch, up to
rounding: a uniform within about 1e-7 of the boundary between two tokens may select either.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from mathppo.errors import BadCheckpoint, BadInput, BrokenInvariant
from mathppo.generator.base import Request, Sampling, check_requests
from mathppo.generator.hf.batcher import Batcher, Row
from mathppo.generator.hf.causal_lm import CausalLM
from mathppo.generator.stops import StopStrings
from mathppo.generator.weights import compare_weights
from mathppo.load_errors import UNLOADABLE
from mathppo.records import FinishReason, Rollout


class HFGenerator:
    """A `Generator` over a transformers causal LM.

    Args:
        model: the policy, shared with the trainer or a copy; runs in eval mode, with its mode restored at each yield.
        tokenizer: decodes completions.
        policy_step: number of updates that the weights have received.
        max_batch_size: maximum number of rows sampled at a time; None = as many as `max_batch_tokens` allows.
        max_batch_tokens: maximum number of cached tokens, rows times longest prompt plus budget; at least one row runs.
        on_progress: called with (number finished, number requested) after each yielded group.
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
        self._causal_lm: CausalLM | None = CausalLM(model)
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
            path: local folder written by `save_pretrained`, tokenizer included.
            dtype: dtype of the weights in memory.
            device: device of the weights.
            options: options of the constructor.

        Raises:
            BadCheckpoint: a missing or damaged folder, or one that lacks weights of the model.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer  # takes a second

        folder = Path(path)

        remedy = "point to a folder written by `save_pretrained`"
        if not (folder / "config.json").is_file():
            raise BadCheckpoint(f"{folder}: expected a checkpoint folder with config.json, got none; {remedy}")
        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                # Mismatched shapes are reported below together with missing weights.
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
        """Tokenizer of the policy."""
        return self._tokenizer

    @property
    def policy_step(self) -> int:
        """Number of updates that the weights have received."""
        return self._policy_step

    @property
    def shares_weights(self) -> bool:
        """True: the module is the trainer's, so a refresh copies nothing."""
        return True

    def refresh(self, policy_step: int, weights: Mapping[str, Tensor] | None = None) -> None:
        """Record that the module has the weights of `policy_step`; unfinished completions are abandoned.

        Args:
            policy_step: number of updates that the weights have received.
            weights: copied into the module first if it is not the trainer's; see `load`.
        """
        if weights is not None:
            self.load(weights, policy_step)
            return
        self._policy_step = policy_step
        self._weights_version += 1

    def load(self, state_dict: Mapping[str, Tensor], policy_step: int) -> None:
        """Copy weights into the module, then `refresh`.

        Args:
            state_dict: every parameter and buffer by name; one that is tied to another may be omitted.
            policy_step: number of updates that the weights have received.

        Raises:
            BadCheckpoint: names or shapes of another model; the module is not changed.
        """
        module = self._open().model
        own = module.state_dict()
        tied = {weight.data_ptr() for name, weight in own.items() if name in state_dict}
        expected = {n: tuple(w.shape) for n, w in own.items() if n in state_dict or w.data_ptr() not in tied}
        differences = compare_weights(state_dict, expected)
        if differences:
            raise BadCheckpoint(
                f"weights of step {policy_step}: expected those of this {type(module).__name__}, got {differences[0]} "
                f"({len(differences)} differences); load a checkpoint of the same model"
            )
        module.load_state_dict(dict(state_dict), strict=False)
        self.refresh(policy_step)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        """Yield one rollout per request as completions finish; requests are checked before anything is sampled.

        Raises:
            BadInput: an empty prompt, an id outside the vocabulary, a prompt that fills the whole context, or two
                requests for one sample.
            BrokenInvariant: while sampling, non-finite logits, or weights that changed before the last completion.
        """
        causal_lm = self._open()
        budgets = check_requests(requests, sampling, causal_lm.vocab_size, causal_lm.context_length)
        rows = [Row(request, budget) for request, budget in zip(requests, budgets, strict=True)]
        return self._stream(causal_lm, rows, sampling)

    def sleep(self) -> None:
        """Do nothing: the weights are the trainer's, and no keys and values are kept between calls."""

    def close(self) -> None:
        """Release the model; its weights are freed unless the trainer also uses them."""
        self._causal_lm = None
        self._weights_version += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> CausalLM:
        if self._causal_lm is None:
            raise BadInput("HFGenerator: expected an open engine, got a closed one; build a new one")
        return self._causal_lm

    def _stream(self, causal_lm: CausalLM, rows: list[Row], sampling: Sampling) -> Iterator[Rollout]:
        if not rows:
            return
        version, step, total, finished = self._weights_version, self._policy_step, len(rows), 0
        longest = max(len(row.request.prompt_ids) + row.budget for row in rows)
        num_slots = max(1, min(total, self._max_batch_size or total, self._max_batch_tokens // longest))
        batcher = Batcher(causal_lm, rows, sampling, num_slots, StopStrings(self._tokenizer, sampling.stop))
        while batcher.has_unfinished:
            if version != self._weights_version:
                raise BrokenInvariant(
                    f"HFGenerator: expected the weights of step {step} until the last completion, got refreshed ones "
                    f"with {total - finished} of {total} unfinished; exhaust or drop the iterator before refreshing"
                )
            done = batcher.advance()
            texts = self._tokenizer.batch_decode(
                [row.ids for row in done], skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            for row, text in zip(done, texts, strict=True):
                reason = FinishReason.STOP if row.stopped else FinishReason.LENGTH
                yield row.request.rollout(row.ids, row.logprobs, reason, text, step)
            finished += len(done)
            if self._on_progress is not None:
                self._on_progress(finished, total)
