"""How vLLM is imported, and what it would disturb when it starts.

What it reads from the environment can be set nowhere else, and only before it is imported. Measured against vLLM 0.32.
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from mathppo.errors import BadSetting
from mathppo.generator.vllm.vllm_memory import why_not


def import_vllm(*, own_process: bool) -> Any:
    """Give the module.

    Args:
        own_process: engines that start afterwards get processes of their own.

    Raises:
        BadSetting: it is missing, or cannot be imported.
    """
    reason = why_not()
    if reason:
        raise BadSetting(f"generator.engine: expected vLLM for engine 'vllm': {reason}; or use engine 'hf'")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if own_process else "0"
    for name, value in (("VLLM_LOGGING_LEVEL", "ERROR"), ("VLLM_NO_USAGE_STATS", "1")):
        os.environ.setdefault(name, value)
    if not torch.cuda.is_available():
        # One small function is compiled at the first logprobs: up to 20 s for nothing on a CPU.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        torch._dynamo.config.disable = True
    elif own_process:
        # Handles of the trainer's GPU memory reach the engine pickled, which it reads from its own parent alone.
        os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    try:
        import vllm  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        raise BadSetting(
            f"generator.engine: expected a vLLM that can be imported, got {reason}; on a CPU "
            "remove the CUDA builds of torchvision, torchaudio and torchcodec: scripts/install_vllm_cpu.sh does"
        ) from error
    return vllm


def version() -> str:
    """Give the version of vLLM, which takes seconds to import.

    Raises:
        BadSetting: it is missing, or cannot be imported.
    """
    return str(import_vllm(own_process=False).__version__)


def engine_died() -> tuple[type[BaseException]]:
    """Give what vLLM raises where its engine is gone, for an `except`."""
    from vllm.v1.engine.exceptions import EngineDeadError  # pyright: ignore[reportMissingImports]

    return (EngineDeadError,)


@contextmanager
def undisturbed_random_numbers() -> Iterator[None]:
    """Put the global generators back as they were: starting vLLM seeds all of them."""
    with torch.random.fork_rng():
        python, legacy = random.getstate(), np.random.get_state()
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)
