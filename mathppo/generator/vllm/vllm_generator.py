"""vLLM, in this process or in one of its own, as a `Generator`.

In this process the trainer's tensors are read where they lie. In a process of its own the engine can die without the
trainer: it is started again, given the newest weights, and asked for what it had not answered; as every sample has its
seed, the answers are those that it would have given. One engine lives in a process at a time (vLLM keeps its groups in
globals). Measured against vLLM 0.32 (M-gen-3).
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
from mathppo.generator.base import Request, Sampling
from mathppo.generator.budgets import check_requests
from mathppo.generator.shm_cleanup import Claim
from mathppo.generator.stops import StopStrings
from mathppo.generator.vllm.vllm_memory import Place, cpu_cache_bytes
from mathppo.generator.vllm.vllm_startup import engine_died, import_vllm, undisturbed_random_numbers
from mathppo.generator.vllm.weight_update import choose_handover
from mathppo.generator.weights import check_weights, expected_shapes, has_tied_head
from mathppo.records import FinishReason, Rollout

WATCH_EVERY_S = 0.5
"""Seconds between two looks at whether the engine's process still lives."""


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
        self._handover = choose_handover(own_process=place.own_process, on_gpu=self._on_gpu, dtype=self.dtype)
        self._claim = Claim() if place.own_process else None
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
            BadInput: as `check_requests`; completions in flight while the weights were refreshed; or asleep without
                weights.
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
        self._policy_step = policy_step
        self._version += 1
        self._handover.take(weights, policy_step)
        if self._llm is None:
            self._start()  # loads them too
            return
        try:
            self._load()
        except engine_died():
            self._start()

    def sleep(self) -> None:
        """Leave the GPU's memory to the trainer until the next refresh, where the place says so."""
        if self._llm is not None and self._on_gpu and self._place.sleep and not self._asleep:
            self._llm.sleep(level=self._place.sleep)
            self._asleep = True

    def close(self) -> None:
        """End the engine and its processes; a second call does nothing."""
        self._discard()
        self._handover.close()
        if self._claim is not None:
            self._claim.close()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> Any:
        llm = self._llm or self._start()
        if self._asleep:
            if self._place.sleep > 1:
                raise BadInput(
                    "VLLMGenerator: expected a refresh after a sleep of level 2, which drops the weights, got requests"
                )
            llm.wake_up()
            self._asleep = False
        return llm

    def _start(self) -> Any:
        """Start the engine, with the newest weights where any were taken, and give it."""
        place = self._place
        vllm = import_vllm(own_process=place.own_process)
        options: dict[str, Any] = {"kv_cache_memory_bytes": place.kv_cache_bytes or None}
        if self._on_gpu:
            options |= {"gpu_memory_utilization": place.gpu_memory_share, "enable_sleep_mode": place.sleep > 0}
        else:
            options |= {
                "kv_cache_memory_bytes": cpu_cache_bytes(place, self._folder, self.dtype),
                "enforce_eager": True,
                # A prompt taken in parts rewinds its request's random numbers, which only generators on GPUs can.
                "enable_chunked_prefill": False,
            }
        options |= self._handover.options()
        try:
            with undisturbed_random_numbers():
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
            reason = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
            raise BadCheckpoint(
                f"{self._folder}: expected a model that vLLM {vllm.__version__} can start, got {reason}; "
                "`mathppo doctor` says what works here, engine hf runs more models"
            ) from error
        if self._claim is not None:
            processes = self._llm.llm_engine.engine_core.resources.engine_manager.processes
            self._claim.note(*(process.pid for process in processes))
        self._load()
        return self._llm

    def _load(self) -> None:
        """Give the running engine the newest weights; one that sleeps wakes by halves, before and after."""
        try:
            if self._asleep:
                self._llm.wake_up(tags=["weights"])
            self._handover.give(self._llm)
            if self._asleep:
                self._llm.wake_up(tags=["kv_cache"])
                self._asleep = False
            forgot = self._llm.reset_prefix_cache()
            self._llm.update_weight_version(str(self._policy_step))
        except BaseException:
            self._discard()  # half a model answers with nonsense, or not at all
            raise
        if not forgot:
            raise BadInput("VLLMGenerator: expected no completion in flight at a refresh; exhaust or drop the iterator")

    def _discard(self) -> None:
        llm, self._llm, self._asleep = self._llm, None, False
        if llm is not None:
            core = getattr(llm.llm_engine, "engine_core", None)
            del llm
            if core is not None:
                core.shutdown()
            del core
            gc.collect()
            if self._claim is not None:
                self._claim.free()

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
        strings = StopStrings(self._tokenizer, sampling.stop)
        flying: dict[str, int] = {}
        sampled = {index: _Sampled() for index in waiting}
        try:
            with self._watched(engine):
                for index, (request, budget) in waiting.items():
                    prompt = {"prompt_token_ids": list(request.prompt_ids)}
                    engine.add_request(str(index), prompt, _parameters(request, budget, sampling))
                    flying[str(index)] = index
                while flying:
                    for output in engine.step():
                        index = flying.get(output.request_id)
                        if index is None:
                            continue  # ended at a stop string, and its engine did not know yet
                        reason = sampled[index].add(output.outputs[0], strings)
                        if reason is not None:
                            del flying[output.request_id]
                            if not output.finished:
                                engine.abort_request([output.request_id])
                            yield index, self._rollout(waiting[index][0], sampled.pop(index), reason)
        finally:
            self._busy = False
            if flying and self._llm is not None:
                self._give_up(engine, list(flying))

    def _give_up(self, engine: Any, keys: list[str]) -> None:
        """Drop what is in flight, of an engine that may be dead."""
        try:
            engine.abort_request(keys)
        except engine_died():
            self._discard()

    @contextmanager
    def _watched(self, engine: Any) -> Iterator[None]:
        """Wake the caller when the engine's process is gone: vLLM's own monitor marks it dead and tells nobody."""
        core, done = engine.engine_core, threading.Event()
        if not self._place.own_process:
            yield
            return
        (died,) = engine_died()

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

    def _rollout(self, request: Request, sampled: "_Sampled", reason: str) -> Rollout:
        if reason not in ("stop", "length"):
            raise StageFailed(
                f"problem {request.problem_id!r} sample {request.sample_index}: expected vLLM to finish it by stop or "
                f"length, got {reason!r}; run the same command again"
            )
        return Rollout(
            problem_id=request.problem_id,
            sample_index=request.sample_index,
            prompt_ids=list(request.prompt_ids),
            completion_ids=sampled.ids,
            completion=self._tokenizer.decode(
                sampled.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            ),
            behaviour_logprobs=sampled.logprobs,
            finish_reason=FinishReason(reason),
            policy_step=self._policy_step,
            seed=request.seed,
        )


class _Sampled:
    """What an engine has said of one completion."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []

    def add(self, output: Any, strings: StopStrings) -> str | None:
        """Take what was sampled since; give why the completion ended, None where it goes on."""
        known = len(self.ids)
        self.ids += output.token_ids
        self.logprobs += [step[token].logprob for token, step in zip(output.token_ids, output.logprobs, strict=True)]
        end = strings.end(self.ids, known)
        if end is None:
            return output.finish_reason
        del self.ids[end:], self.logprobs[end:]
        return "stop"


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
        # Stop strings are looked for here, token by token (M-gen-4): vLLM would need its own tokenizer for them.
        output_kind=RequestOutputKind.DELTA if sampling.stop else RequestOutputKind.FINAL_ONLY,
    )
