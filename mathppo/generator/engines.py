"""Opens the engine that the settings name."""

from pathlib import Path
from typing import Any

import torch

from mathppo.config import GeneratorSettings
from mathppo.generator.base import Generator
from mathppo.generator.hf.hf_generator import HFGenerator
from mathppo.generator.server.server_generator import Server, ServerGenerator
from mathppo.generator.vllm.vllm_generator import VLLMGenerator, VLLMOptions


def open_engine(
    settings: GeneratorSettings,
    *,
    folder: Path,
    tokenizer: Any,
    policy_step: int,
    module: Any = None,
    device: torch.device | None = None,
) -> Generator:
    """Open an engine.

    Args:
        settings: engine and its options.
        folder: Hugging Face folder of the policy; servers load theirs when they start.
        tokenizer: tokenizer of the policy.
        policy_step: number of updates that the weights have received.
        module: the trainer's policy, which the embedded engine samples from directly; other engines are refreshed.
        device: device of the module that the embedded engine loads if `module` is None; None = CPU.

    Raises:
        BadSetting: the engine cannot run here.
        BadCheckpoint: it cannot load the folder.
    """
    if settings.engine == "hf":
        if module is None:
            return HFGenerator.from_pretrained(
                folder, device=device or "cpu", policy_step=policy_step, max_batch_size=settings.max_batch_size
            )
        return HFGenerator(module, tokenizer, policy_step=policy_step, max_batch_size=settings.max_batch_size)
    if settings.engine == "vllm":
        options = VLLMOptions(
            dtype=settings.dtype,
            max_batch_size=settings.max_batch_size,
            context_tokens=settings.context_tokens,
            kv_cache_bytes=settings.kv_cache_bytes,
            gpu_memory_share=settings.gpu_memory_share,
            own_process=settings.own_process,
            max_restarts=settings.max_restarts,
            sleep=settings.sleep,
        )
        return VLLMGenerator(folder, tokenizer, policy_step=policy_step, options=options)
    server = Server(
        url=settings.url,
        model=settings.served_model,
        max_connections=settings.max_batch_size,
        takes_weights=settings.engine == "vllm-http",
        weight_transfer=settings.weight_transfer,
        weights_folder=settings.weights_folder,
        dtype=settings.dtype,
        sleep=settings.sleep,
        max_retries=settings.max_restarts,
    )
    return ServerGenerator(server, tokenizer, policy_step=policy_step, folder=folder)
