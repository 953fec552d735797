"""Weight transfer between GPUs, checked against the classes of vLLM without a GPU.

The trainer side, its payloads and the worker side that parses them are classes of vLLM; only the functions that copy
bytes on a GPU are replaced. None of this has run on a GPU.
"""

import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm_samples import build

from mathppo.errors import BadInput
from mathppo.generator.vllm import vllm_memory, weight_update
from mathppo.generator.vllm.vllm_generator import VLLMGenerator
from mathppo.generator.vllm.vllm_memory import VLLMOptions
from mathppo.generator.vllm.weight_update import (
    FileTransfer,
    InProcessClient,
    IPCTransfer,
    NCCLTransfer,
    ReloadTransfer,
    choose_transfer,
)


def of_vllm(module: str) -> Any:
    """Return a module of vLLM; None if vLLM is missing and the tests are skipped."""
    return None if vllm_memory.unavailable_reason() else importlib.import_module(f"vllm{module}")


ipc_engine = of_vllm(".distributed.weight_transfer.ipc_engine")
nccl_engine = of_vllm(".distributed.weight_transfer.nccl_engine")
transfer = of_vllm(".distributed.weight_transfer")


@cache
def policy_state() -> dict[str, torch.Tensor]:
    return build(0).state_dict()


class Recorded:
    """An `LLM` or client that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, kwargs or (args[0] if args else None)))
            return True

        return call

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


def test_the_transfer_depends_on_process_and_device() -> None:
    cases = {
        (False, False): ReloadTransfer,
        (False, True): ReloadTransfer,
        (True, False): FileTransfer,
        (True, True): IPCTransfer,
    }
    for (own_process, on_gpu), expected in cases.items():
        weight_transfer = choose_transfer(own_process=own_process, on_gpu=on_gpu, dtype=torch.bfloat16)
        assert isinstance(weight_transfer, expected)
        weight_transfer.close()
    options = IPCTransfer(torch.bfloat16).engine_arguments()
    assert options["weight_transfer_config"].backend == "ipc"
    assert "weight_transfer_config" in _engine_arguments()


def _engine_arguments() -> dict[str, Any]:
    return dict(inspect.signature(of_vllm(".engine.arg_utils").EngineArgs).parameters)


def test_vllm_has_the_methods_that_are_called() -> None:
    assert {"enable_sleep_mode", "worker_extension_cls", "logprobs_mode"} <= _engine_arguments().keys()
    for name, arguments in {
        "sleep": ("level",),
        "wake_up": ("tags",),
        "reset_prefix_cache": (),
        "update_weight_version": ("new_version",),
        "collective_rpc": ("method", "args", "kwargs"),
        "init_weight_transfer_engine": ("request",),
        "start_weight_update": (),
        "update_weights": ("request",),
        "finish_weight_update": ("weight_version",),
    }.items():
        assert set(arguments) <= inspect.signature(getattr(of_vllm("").LLM, name)).parameters.keys(), name
    assert isinstance(InProcessClient(None), transfer.VLLMWeightSyncClient)


def test_a_broadcast_sends_metadata_then_tensors_and_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    client, sent, joined = Recorded(), [], []
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda settings: joined.append(settings) or Recorded())
    monkeypatch.setattr(weight_update, "local_address", lambda url: ("10.0.0.7", 4567))
    monkeypatch.setattr(weight_update, "server_client", lambda url: client)

    def broadcast(self: Any, source: Any, meta: Any) -> None:
        sent.append(dict(self._checked_iter(source, meta)))  # vLLM checks each tensor against the metadata

    monkeypatch.setattr(nccl_engine.NCCLTrainerWeightTransferEngine, "_broadcast", broadcast)
    weight_transfer = NCCLTransfer("http://10.0.0.1:8000", 4, torch.bfloat16)
    weight_transfer.send(policy_state(), 1)
    weight_transfer.send(policy_state(), 2)
    once = ["start_weight_update", "update_weights", "finish_weight_update"]
    assert client.names == ["init_weight_transfer_engine", *once, *once]
    (settings,) = joined
    assert (settings.master_address, settings.master_port, settings.world_size) == ("10.0.0.7", 4567, 5)

    # The worker side parses what the trainer side sends.
    worker = object.__new__(nccl_engine.NCCLWeightTransferEngine)
    start = worker.parse_init_info(client.calls[0][1])
    assert (start.rank_offset, start.world_size, start.packed) == (1, 5, True)
    assert start.packed_buffer_size_bytes == weight_update.CHUNK_BYTES
    update = worker.parse_update_info(client.calls[2][1])
    assert update.names == list(policy_state())
    assert set(update.dtype_names) == {"bfloat16"}
    assert update.shapes == [list(tensor.shape) for tensor in policy_state().values()]
    assert "lm_head.weight" in update.names
    for name, tensor in sent[0].items():
        assert torch.equal(tensor, policy_state()[name].to(torch.bfloat16))

    # A failed transfer leaves the process group; the next call reconnects.
    monkeypatch.setattr(nccl_engine.NCCLTrainerWeightTransferEngine, "_broadcast", _fails)
    with pytest.raises(RuntimeError, match="the other side left"):
        weight_transfer.send(policy_state(), 3)
    monkeypatch.setattr(nccl_engine.NCCLTrainerWeightTransferEngine, "_broadcast", broadcast)
    weight_transfer.send(policy_state(), 4)
    assert client.names.count("init_weight_transfer_engine") == 2
    weight_transfer.close()


def _fails(self: Any, source: Any, meta: Any) -> None:
    raise RuntimeError("the other side left")


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a GPU for the trainer side; handles describe the tensors."""
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="gpu-0"))
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)

    def packed(*, iterator: Any, gpu_uuid: str, post_iter_func: Any, buffer_size_bytes: int) -> Iterator[Any]:
        for name, tensor in iterator:
            size = tensor.numel() * tensor.itemsize
            assert size <= buffer_size_bytes
            yield SimpleNamespace(
                names=[name],
                dtype_names=[str(tensor.dtype).removeprefix("torch.")],
                shapes=[list(tensor.shape)],
                tensor_sizes=[size],
                ipc_handle={gpu_uuid: (torch.Tensor, tuple(tensor.shape), tensor.dtype)},
            )

    monkeypatch.setattr(ipc_engine, "packed_ipc_producer", packed)


