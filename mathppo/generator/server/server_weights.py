"""Weight updates of a vLLM server through its HTTP routes.

With the trainer on a CPU, weights are written to a file in a shared folder (`file`), which a worker extension loads:

    VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server --model FOLDER --generation-config vllm
        --logprobs-mode processed_logprobs --worker-extension-cls mathppo.generator.vllm.weight_update.WeightReader

With the trainer on one GPU and the server on others, weights are broadcast (`nccl`): replace the last option of the
command by `--weight-transfer-config '{"backend": "nccl"}'`. On the trainer's GPU, use backend "ipc" and set
VLLM_ALLOW_INSECURE_SERIALIZATION=1. Development mode enables routes that any client can call without authentication;
use it on a trusted network only.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from mathppo.errors import BadInput, StageFailed
from mathppo.generator.server.http_client import CONNECTION_ERRORS, TIMEOUT_S, HTTPClient, RequestRejected
from mathppo.generator.vllm.weight_update import IPCTransfer, NCCLTransfer, server_client
from mathppo.generator.weights import WeightsFile, check_weights, expected_shapes, has_tied_head

OPTIONS = {
    "file": "--worker-extension-cls mathppo.generator.vllm.weight_update.WeightReader",
    "ipc": 'VLLM_ALLOW_INSECURE_SERIALIZATION=1 and --weight-transfer-config \'{"backend": "ipc"}\'',
    "nccl": '--weight-transfer-config \'{"backend": "nccl"}\'',
}
"""Server options that each transfer needs, besides development mode."""


class ServerWeights:
    """Sends weights to one server.

    Args:
        client: connection to the server.
        folder: model folder of the policy, whose names and shapes new weights must have.
        transfer: "file", "ipc", "nccl", or "auto": "file" for weights on a CPU, "nccl" for weights on a GPU.
        weights_folder: folder of the file, shared with the server; "" = shared memory.
        dtype: dtype of the sent weights; "auto" = float32 on a machine without a GPU, else bfloat16.
        sleep: sleep level of the server; 0 = never sleep.
    """

    def __init__(
        self,
        client: HTTPClient,
        folder: Path,
        *,
        transfer: Literal["auto", "file", "ipc", "nccl"] = "auto",
        weights_folder: str = "",
        dtype: str = "auto",
        sleep: int = 0,
    ) -> None:
        self._client, self._folder, self._transfer = client, folder, transfer
        self._weights_folder, self._level = weights_folder, sleep
        name = ("bfloat16" if torch.cuda.is_available() else "float32") if dtype == "auto" else dtype
        self._dtype: torch.dtype = getattr(torch, name)
        self._file: WeightsFile | None = None
        self._broadcast: NCCLTransfer | None = None
        self._asleep = False

    def send(self, weights: Mapping[str, Tensor] | None, policy_step: int) -> None:
        """Load new weights into the server and drop all cached keys and values.

        Raises:
            BadInput: `weights` is None.
            BadCheckpoint: names or shapes of another model; the server is not changed.
            StageFailed: the update failed on the server.
        """
        if weights is None:
            raise BadInput(f"{self._client.url}: expected the policy's weights, got none; pass its whole state_dict()")
        check_weights(
            weights, expected_shapes(self._folder), is_tied=has_tied_head(self._folder), policy_step=policy_step
        )
        transfer = self._transfer
        if transfer == "auto":
            transfer = "nccl" if next(iter(weights.values())).device.type == "cuda" else "file"
        try:
            self._post("/wake_up?tags=weights" if self._asleep else "/pause?mode=wait")
            try:
                self._send_by(transfer, weights, policy_step)
                if self._asleep:
                    self._post("/wake_up?tags=kv_cache")
                    self._asleep = False
                self._post("/reset_prefix_cache")
            except BaseException:
                # On a paused server the next request would wait until its time-out of ten minutes.
                with suppress(RequestRejected, *CONNECTION_ERRORS):
                    self._post("/resume")
                raise
            self._post("/resume")
        except (RequestRejected, RuntimeError, *CONNECTION_ERRORS) as error:
            raise StageFailed(
                f"{self._client.url}: expected a vLLM server that accepts weights, got: {error}; start it with "
                f"VLLM_SERVER_DEV_MODE=1 and {OPTIONS[transfer]}, and run the same command again"
            ) from error

    def sleep(self) -> None:
        """Free the server's GPU memory until the next weight update, unless the sleep level is 0."""
        if self._level and not self._asleep:
            self._post_sleep(f"/sleep?level={self._level}")
            self._asleep = True

    def wake(self) -> None:
        """Wake a sleeping server.

        Raises:
            BadInput: the server has dropped its weights.
        """
        if not self._asleep:
            return
        if self._level > 1:
            raise BadInput(
                f"{self._client.url}: expected a refresh after a sleep of level 2, which drops the weights, got "
                "requests"
            )
        self._post_sleep("/wake_up")
        self._asleep = False

    def close(self) -> None:
        """Remove the weights file and leave the broadcast."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._broadcast is not None:
            self._broadcast.close()
            self._broadcast = None

    def _send_by(self, transfer: str, weights: Mapping[str, Tensor], policy_step: int) -> None:
        if transfer == "nccl":
            if self._broadcast is None:
                num_workers = self._client.get("/get_world_size")["world_size"]
                self._broadcast = NCCLTransfer(self._client.url, num_workers, self._dtype)
            self._broadcast.send(weights, policy_step)
            return
        if transfer == "ipc":
            ipc = IPCTransfer(self._dtype)
            ipc.stage(weights, policy_step)
            ipc.send(server_client(self._client.url))
            return
        self._file = self._file or WeightsFile(Path(self._weights_folder) if self._weights_folder else None)
        path = self._file.write(weights, policy_step, self._dtype)
        body = {"method": "read_weights", "args": [str(path)], "timeout": TIMEOUT_S}
        self._client.post("/collective_rpc", body, tries=1)

    def _post_sleep(self, path: str) -> None:
        try:
            self._post(path)
        except (RequestRejected, *CONNECTION_ERRORS) as error:
            raise StageFailed(
                f"{self._client.url}: expected a vLLM server that supports sleep, got: {error}; start it with "
                "VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode, or set generator.sleep to 0"
            ) from error

    def _post(self, path: str) -> None:
        self._client.post(path, {}, tries=1)
