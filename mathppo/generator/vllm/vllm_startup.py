"""Import of vLLM with its environment variables, which it reads only at import; and isolation of its side effects.

Measured with vLLM 0.32.
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from mathppo.errors import BadSetting
from mathppo.generator.vllm.vllm_memory import unavailable_reason


def import_vllm(*, own_process: bool) -> Any:
    """Import vLLM and return the module.

    Args:
        own_process: run engines that start afterwards in separate processes.

    Raises:
        BadSetting: vLLM is missing or cannot be imported.
    """
    reason = unavailable_reason()
    if reason:
        raise BadSetting(f"generator.engine: expected vLLM for engine 'vllm': {reason}; or use engine 'hf'")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if own_process else "0"
    for name, value in (("VLLM_LOGGING_LEVEL", "ERROR"), ("VLLM_NO_USAGE_STATS", "1")):
        os.environ.setdefault(name, value)
    if not torch.cuda.is_available():
        # The first logprobs compile one small function, which takes up to 20 s and brings nothing on a CPU.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        torch._dynamo.config.disable = True
    elif own_process:
        # Handles of the trainer's GPU memory are sent pickled; the engine receives them only from its parent process.
        os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    try:
        import vllm  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        raise BadSetting(
            f"generator.engine: expected an importable vLLM, got {reason}; on a CPU "
            "remove the CUDA builds of torchvision, torchaudio and torchcodec, as scripts/install_vllm_cpu.sh does"
        ) from error
    return vllm


def version() -> str:
    """Return the version of vLLM, which takes seconds to import.

    Raises:
        BadSetting: vLLM is missing or cannot be imported.
    """
    return str(import_vllm(own_process=False).__version__)


def engine_died() -> tuple[type[BaseException]]:
    """Return the exceptions that vLLM raises after its engine died, for an `except` clause."""
    from vllm.v1.engine.exceptions import EngineDeadError  # pyright: ignore[reportMissingImports]

    return (EngineDeadError,)


@contextmanager
def undisturbed_random_numbers() -> Iterator[None]:
    """Restore the global random states on exit: starting vLLM seeds all of them."""
    with torch.random.fork_rng():
        python, legacy = random.getstate(), np.random.get_state()
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)
