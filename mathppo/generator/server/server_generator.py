"""A completions server as a `Generator`: `vllm serve`, with weight updates, or any server with the OpenAI API.

Every request contains all sampling parameters, so server defaults, such as a model's generation_config, are ignored.
Requests are sent in parallel and rollouts are yielded as responses arrive. Failed requests are sent again a few times;
every sample has its seed, so a retry does not change it. `server_weights` describes weight updates.
"""

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
from torch import Tensor

from mathppo.errors import BadInput, BadSetting, StageFailed
from mathppo.generator.base import Request, Sampling, check_requests
from mathppo.generator.server.http_client import CONNECTION_ERRORS, HTTPClient, RequestRejected
from mathppo.generator.server.server_weights import ServerWeights
from mathppo.generator.stops import StopStrings
from mathppo.records import FinishReason, Rollout

CLOSING_S = 5.0
"""Longest wait at close for a pending response, in seconds."""

UNKNOWN_VOCABULARY = 1 << 31


class Server(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address and options of a server.

    Args:
        url: http://host:port, with or without /v1.
        model: model name on the server; "" = the first one listed.
        max_connections: maximum number of parallel requests.
        takes_weights: True for a vLLM server in development mode.
        weight_transfer: `transfer` of `ServerWeights`.
        weights_folder: folder shared with the server; "" = shared memory, for a server on this machine.
        dtype: dtype of the sent weights; "auto" = float32 on a machine without a GPU, else bfloat16.
        sleep: sleep level of a server on the trainer's GPU; 0 = never sleep.
        max_retries: how often a failed request is sent again.
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
    """The fields of a response that are used; others are ignored."""

    choices: list[_Choice]


class ServerGenerator:
    """A `Generator` over HTTP.

    Args:
        server: address and options.
        tokenizer: decodes completions.
        policy_step: number of updates that the server's weights have received.
        folder: model folder of the policy, whose names and shapes new weights must have; None = no weight updates.

    Raises:
        BadSetting: no server at the address, or it does not serve the model.
    """

    def __init__(self, server: Server, tokenizer: Any, *, policy_step: int = 0, folder: Path | None = None) -> None:
        self._server, self._tokenizer, self._policy_step = server, tokenizer, policy_step
        self._client = HTTPClient(server.url)
        self._weights: ServerWeights | None = None
        if server.takes_weights and folder is not None:
            self._weights = ServerWeights(
                self._client,
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
        """Tokenizer of the policy."""
        return self._tokenizer

    @property
    def policy_step(self) -> int:
        """Number of updates that the weights have received."""
        return self._policy_step

    @property
    def served(self) -> str:
        """Model name on the server, with the path that the server reports for it."""
        return self._served

    @property
    def shares_weights(self) -> bool:
        """False: the weights are in another process."""
        return False

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        """Yield one rollout per request as responses arrive.

        Raises:
            BadInput: as `check_requests`; the server rejected a request; or the weights were refreshed meanwhile.
            StageFailed: all tries of a request failed.
        """
        budgets = check_requests(requests, sampling, UNKNOWN_VOCABULARY, self._context_tokens)
        if self._weights is not None:
            self._weights.wake()
        return self._stream(list(zip(requests, budgets, strict=True)), sampling)

    def refresh(self, policy_step: int, weights: Mapping[str, Tensor] | None = None) -> None:
        """Load new weights into the server and drop all cached keys and values.

        Raises:
            BadInput: the server does not accept weights, or `weights` is None.
            BadCheckpoint: names or shapes of another model.
            StageFailed: the update failed on the server.
        """
        if self._weights is None:
            raise BadInput(
                f"{self._server.url}: expected an engine that accepts new weights, got engine 'openai', which only "
                "samples and evaluates; train with 'hf', 'vllm' or 'vllm-http'"
            )
        self._weights.send(weights, policy_step)
        self._policy_step = policy_step

    def sleep(self) -> None:
        """Free the server's GPU memory for the trainer until the next refresh, if the settings ask for it."""
        if self._weights is not None:
            self._weights.sleep()

    def close(self) -> None:
        """Close the connections; the server continues to run."""
        if self._weights is not None:
            self._weights.close()
            self._weights = None
        for thread in self._in_flight:
            thread.join(CLOSING_S)
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find_model(self) -> tuple[str, int | None, str]:
        try:
            listed = self._client.get("/v1/models")["data"]
        except (RequestRejected, *CONNECTION_ERRORS, ValueError, KeyError, TypeError) as error:
            self._client.close()
            raise BadSetting(
                f"generator.url: expected an OpenAI-compatible server at {self._server.url!r}, got {error!r}; start "
                "it or correct the address"
            ) from error
        names = {model.get("id"): model.get("max_model_len") for model in listed}
        name = self._server.model or next(iter(names), None)
        if name not in names:
            self._client.close()
            raise BadSetting(
                f"generator.served_model: expected one of {', '.join(map(str, names)) or 'no model'} at "
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

        def send_requests() -> None:
            while not stop.is_set():
                try:
                    request, budget = todo.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put((request, self._complete(request, budget, sampling)))
                except (BadInput, StageFailed) as error:
                    done.put(error)
                    return

        num_threads = min(len(waiting), self._server.max_connections)
        threads = [threading.Thread(target=send_requests, daemon=True) for _ in range(num_threads)]
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
                # Convert here: an exception in a thread would be lost and block this loop.
                yield self._rollout(*found, sampling)
        finally:
            stop.set()
            self._in_flight = [thread for thread in (*self._in_flight, *threads) if thread.is_alive()]

    def _complete(self, request: Request, budget: int, sampling: Sampling) -> Any:
        where = request.label
        body = _body(request, budget, sampling, self._model)
        try:
            return self._client.post("/v1/completions", body, tries=1 + self._server.max_retries)
        except RequestRejected as error:
            raise BadInput(f"{where}: {self._server.url} rejected it: {error}") from error
        except CONNECTION_ERRORS as error:
            raise StageFailed(
                f"{where}: expected an answer from {self._server.url} in {1 + self._server.max_retries} tries, got "
                f"{error!r}; start the server again and run the same command: finished rollouts are kept"
            ) from error

    def _rollout(self, request: Request, answer: Any, sampling: Sampling) -> Rollout:
        where = request.label
        try:
            choice = msgspec.convert(answer, _Answer).choices[0]
        except (msgspec.ValidationError, IndexError) as error:
            raise StageFailed(
                f"{where}: expected an answer in the format of the completions API from {self._server.url}, got "
                f"{str(answer)[:80]!r} ({error}); check the server's log and run the same command again"
            ) from error
        ids, logprobs = choice.token_ids, choice.logprobs and choice.logprobs.token_logprobs
        if not ids or logprobs is None:
            missing = " and ".join(n for n, value in (("token_ids", ids), ("logprobs", logprobs)) if not value)
            raise BadInput(
                f"{where}: expected token_ids and logprobs in the answer of {self._server.url}, got no {missing}; use "
                "a server that returns both, such as vLLM"
            )
        reason = choice.finish_reason
        if reason not in ("stop", "length"):
            raise StageFailed(
                f"{where}: expected finish reason 'stop' or 'length' from {self._server.url}, got {reason!r}; run the "
                "same command again"
            )
        end = StopStrings(self._tokenizer, sampling.stop).find_end(ids)
        if end is not None:
            ids, logprobs, reason = ids[:end], logprobs[:end], "stop"
        elif sampling.stop and reason == "stop" and ids[-1] not in sampling.stop_token_ids:
            raise BadInput(
                f"{where}: expected {self._server.url} to return the tokens of the stop string, got ids without any of "
                "generator.stop; use a server that keeps them, such as vLLM, or stop_token_ids"
            )
        text = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return request.rollout(ids, logprobs, FinishReason(reason), text, self._policy_step)


def _body(request: Request, budget: int, sampling: Sampling, model: str) -> dict[str, Any]:
    """Return the complete request: a server fills omitted parameters from the model's generation_config."""
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
