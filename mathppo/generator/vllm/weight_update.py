"""Weight transfer to a vLLM engine, always through interfaces of vLLM (M-gen-3, M-gen-5).

    engine                            transfer  sent
    in this process, CPU or GPU       reload    nothing: vLLM reads the trainer's tensors
    in a separate process, on a CPU   file      a safetensors file in shared memory, loaded by `WeightReader`
    in a separate process, on a GPU   ipc       handles of the trainer's memory on the same GPU
    a server, trainer on a CPU        file      a safetensors file in a shared folder
    a server, trainer on a GPU        nccl      a broadcast between the GPUs
    a server on the trainer's GPU     ipc       handles, as above; only if the settings select it

`ipc` and `nccl` use vLLM's weight-transfer engines, whose trainer side drives the exchange: start, update, finish. They
need a GPU; without one, the tests check them against the signatures of the classes of vLLM 0.32.
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
"""Buffer size of a transfer between GPUs, raised to the largest tensor; vLLM's 1 GiB would use trainer memory."""


class WeightReader:
    """Extension of vLLM's worker that loads weights from a file."""

    def read_weights(self, path: str) -> int:
        """Load a safetensors file into the model in place and return the number of tensors."""
        weights = load_file(path)
        self.reload_weights(weights_iterator=iter(weights.items()))  # type: ignore[attr-defined]
        return len(weights)


class WeightTransfer(Protocol):
    """Sends the newest weights to an engine, and again after each restart of the engine."""

    def engine_arguments(self) -> dict[str, Any]:
        """Return the arguments of `vllm.LLM` that the transfer needs."""
        ...

    def stage(self, weights: Mapping[str, Tensor], policy_step: int) -> None:
        """Store the newest weights for the next `apply`."""
        ...

    def apply(self, llm: Any) -> None:
        """Load the staged weights into a running engine; without any, the weights of its folder stay."""
        ...

    def close(self) -> None:
        """Release the staged weights."""
        ...


def choose_transfer(*, own_process: bool, on_gpu: bool, dtype: torch.dtype) -> WeightTransfer:
    """Return the transfer for an engine of this machine.

    Args:
        own_process: the engine runs in separate processes.
        on_gpu: the engine runs on the trainer's GPU.
        dtype: dtype of its weights.
    """
    if not own_process:
        # A process cannot open an IPC handle of its memory, so `ipc` does not work here.
        return ReloadTransfer()
    return IPCTransfer(dtype) if on_gpu else FileTransfer(dtype)


class ReloadTransfer:
    """Transfer within a process: vLLM reads the trainer's tensors."""

    def __init__(self) -> None:
        self._weights: Mapping[str, Tensor] = {}

    def engine_arguments(self) -> dict[str, Any]:
        return {}

    def stage(self, weights: Mapping[str, Tensor], policy_step: int) -> None:
        self._weights = weights

    def apply(self, llm: Any) -> None:
        if self._weights:
            pairs = [(name, tensor.detach()) for name, tensor in self._weights.items()]
            llm.collective_rpc("reload_weights", kwargs={"weights_iterator": pairs})

    def close(self) -> None:
        self._weights = {}


class FileTransfer:
    """Transfer through a safetensors file, which `WeightReader` loads in the engine's process."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._file, self._dtype = WeightsFile(), dtype
        self._path: Path | None = None

    def engine_arguments(self) -> dict[str, Any]:
        return {"worker_extension_cls": f"{__name__}.{WeightReader.__name__}"}

    def stage(self, weights: Mapping[str, Tensor], policy_step: int) -> None:
        self._path = self._file.write(weights, policy_step, self._dtype)

    def apply(self, llm: Any) -> None:
        if self._path is not None:
            llm.collective_rpc("read_weights", args=(str(self._path),))

    def close(self) -> None:
        self._file.close()


class IPCTransfer:
    """Transfer between two processes on one GPU: the engine opens the trainer's memory."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._source = StateDictSource(dtype)

    def engine_arguments(self) -> dict[str, Any]:
        from vllm.config import WeightTransferConfig  # pyright: ignore[reportMissingImports]

        return {"weight_transfer_config": WeightTransferConfig(backend="ipc")}

    def stage(self, weights: Mapping[str, Tensor], policy_step: int) -> None:
        self._source.weights = weights

    def apply(self, llm: Any) -> None:
        if self._source.weights:
            self.send(InProcessClient(llm))

    def send(self, client: Any) -> None:
        """Send the staged weights through a client of vLLM's weight-sync protocol."""
        from vllm.distributed.weight_transfer.ipc_engine import (  # pyright: ignore[reportMissingImports]
            IPCTrainerInitInfo,
        )

        # Connections end with each transfer, so a restarted engine needs no other setup.
        settings = IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=self._source.chunk_bytes)
        _trainer_engine(settings, client, self._source).send_weights()

    def close(self) -> None:
        self._source.weights = {}


