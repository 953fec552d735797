"""New weights for a vLLM server, through its own routes.

With the trainer on a CPU they go through a file that both sides see (`file`), which our extension of its workers reads:

    VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server --model FOLDER --generation-config vllm
        --logprobs-mode processed_logprobs --worker-extension-cls mathppo.generator.vllm.weight_update.WeightReader

With the trainer on a GPU, and the server on others, they are broadcast (`nccl`); its command then has, instead of the
last option, `--weight-transfer-config '{"backend": "nccl"}'`. On the trainer's own GPU it has "ipc" there, and
VLLM_ALLOW_INSECURE_SERIALIZATION=1. Development mode opens routes that anyone who reaches the server may call: a
trusted network only.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from mathppo.errors import BadInput, StageFailed
from mathppo.generator.server.http_client import LOST, TIMEOUT_S, Address, Refused
from mathppo.generator.vllm.weight_update import ByIPC, ByNCCL, server_client
from mathppo.generator.weights import WeightsFile, check_weights, expected_shapes, has_tied_head

OPTIONS = {
    "file": "--worker-extension-cls mathppo.generator.vllm.weight_update.WeightReader",
    "ipc": 'VLLM_ALLOW_INSECURE_SERIALIZATION=1 and --weight-transfer-config \'{"backend": "ipc"}\'',
    "nccl": '--weight-transfer-config \'{"backend": "nccl"}\'',
}
"""What a server needs for each way, besides development mode."""


class ServerWeights:
    """Gives one server the newest weights.

    Args:
        address: the server's.
        folder: the policy's, whose names and shapes new weights must have.
        transfer: "file", "ipc", "nccl", or "auto": by where the weights are, file from a CPU and nccl from a GPU.
        weights_folder: of the file, seen by both sides; "" = a disk in memory.
        dtype: that is sent; "auto" = float32 on a machine without a GPU, else bfloat16.
        sleep: level at which the server leaves its GPU's memory; 0 = never.
    """

    def __init__(
        self,
        address: Address,
        folder: Path,
        *,
        transfer: Literal["auto", "file", "ipc", "nccl"] = "auto",
        weights_folder: str = "",
        dtype: str = "auto",
        sleep: int = 0,
    ) -> None:
        self._address, self._folder, self._transfer = address, folder, transfer
        self._weights_folder, self._level = weights_folder, sleep
        name = ("bfloat16" if torch.cuda.is_available() else "float32") if dtype == "auto" else dtype
        self._dtype: torch.dtype = getattr(torch, name)
        self._file: WeightsFile | None = None
        self._broadcast: ByNCCL | None = None
        self._asleep = False

    def send(self, weights: Mapping[str, Tensor] | None, policy_step: int) -> None:
        """Have the server take new weights, and forget all cached keys and values.

        Raises:
            BadInput: none given.
            BadCheckpoint: names or shapes of another model; the server is as it was.
            StageFailed: the server could not.
        """
        if weights is None:
            raise BadInput(f"{self._address.url}: expected the policy's weights, got none; pass its whole state_dict()")
        check_weights(
            weights, expected_shapes(self._folder), is_tied=has_tied_head(self._folder), policy_step=policy_step
        )
        way = self._transfer
        if way == "auto":
            way = "nccl" if next(iter(weights.values())).device.type == "cuda" else "file"
        try:
            self._ask("/wake_up?tags=weights" if self._asleep else "/pause?mode=wait")
            try:
                self._send_by(way, weights, policy_step)
                if self._asleep:
                    self._ask("/wake_up?tags=kv_cache")
                    self._asleep = False
                self._ask("/reset_prefix_cache")
            except BaseException:
                # A paused server would keep whoever asks next waiting for ten minutes.
                with suppress(Refused, *LOST):
                    self._ask("/resume")
                raise
            self._ask("/resume")
        except (Refused, RuntimeError, *LOST) as error:
            raise StageFailed(
                f"{self._address.url}: expected a vLLM server that takes weights, got: {error}; start it with "
                f"VLLM_SERVER_DEV_MODE=1 and {OPTIONS[way]}, and run the same command again"
            ) from error

    def sleep(self) -> None:
        """Have the server leave its GPU's memory until the next weights, where the level says so."""
        if self._level and not self._asleep:
            self._ask_sleeper(f"/sleep?level={self._level}")
            self._asleep = True

    def wake(self) -> None:
        """Have a server that sleeps take its memory again.

        Raises:
            BadInput: it has dropped its weights.
        """
        if not self._asleep:
            return
        if self._level > 1:
            raise BadInput(
                f"{self._address.url}: expected a refresh after a sleep of level 2, which drops the weights, got "
                "requests"
            )
        self._ask_sleeper("/wake_up")
        self._asleep = False

    def close(self) -> None:
        """Remove the file of weights, and leave the broadcast."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._broadcast is not None:
            self._broadcast.close()
            self._broadcast = None

    def _send_by(self, way: str, weights: Mapping[str, Tensor], policy_step: int) -> None:
        if way == "nccl":
            if self._broadcast is None:
                num_workers = self._address.get("/get_world_size")["world_size"]
                self._broadcast = ByNCCL(self._address.url, num_workers, self._dtype)
            self._broadcast.send(weights, policy_step)
            return
        if way == "ipc":
            handles = ByIPC(self._dtype)
            handles.take(weights, policy_step)
            handles.send(server_client(self._address.url))
            return
        self._file = self._file or WeightsFile(Path(self._weights_folder) if self._weights_folder else None)
        path = self._file.write(weights, policy_step, self._dtype)
        body = {"method": "read_weights", "args": [str(path)], "timeout": TIMEOUT_S}
        self._address.post("/collective_rpc", body, tries=1)

    def _ask_sleeper(self, path: str) -> None:
        try:
            self._ask(path)
        except (Refused, *LOST) as error:
            raise StageFailed(
                f"{self._address.url}: expected a vLLM server that can sleep, got: {error}; start it with "
                "VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode, or set generator.sleep to 0"
            ) from error

    def _ask(self, path: str) -> None:
        self._address.post(path, {}, tries=1)
