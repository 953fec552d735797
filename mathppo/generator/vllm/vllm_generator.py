"""vLLM as a `Generator`, in this process or in separate ones.

In this process, vLLM reads the trainer's tensors directly. In separate processes, the trainer survives the death of the
engine: it restarts the engine, loads the newest weights and sends the unfinished requests again. Every sample has its
seed, so the completions are the same. A process can run one engine at a time, because vLLM keeps its process groups in
globals. Measured with vLLM 0.32 (M-gen-3).
"""

import gc
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from mathppo.errors import BadCheckpoint, BadInput, StageFailed
from mathppo.generator.base import Request, Sampling, check_requests
from mathppo.generator.shm_cleanup import ShmFolder
from mathppo.generator.stops import StopStrings
from mathppo.generator.vllm.vllm_memory import VLLMOptions, cpu_cache_bytes
from mathppo.generator.vllm.vllm_startup import engine_died, import_vllm, undisturbed_random_numbers
from mathppo.generator.vllm.weight_update import choose_transfer
from mathppo.generator.weights import check_weights, expected_shapes, has_tied_head
from mathppo.records import FinishReason, Rollout

WATCH_EVERY_S = 0.5
"""Interval of the check that the engine's process is alive, in seconds."""


class VLLMGenerator:
    """A `Generator` over vLLM.

    Args:
        folder: Hugging Face folder of the policy.
        tokenizer: decodes completions.
        policy_step: number of updates that the weights of the folder have received.
        options: engine options; None = defaults.

    Raises:
        BadSetting: vLLM is missing, or the longest completion does not fit into the key-value cache.
        BadCheckpoint: vLLM cannot load the folder.
    """

    def __init__(
        self, folder: Path, tokenizer: Any, *, policy_step: int = 0, options: VLLMOptions | None = None
    ) -> None:
        options = options or VLLMOptions()
        self._folder, self._tokenizer, self._policy_step, self._options = folder, tokenizer, policy_step, options
        self._shapes, self._is_tied = expected_shapes(folder), has_tied_head(folder)
        self._on_gpu = torch.cuda.is_available()
        self._transfer = choose_transfer(own_process=options.own_process, on_gpu=self._on_gpu, dtype=self.dtype)
        self._shm = ShmFolder() if options.own_process else None
        self._closed = self._asleep = False
        self._llm: Any = None
        self._busy = False
        self._version = 0
        try:
            self._start()
        except BaseException:
            self.close()
            raise

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
        """False: vLLM stores weights in its own layout."""
        return False

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights and activations."""
        name = self._options.dtype
        return getattr(torch, ("bfloat16" if self._on_gpu else "float32") if name == "auto" else name)

    @property
    def llm(self) -> Any:
        """The `vllm.LLM`, for benchmarks."""
        return self._llm

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        """Yield one rollout per request as completions finish.

        Raises:
            BadInput: as `check_requests`; the weights were refreshed before the last completion; or the engine sleeps
                at level 2.
            StageFailed: the engine died more than `max_restarts` times.
        """
        if self._closed:
            raise BadInput("VLLMGenerator: expected an open engine, got a closed one; build a new one")
        config = self._started().model_config
        budgets = check_requests(requests, sampling, config.get_vocab_size(), config.max_model_len)
        return self._stream(dict(enumerate(zip(requests, budgets, strict=True))), sampling)

    def refresh(self, policy_step: int, weights: Mapping[str, Tensor] | None = None) -> None:
        """Load weights in place and drop all cached keys and values.

        Raises:
            BadInput: `weights` is None.
            BadCheckpoint: names or shapes of another model; the engine is not changed.
        """
        if weights is None:
            raise BadInput("VLLMGenerator: expected the policy's weights, got none; pass its whole state_dict()")
        check_weights(weights, self._shapes, is_tied=self._is_tied, policy_step=policy_step)
        self._policy_step = policy_step
        self._version += 1
        self._transfer.stage(weights, policy_step)
        if self._llm is None:
            self._start()  # loads the weights too
            return
        try:
            self._load()
        except engine_died():
            self._start()

    def sleep(self) -> None:
        """Free GPU memory for the trainer until the next refresh, if the options ask for it."""
        if self._llm is not None and self._on_gpu and self._options.sleep and not self._asleep:
            self._llm.sleep(level=self._options.sleep)
            self._asleep = True

    def close(self) -> None:
        """Stop the engine and its processes; a second call does nothing."""
        self._discard()
        self._transfer.close()
        if self._shm is not None:
            self._shm.close()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> Any:
        llm = self._llm or self._start()
        if self._asleep:
            if self._options.sleep > 1:
                raise BadInput(
                    "VLLMGenerator: expected a refresh after a sleep of level 2, which drops the weights, got requests"
                )
            llm.wake_up()
            self._asleep = False
        return llm

    def _start(self) -> Any:
        """Start the engine, load the newest weights and return the engine."""
        options = self._options
        vllm = import_vllm(own_process=options.own_process)
        arguments: dict[str, Any] = {"kv_cache_memory_bytes": options.kv_cache_bytes or None}
        if self._on_gpu:
            arguments |= {"gpu_memory_utilization": options.gpu_memory_share, "enable_sleep_mode": options.sleep > 0}
        else:
            arguments |= {
                "kv_cache_memory_bytes": cpu_cache_bytes(options, self._folder, self.dtype),
                "enforce_eager": True,
                # Chunked prefill rewinds the random generator of a request, which only GPU generators support.
                "enable_chunked_prefill": False,
            }
        arguments |= self._transfer.engine_arguments()
        try:
            with undisturbed_random_numbers():
                self._llm = vllm.LLM(
                    model=str(self._folder),
                    skip_tokenizer_init=True,
                    dtype=str(self.dtype).removeprefix("torch."),
                    max_model_len=options.context_tokens or None,
                    max_num_seqs=options.max_batch_size,
                    # Ignore the model's generation_config, and record logprobs after temperature and filters.
                    generation_config="vllm",
                    logprobs_mode="processed_logprobs",
                    seed=0,
                    disable_log_stats=True,
                    use_tqdm_on_load=False,
                    **arguments,
                )
        except (ValueError, RuntimeError, OSError, KeyError) as error:
            reason = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
            raise BadCheckpoint(
                f"{self._folder}: expected a model that vLLM {vllm.__version__} can start, got {reason}; "
                "run `mathppo doctor`, or use engine hf, which supports more models"
            ) from error
        if self._shm is not None:
            processes = self._llm.llm_engine.engine_core.resources.engine_manager.processes
            self._shm.record(*(process.pid for process in processes))
        self._load()
        return self._llm

    def _load(self) -> None:
        """Load the newest weights into the running engine; a sleeping one wakes in two steps, before and after."""
        try:
            if self._asleep:
                self._llm.wake_up(tags=["weights"])
            self._transfer.apply(self._llm)
            if self._asleep:
                self._llm.wake_up(tags=["kv_cache"])
                self._asleep = False
            cache_was_reset = self._llm.reset_prefix_cache()
            self._llm.update_weight_version(str(self._policy_step))
        except BaseException:
            self._discard()  # a partly updated model is unusable
            raise
        if not cache_was_reset:
            raise BadInput(
                "VLLMGenerator: expected no unfinished completion at a refresh; exhaust or drop the iterator"
            )

    def _discard(self) -> None:
        llm, self._llm, self._asleep = self._llm, None, False
        if llm is not None:
            core = getattr(llm.llm_engine, "engine_core", None)
            del llm
            if core is not None:
                core.shutdown()
            del core
            gc.collect()
            if self._shm is not None:
                self._shm.remove_segments()

    def _stream(self, waiting: dict[int, tuple[Request, int]], sampling: Sampling) -> Iterator[Rollout]:
        deaths, version = 0, self._version
        while waiting:
            try:
                for index, rollout in self._attempt(waiting, sampling):
                    del waiting[index]
                    yield rollout
                    if version != self._version:
                        raise BadInput(
                            f"VLLMGenerator: expected the same weights until the last completion, got refreshed ones "
                            f"with {len(waiting)} unfinished; exhaust or drop the iterator before refreshing"
                        )
            except engine_died() as error:
                deaths += 1
                self._discard()
                if deaths > self._options.max_restarts:
                    raise StageFailed(
                        f"vllm: the engine died {deaths} times with {len(waiting)} completions unfinished, more than "
                        f"generator.max_restarts={self._options.max_restarts} allows ({type(error).__name__}); check "
                        "for the out-of-memory killer, lower generator.kv_cache_bytes, and run the same command again"
                    ) from error

    def _attempt(self, waiting: Mapping[int, tuple[Request, int]], sampling: Sampling) -> Iterator[tuple[int, Rollout]]:
        """Sample the waiting requests and yield pairs of index and rollout."""
        if self._busy:
            raise BadInput("VLLMGenerator: expected one iterator at a time, got a second; exhaust or drop the first")
        engine, self._busy = self._started().llm_engine, True
        strings = StopStrings(self._tokenizer, sampling.stop)
        unfinished: dict[str, int] = {}
        sampled = {index: _Sampled() for index in waiting}
        try:
            with self._monitored(engine):
                for index, (request, budget) in waiting.items():
                    prompt = {"prompt_token_ids": list(request.prompt_ids)}
                    engine.add_request(str(index), prompt, _parameters(request, budget, sampling))
                    unfinished[str(index)] = index
                while unfinished:
                    for output in engine.step():
                        index = unfinished.get(output.request_id)
                        if index is None:
                            continue  # ended at a stop string before the engine processed the abort
                        reason = sampled[index].add(output.outputs[0], strings)
                        if reason is not None:
                            del unfinished[output.request_id]
                            if not output.finished:
                                engine.abort_request([output.request_id])
                            yield index, self._rollout(waiting[index][0], sampled.pop(index), reason)
        finally:
            self._busy = False
            if unfinished and self._llm is not None:
                self._abort(engine, list(unfinished))

    def _abort(self, engine: Any, keys: list[str]) -> None:
        """Abort unfinished requests; the engine may be dead."""
        try:
            engine.abort_request(keys)
        except engine_died():
            self._discard()

    @contextmanager
    def _monitored(self, engine: Any) -> Iterator[None]:
        """Unblock the caller when the engine's process dies: vLLM's monitor only sets a flag."""
        core, done = engine.engine_core, threading.Event()
        if not self._options.own_process:
            yield
            return
        (engine_dead_error,) = engine_died()

        def watch() -> None:
            while not done.wait(WATCH_EVERY_S):
                if core.resources.engine_dead:
                    core.outputs_queue.put_nowait(engine_dead_error())
                    return

        thread = threading.Thread(target=watch, name="vllm-monitor", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()

    def _rollout(self, request: Request, sampled: "_Sampled", reason: str) -> Rollout:
        if reason not in ("stop", "length"):
            raise StageFailed(
                f"{request.label}: expected finish reason 'stop' or 'length' from vLLM, got {reason!r}; run the same "
                "command again"
            )
        text = self._tokenizer.decode(sampled.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return request.rollout(sampled.ids, sampled.logprobs, FinishReason(reason), text, self._policy_step)


class _Sampled:
    """Tokens received for one completion."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []

    def add(self, output: Any, strings: StopStrings) -> str | None:
        """Append new tokens and return the finish reason, None if the completion is unfinished."""
        known = len(self.ids)
        self.ids += output.token_ids
        self.logprobs += [step[token].logprob for token, step in zip(output.token_ids, output.logprobs, strict=True)]
        end = strings.find_end(self.ids, known)
        if end is None:
            return output.finish_reason
        del self.ids[end:], self.logprobs[end:]
        return "stop"


def _parameters(request: Request, budget: int, sampling: Sampling) -> Any:
    """Return the vLLM parameters of one request; parameters that `sampling` lacks are neutral."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams  # pyright: ignore[reportMissingImports]

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        seed=request.seed,
        max_tokens=budget,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,  # only `stop_token_ids` terminate
        logprobs=0,
        detokenize=False,
        # Stop strings are found in `_Sampled.add`, token by token (M-gen-4): vLLM would need a tokenizer for them.
        output_kind=RequestOutputKind.DELTA if sampling.stop else RequestOutputKind.FINAL_ONLY,
    )