class NCCLTransfer:
    """Broadcast to a server on other GPUs; the trainer is rank 0, followed by the server's workers.

    Args:
        url: address of the server, without /v1.
        num_workers: number of workers of the server, over all its replicas.
        dtype: dtype of the sent weights.
    """

    def __init__(self, url: str, num_workers: int, dtype: torch.dtype) -> None:
        self._url, self._num_workers = url, num_workers
        self._source = StateDictSource(dtype)
        self._engine: Any = None

    def send(self, weights: Mapping[str, Tensor], policy_step: int) -> None:
        """Broadcast weights and return when the server has loaded them.

        Raises:
            OSError, RuntimeError: the server or the connection failed; the next call reconnects.
        """
        from vllm.distributed.weight_transfer.nccl_engine import (  # pyright: ignore[reportMissingImports]
            NCCLTrainerInitInfo,
        )

        self._source.weights = weights
        try:
            if self._engine is None:
                address, port = local_address(self._url)
                settings = NCCLTrainerInitInfo(
                    rank=0,
                    master_address=address,
                    master_port=port,
                    world_size=1 + self._num_workers,
                    packed_buffer_size_bytes=self._source.chunk_bytes,
                )
                self._engine = _trainer_engine(settings, server_client(self._url), self._source)
            self._engine.send_weights()
        except BaseException:
            self.close()
            raise
        finally:
            self._source.weights = {}

    def close(self) -> None:
        """Leave the process group of the broadcast."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()


class StateDictSource:
    """A `state_dict()` for vLLM's trainer side: first the metadata, then the tensors in the same order.

    Implements the protocol `WeightSource` of vLLM, which cannot be subclassed without importing vLLM.

    Args:
        dtype: dtype of the engine; float32 weights are converted before they are sent, one tensor at a time.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.weights: Mapping[str, Tensor] = {}
        self._dtype = dtype

    @property
    def chunk_bytes(self) -> int:
        """Buffer size in bytes; the largest tensor must fit."""
        largest = max(tensor.numel() * self._dtype_of(tensor).itemsize for tensor in self.weights.values())
        return max(CHUNK_BYTES, largest)

    def metadata(self) -> list[Any]:
        """Return name, dtype and shape of each tensor."""
        from vllm.distributed.weight_transfer.base import ParamMeta  # pyright: ignore[reportMissingImports]

        return [ParamMeta(name, self._dtype_of(x), tuple(x.shape)) for name, x in self.weights.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.weights.items():
            yield name, tensor.detach().to(self._dtype_of(tensor))

    def _dtype_of(self, tensor: Tensor) -> torch.dtype:
        return self._dtype if tensor.is_floating_point() else tensor.dtype


class InProcessClient:
    """Client of vLLM's weight-sync protocol for an `LLM` whose engine runs in a separate process."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self._llm.start_weight_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # vLLM expects the handles pickled, as its HTTP client sends them.
        handles = base64.b64encode(pickle.dumps(update_info["ipc_handles"])).decode()
        rest = {name: value for name, value in update_info.items() if name != "ipc_handles"}
        self._llm.update_weights({"update_info": rest | {"ipc_handles_pickled": handles}})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._llm.finish_weight_update(weight_version)


def server_client(url: str) -> Any:
    """Return vLLM's client for the weight routes of a server."""
    from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient  # pyright: ignore[reportMissingImports]

    return HTTPVLLMWeightSyncClient(url)


def local_address(url: str) -> tuple[str, int]:
    """Return the address of this machine as seen by the server at `url`, and a free port.

    Raises:
        OSError: the server cannot be reached.
    """
    host, _, port = url.partition("//")[2].partition("/")[0].rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as connection:
        address = connection.getsockname()[0]
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
        return address, server.getsockname()[1]


def _trainer_engine(settings: Any, client: Any, source: StateDictSource) -> Any:
    """Connect vLLM's trainer side to the engine; the settings are sent with the connection."""
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory  # pyright: ignore[reportMissingImports]

    return WeightTransferTrainerFactory.trainer_init(settings, client=client, source=source)  # type: ignore[arg-type]
