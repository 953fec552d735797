"""How new weights reach a vLLM engine: by the way that fits where it runs, always vLLM's own (M-gen-3, M-gen-5).

    engine                            way      what moves
    in this process, CPU or GPU       reload   nothing: vLLM reads the trainer's tensors where they lie
    in its own process, on a CPU      file     a safetensors file in memory, read by `WeightReader`
    in its own process, on a GPU      ipc      handles of the trainer's memory on the same GPU
    a server, trainer on a CPU        file     a safetensors file that both sides see
    a server, trainer on a GPU        nccl     a broadcast between the two GPUs
    a server on the trainer's GPU     ipc      handles, as above; only where the settings say so

The two ways between GPUs are vLLM's weight-transfer engines, whose trainer's half drives the whole exchange: start,
update, finish. They cannot be tried without a GPU; the tests hold them to the signatures of vLLM 0.32's own classes.
"""

import base64
import pickle
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file
from torch import Tensor

from mathppo.generator.weights import WeightsFile

CHUNK_BYTES = 256 << 20
"""Of a transfer between GPUs, or the largest tensor; vLLM's own 1 GiB would be taken from the trainer's memory."""


class WeightReader:
    """What vLLM's worker learns to do in a process of its own: read weights from a file."""

    def read_weights(self, path: str) -> int:
        """Load a safetensors file into the model in place; give the number of tensors."""
        weights = load_file(path)
        self.reload_weights(weights_iterator=iter(weights.items()))  # type: ignore[attr-defined]
        return len(weights)


class Handover(Protocol):
    """One way to give an engine the newest weights, again whenever it was started again."""

    def options(self) -> dict[str, Any]:
        """Give what `vllm.LLM` has to be told beforehand."""
        ...

    def take(self, weights: Mapping[str, Tensor], policy_step: int) -> None:
        """Remember the newest weights."""
        ...

    def give(self, llm: Any) -> None:
        """Have a running engine take the newest weights; those of its folder stay where none were taken."""
        ...

    def close(self) -> None:
        """Remove what was written."""
        ...


def choose_handover(*, own_process: bool, on_gpu: bool, dtype: torch.dtype) -> Handover:
    """Give the way that fits where the engine runs.

    Args:
        own_process: the engine has processes of its own.
        on_gpu: it computes on a GPU, the trainer's own.
        dtype: of its weights.
    """
    if not own_process:
        # The handle of a process's own memory cannot be opened by itself, so that IPC is no way here.
        return ByReload()
    return ByIPC(dtype) if on_gpu else ByFile(dtype)


class ByReload:
    """Within one process: vLLM reads the trainer's tensors."""

    def __init__(self) -> None:
        self._weights: Mapping[str, Tensor] = {}

    def options(self) -> dict[str, Any]:
        return {}

    def take(self, weights: Mapping[str, Tensor], policy_step: int) -> None:
        self._weights = weights

    def give(self, llm: Any) -> None:
        if self._weights:
            pairs = [(name, tensor.detach()) for name, tensor in self._weights.items()]
            llm.collective_rpc("reload_weights", kwargs={"weights_iterator": pairs})

    def close(self) -> None:
        self._weights = {}


class ByFile:
    """Through a safetensors file, which `WeightReader` loads in the engine's process."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._file, self._dtype = WeightsFile(), dtype
        self._path: Path | None = None

    def options(self) -> dict[str, Any]:
        return {"worker_extension_cls": f"{__name__}.{WeightReader.__name__}"}

    def take(self, weights: Mapping[str, Tensor], policy_step: int) -> None:
        self._path = self._file.write(weights, policy_step, self._dtype)

    def give(self, llm: Any) -> None:
        if self._path is not None:
            llm.collective_rpc("read_weights", args=(str(self._path),))

    def close(self) -> None:
        self._file.close()


class ByIPC:
    """Between two processes on one GPU: vLLM's engine opens the trainer's memory."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._source = StateSource(dtype)

    def options(self) -> dict[str, Any]:
        from vllm.config import WeightTransferConfig  # pyright: ignore[reportMissingImports]

        return {"weight_transfer_config": WeightTransferConfig(backend="ipc")}

    def take(self, weights: Mapping[str, Tensor], policy_step: int) -> None:
        self._source.weights = weights

    def give(self, llm: Any) -> None:
        if self._source.weights:
            self.send(InProcessClient(llm))

    def send(self, client: Any) -> None:
        """Have the engine behind a client of vLLM's protocol read what was taken."""
        from vllm.distributed.weight_transfer.ipc_engine import (  # pyright: ignore[reportMissingImports]
            IPCTrainerInitInfo,
        )

        # No connection outlives a transfer, so that an engine that was started again needs nothing else.
        settings = IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=self._source.chunk_bytes)
        _trainer_half(settings, client, self._source).send_weights()

    def close(self) -> None:
        self._source.weights = {}


