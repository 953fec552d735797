"""Where vLLM runs and with how much memory; known without importing it."""

import importlib.util
import json
from pathlib import Path

import msgspec
import torch

from mathppo.errors import BadSetting

CPU_KV_CACHE_BYTES = 512 << 20
"""Keys and values on a CPU where nothing is set; vLLM itself would reserve 92 % of the memory."""


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where and in what form vLLM runs.

    Args:
        dtype: "float32", "bfloat16", or "auto": float32 on a CPU, bfloat16 on a GPU.
        max_batch_size: most completions in flight.
        context_tokens: longest prompt plus completion; 0 = the model's own limit.
        kv_cache_bytes: memory of keys and values; 0 = 512 MiB on a CPU, `gpu_memory_share` on a GPU.
        gpu_memory_share: of a GPU's memory for weights, keys and values.
        own_process: the engine runs in processes of its own.
        max_restarts: how often one `generate` starts a dead engine again.
        sleep: on a GPU, what leaves its memory from `sleep` to the next refresh: 0 = nothing, 1 = keys and values,
            and weights to the host, 2 = both dropped.
    """

    dtype: str = "auto"
    max_batch_size: int = 256
    context_tokens: int = 0
    kv_cache_bytes: int = 0
    gpu_memory_share: float = 0.45
    own_process: bool = False
    max_restarts: int = 2
    sleep: int = 0


def cpu_cache_bytes(place: Place, folder: Path, dtype: torch.dtype) -> int:
    """Give the size of the key-value cache on a CPU.

    Raises:
        BadSetting: it cannot hold the longest completion, which vLLM would find after half a minute.
    """
    size = place.kv_cache_bytes or CPU_KV_CACHE_BYTES
    config = json.loads((folder / "config.json").read_text("utf-8"))
    heads = config.get("num_attention_heads", 1)
    head_size = config.get("head_dim") or config.get("hidden_size", 0) // heads
    per_token = 2 * config.get("num_hidden_layers", 0) * config.get("num_key_value_heads", heads) * head_size
    longest = place.context_tokens or config.get("max_position_embeddings", 0)
    needed = per_token * dtype.itemsize * longest
    if needed > size:
        raise BadSetting(
            f"generator.kv_cache_bytes: expected at least {needed} for one completion of {longest} tokens, got {size}; "
            "raise it, or set generator.context_tokens to what prompts and completions need"
        )
    return size


def why_not() -> str:
    """Say why vLLM cannot be used here; "" where it can. It is not imported for that."""
    if importlib.util.find_spec("vllm") is None:
        return (
            "not installed; pip install 'mathppo[vllm]' for an NVIDIA GPU, or scripts/install_vllm_cpu.sh for a CPU, "
            "in an environment of its own"
        )
    return ""