@pytest.mark.usefixtures("one_gpu")
def test_handles_are_sent_pickled_in_chunks_without_a_lasting_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight_transfer, llm = IPCTransfer(torch.bfloat16), Recorded()
    weight_transfer.apply(llm)
    assert llm.calls == []  # nothing is staged: the weights of the folder stay
    weight_transfer.stage(policy_state(), 1)
    weight_transfer.apply(llm)
    chunks = ["update_weights"] * len(policy_state())
    assert llm.names == ["init_weight_transfer_engine", "start_weight_update", *chunks, "finish_weight_update"]
    again = Recorded()
    weight_transfer.apply(again)
    assert again.names == llm.names

    worker = object.__new__(ipc_engine.IPCWeightTransferEngine)
    assert worker.parse_init_info(llm.calls[0][1]["init_info"]).packed
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    names = []
    for _, request in llm.calls[2:-1]:
        update = worker.parse_update_info(request["update_info"])
        assert update.ipc_handles["gpu-0"][1:] == (tuple(update.shapes[0]), torch.bfloat16)
        assert update.tensor_sizes == [2 * policy_state()[update.names[0]].numel()]
        names += update.names
    assert names == list(policy_state())
    # vLLM's HTTP client sends the same format.
    posted: list[tuple[str, Any]] = []
    monkeypatch.setattr(
        transfer.HTTPVLLMWeightSyncClient, "_post", lambda self, path, json=None: posted.append((path, json))
    )
    weight_transfer.send(transfer.HTTPVLLMWeightSyncClient("http://127.0.0.1:8000"))
    assert [path for path, _ in posted] == llm.names
    assert posted[2][1]["update_info"]["ipc_handles_pickled"] == llm.calls[2][1]["update_info"]["ipc_handles_pickled"]


def test_a_sleeping_engine_wakes_in_two_steps_around_a_weight_update() -> None:
    engine = object.__new__(VLLMGenerator)
    llm = Recorded()
    engine._llm, engine._on_gpu, engine._asleep, engine._policy_step = llm, True, False, 3
    engine._options, engine._transfer = VLLMOptions(sleep=2), ReloadTransfer()
    engine._transfer.stage(policy_state(), 3)
    engine.sleep()
    engine.sleep()
    assert llm.calls == [("sleep", {"level": 2})]
    with pytest.raises(BadInput, match="expected a refresh after a sleep of level 2"):
        engine._started()
    engine._load()
    assert llm.calls[1:4] == [
        ("wake_up", {"tags": ["weights"]}),
        ("collective_rpc", llm.calls[2][1]),
        ("wake_up", {"tags": ["kv_cache"]}),
    ]
    assert llm.names[4:] == ["reset_prefix_cache", "update_weight_version"]
    engine._options = VLLMOptions(sleep=1)
    engine.sleep()
    assert engine._started() is llm
    assert llm.names[6:] == ["sleep", "wake_up"]
    engine._llm = None


def test_the_worker_extension_path_resolves_to_weight_reader() -> None:
    weight_transfer = FileTransfer(torch.float32)
    module, _, name = weight_transfer.engine_arguments()["worker_extension_cls"].rpartition(".")
    assert getattr(importlib.import_module(module), name) is weight_update.WeightReader
    assert isinstance(weight_transfer._file.folder, Path)
    weight_transfer.close()