class ByNCCL:
    """To a server on other GPUs: a broadcast in which the trainer is rank 0 and the server's workers come after it.

    Args:
        url: the server's, without /v1.
        num_workers: of the server, over all its replicas.
        dtype: that is sent.
    """

    def __init__(self, url: str, num_workers: int, dtype: torch.dtype) -> None:
        self._url, self._num_workers = url, num_workers
        self._source = StateSource(dtype)
        self._half: Any = None

    def send(self, weights: Mapping[str, Tensor], policy_step: int) -> None:
        """Broadcast weights, and return when the server uses them.

        Raises:
            OSError, RuntimeError: the server or the connection failed; the next call connects anew.
        """
        from vllm.distributed.weight_transfer.nccl_engine import (  # pyright: ignore[reportMissingImports]
            NCCLTrainerInitInfo,
        )

        self._source.weights = weights
        try:
            if self._half is None:
                address, port = own_address(self._url)
                settings = NCCLTrainerInitInfo(
                    rank=0,
                    master_address=address,
                    master_port=port,
                    world_size=1 + self._num_workers,
                    packed_buffer_size_bytes=self._source.chunk_bytes,
                )
                self._half = _trainer_half(settings, server_client(self._url), self._source)
            self._half.send_weights()
        except BaseException:
            self.close()
            raise
        finally:
            self._source.weights = {}

    def close(self) -> None:
        """Leave the broadcast's group."""
        half, self._half = self._half, None
        if half is not None:
            half.shutdown()


class StateSource:
    """A `state_dict()` as vLLM's trainer halves read it: what will come, and then what comes, in the same order.

    Written to the protocol of vLLM's `WeightSource`, which cannot be subclassed without importing vLLM.

    Args:
        dtype: of the engine; float32 masters are halved before they travel, one tensor at a time.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.weights: Mapping[str, Tensor] = {}
        self._dtype = dtype

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk: the largest tensor has to fit into it."""
        largest = max(tensor.numel() * self._sent_as(tensor).itemsize for tensor in self.weights.values())
        return max(CHUNK_BYTES, largest)

    def metadata(self) -> list[Any]:
        """Give name, dtype and shape of each tensor."""
        from vllm.distributed.weight_transfer.base import ParamMeta  # pyright: ignore[reportMissingImports]

        return [ParamMeta(name, self._sent_as(x), tuple(x.shape)) for name, x in self.weights.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.weights.items():
            yield name, tensor.detach().to(self._sent_as(tensor))

    def _sent_as(self, tensor: Tensor) -> torch.dtype:
        return self._dtype if tensor.is_floating_point() else tensor.dtype


class InProcessClient:
    """The four calls of vLLM's `VLLMWeightSyncClient`, on an `LLM` of this process whose engine has its own."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self._llm.start_weight_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # Handles are no plain values; vLLM reads them pickled, as its own client over HTTP sends them.
        handles = base64.b64encode(pickle.dumps(update_info["ipc_handles"])).decode()
        rest = {name: value for name, value in update_info.items() if name != "ipc_handles"}
        self._llm.update_weights({"update_info": rest | {"ipc_handles_pickled": handles}})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._llm.finish_weight_update(weight_version)


def server_client(url: str) -> Any:
    """Give vLLM's own client of a server's weight routes."""
    from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient  # pyright: ignore[reportMissingImports]

    return HTTPVLLMWeightSyncClient(url)


def own_address(url: str) -> tuple[str, int]:
    """Give this machine's address as a server at `url` sees it, and a port that is free there.

    Raises:
        OSError: the server cannot be reached.
    """
    host, _, port = url.partition("//")[2].partition("/")[0].rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as connection:
        address = connection.getsockname()[0]
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
        return address, server.getsockname()[1]


def _trainer_half(settings: Any, client: Any, source: StateSource) -> Any:
    """Meet the engine's half; what the two must agree on travels with it."""
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory  # pyright: ignore[reportMissingImports]

    return WeightTransferTrainerFactory.trainer_init(settings, client=client, source=source)  # type: ignore[arg-type]
