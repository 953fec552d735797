"""A server that completes token ids, as a `Generator`: `vllm serve`, whose weights are refreshed, or any OpenAI API.

Every request says all its sampling parameters, so that no default of the server, such as a model's generation_config,
has a say. Requests are sent side by side and answered rollouts are yielded at once. A lost connection or a server in
trouble is tried again a few times; every sample has its seed, so that nothing changes by that.

How a vLLM server takes new weights stands in `server_weights`.
"""

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
from torch import Tensor

from mathppo.errors import BadInput, BadSetting, StageFailed
from mathppo.generator.base import Request, Sampling
from mathppo.generator.budgets import check_requests
from mathppo.generator.server.http_client import LOST, Address, Refused
from mathppo.generator.server.server_weights import ServerWeights
from mathppo.generator.stops import StopStrings
from mathppo.records import FinishReason, Rollout

CLOSING_S = 5.0
"""Wait for an answer that nobody reads any more."""

UNKNOWN_VOCABULARY = 1 << 31


class Server(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server, and what may be asked of it.

    Args:
        url: http://host:port, with or without /v1.
        model: its name there; "" = the first that the server lists.
        max_connections: most requests in flight.
        takes_weights: it is a vLLM server in development mode.
        weight_transfer: as `ServerWeights` takes it.
        weights_folder: seen by both sides; "" = a disk in memory, for a server on this machine.
        dtype: of the weights that are sent; "auto" = float32 on a machine without a GPU, else bfloat16.
        sleep: level at which the server, on the trainer's GPU, leaves its memory; 0 = never.
        max_retries: how often a lost request is sent again.
    """

    url: str
    model: str = ""
    max_connections: int = 256
    takes_weights: bool = False
    weight_transfer: Literal["auto", "file", "ipc", "nccl"] = "auto"
    weights_folder: str = ""
    dtype: str = "auto"
    sleep: int = 0
    max_retries: int = 2


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float] | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    """What is read of an answer; a server may say more."""

    choices: list[_Choice]


class ServerGenerator:
    """A `Generator` over HTTP.

    Args:
        server: which.
        tokenizer: only decodes completions for their text.
        policy_step: number of updates that the server's weights have seen.
        folder: the policy's, whose names and shapes new weights must have; None where none are sent.

    Raises:
        BadSetting: there is no server, or it does not hold the model.
    """

    def __init__(self, server: Server, tokenizer: Any, *, policy_step: int = 0, folder: Path | None = None) -> None:
        self._server, self._tokenizer, self._policy_step = server, tokenizer, policy_step
        self._address = Address(server.url)
        self._weights: ServerWeights | None = None
        if server.takes_weights and folder is not None:
            self._weights = ServerWeights(
                self._address,
                folder,
                transfer=server.weight_transfer,
                weights_folder=server.weights_folder,
                dtype=server.dtype,
                sleep=server.sleep,
            )
        self._in_flight: list[threading.Thread] = []
        self._model, self._context_tokens, self._served = self._find_model()

    @property
    def tokenizer(self) -> Any:
        """The policy's tokenizer."""
        return self._tokenizer

    @property
    def policy_step(self) -> int:
        """Number of updates that the weights have seen."""
        return self._policy_step

    @property
    def served(self) -> str:
        """The model's name on the server, and where the server says that it comes from."""
        return self._served

    @property
    def shares_weights(self) -> bool:
        """Always false."""
        return False

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        """Yield one rollout per request as answers arrive.

        Raises:
            BadInput: as `check_requests`; the server refuses a request; or weights were refreshed meanwhile.
            StageFailed: the server is gone for longer than the retries last.
        """
        budgets = check_requests(requests, sampling, UNKNOWN_VOCABULARY, self._context_tokens)
        if self._weights is not None:
            self._weights.wake()
        return self._stream(list(zip(requests, budgets, strict=True)), sampling)

    def refresh(self, policy_step: int, weights: Mapping[str, Tensor] | None = None) -> None:
        """Have the server read new weights, and forget all cached keys and values.

        Raises:
            BadInput: a server that takes none, or none given.
            BadCheckpoint: names or shapes of another model.
            StageFailed: the server could not.
        """
        if self._weights is None:
            raise BadInput(
                f"{self._server.url}: expected an engine that takes new weights, got engine 'openai', which only "
                "samples and evaluates; train with 'hf', 'vllm' or 'vllm-http'"
            )
        self._weights.send(weights, policy_step)
        self._policy_step = policy_step

    def sleep(self) -> None:
        """Have the server leave the GPU's memory to the trainer until the next refresh, where the settings say so."""
        if self._weights is not None:
            self._weights.sleep()

    def close(self) -> None:
        """Let go of the server, which lives on."""
        if self._weights is not None:
            self._weights.close()
            self._weights = None
        for thread in self._in_flight:
            thread.join(CLOSING_S)
        self._address.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find_model(self) -> tuple[str, int | None, str]:
        try:
            listed = self._address.get("/v1/models")["data"]
        except (Refused, *LOST, ValueError, KeyError, TypeError) as error:
            self._address.close()
            raise BadSetting(
                f"generator.url: expected an OpenAI-compatible server at {self._server.url!r}, got {error!r}; start "
                "it, or correct the address"
            ) from error
        names = {model.get("id"): model.get("max_model_len") for model in listed}
        name = self._server.model or next(iter(names), None)
        if name not in names:
            self._address.close()
            raise BadSetting(
                f"generator.served_model: expected one of {', '.join(map(str, names)) or 'no model at all'} at "
                f"{self._server.url}, got {self._server.model!r}"
            )
        root = next((model.get("root") for model in listed if model.get("id") == name), None)
        return str(name), names[name], f"{name} ({root})" if root else str(name)

    def _stream(self, waiting: list[tuple[Request, int]], sampling: Sampling) -> Iterator[Rollout]:
        todo: queue.SimpleQueue[tuple[Request, int]] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[Request, Any] | BadInput | StageFailed] = queue.SimpleQueue()
        for item in waiting:
            todo.put(item)
        stop, step = threading.Event(), self._policy_step

        def work() -> None:
            while not stop.is_set():
                try:
                    request, budget = todo.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put((request, self._ask(request, budget, sampling)))
                except (BadInput, StageFailed) as error:
                    done.put(error)
                    return

        num_threads = min(len(waiting), self._server.max_connections)
        threads = [threading.Thread(target=work, daemon=True) for _ in range(num_threads)]
        for thread in threads:
            thread.start()
        try:
            for num_finished in range(len(waiting)):
                found = done.get()
                if isinstance(found, BaseException):
                    raise found
                if step != self._policy_step:
                    raise BadInput(
                        f"{self._server.url}: expected the same weights until the last completion, got refreshed ones "
                        f"with {len(waiting) - num_finished} unfinished; exhaust or drop the iterator before refreshing"
                    )
                # Read here: what an answer makes fail, a thread would take along, and be waited for.
                yield self._rollout(*found, sampling)
        finally:
            stop.set()
            self._in_flight = [thread for thread in (*self._in_flight, *threads) if thread.is_alive()]

    def _ask(self, request: Request, budget: int, sampling: Sampling) -> Any:
        where = _place(request)
        body = _body(request, budget, sampling, self._model)
        try:
            return self._address.post("/v1/completions", body, tries=1 + self._server.max_retries)
        except Refused as error:
            raise BadInput(f"{where}: {self._server.url} refused it: {error}") from error
        except LOST as error:
            raise StageFailed(
                f"{where}: expected an answer from {self._server.url} in {1 + self._server.max_retries} tries, got "
                f"{error!r}; start the server again and run the same command: what was finished is kept"
            ) from error

    def _rollout(self, request: Request, answer: Any, sampling: Sampling) -> Rollout:
        where = _place(request)
        try:
            choice = msgspec.convert(answer, _Answer).choices[0]
        except (msgspec.ValidationError, IndexError) as error:
            raise StageFailed(
                f"{where}: expected {self._server.url} to answer as the completions API does, got {str(answer)[:80]!r} "
                f"({error}); see the server's log, and run the same command again"
            ) from error
        ids, logprobs = choice.token_ids, choice.logprobs and choice.logprobs.token_logprobs
        if not ids or logprobs is None:
            missing = " and ".join(n for n, value in (("token_ids", ids), ("logprobs", logprobs)) if not value)
            raise BadInput(
                f"{where}: expected token_ids and logprobs in the answer of {self._server.url}, got no {missing}; use "
                "a server that gives both, such as vLLM's"
            )
        reason = choice.finish_reason
        if reason not in ("stop", "length"):
            raise StageFailed(
                f"{where}: expected {self._server.url} to finish it by stop or length, got {reason!r}; run the same "
                "command again"
            )
        end = StopStrings(self._tokenizer, sampling.stop).end(ids)
        if end is not None:
            ids, logprobs, reason = ids[:end], logprobs[:end], "stop"
        elif sampling.stop and reason == "stop" and ids[-1] not in sampling.stop_token_ids:
            raise BadInput(
                f"{where}: expected {self._server.url} to give the tokens of the stop string that it stopped at, got "
                "ids without any of generator.stop; use a server that keeps them, such as vLLM's, or stop_token_ids"
            )
        return Rollout(
            problem_id=request.problem_id,
            sample_index=request.sample_index,
            prompt_ids=list(request.prompt_ids),
            completion_ids=ids,
            completion=self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
            behaviour_logprobs=logprobs,
            finish_reason=FinishReason(reason),
            policy_step=self._policy_step,
            seed=request.seed,
        )


def _place(request: Request) -> str:
    return f"problem {request.problem_id!r} sample {request.sample_index}"


def _body(request: Request, budget: int, sampling: Sampling, model: str) -> dict[str, Any]:
    """Give the request in full: what is left out, a server fills from the model's generation_config."""
    return {
        "model": model,
        "prompt": list(request.prompt_ids),
        "max_tokens": budget,
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": request.seed,
        "stop_token_ids": list(sampling.stop_token_ids),
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
        "skip_special_tokens": False,
        "add_special_tokens": False,
        "stream": False,
    }
