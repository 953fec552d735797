"""Preflight: fails on missing models, devices or packages before a run writes anything.

Otherwise a mistyped model would be detected after the warm start, in a directory whose settings are fixed by then.
"""

from importlib.util import find_spec
from pathlib import Path

import torch

from mathppo.config import Config
from mathppo.errors import BadCheckpoint, BadSetting
from mathppo.generator.vllm import vllm_memory
from mathppo.learner.backend import checkpoint, models
from mathppo.prompts import special_ids


def check_start(config: Config) -> None:
    """Check that the models, engine and device that the settings name exist.

    Raises:
        BadSetting: a device, package or address that is missing, or a critic with more layers than its trunk.
        BadCheckpoint: a folder without a model, or without a tokenizer that loads.
        BadInput: a tokenizer without an end token.
    """
    check_device(config)
    _check_engine(config)
    if config.learner.has_critic and config.learner.critic_from:
        at = Path(config.learner.critic_from)
        if not any((folder / models.CONFIG).is_file() for folder in (at, at / "critic", at / "policy")):
            raise BadCheckpoint(
                f"learner.critic_from: expected a checkpoint or Hugging Face model folder, found no {models.CONFIG} "
                f"in {at}"
            )
    if config.model.path:
        folder = checkpoint.policy_folder(Path(config.model.path))
        for pattern in (models.CONFIG, "*.safetensors"):
            if not any(folder.glob(pattern)):
                raise BadCheckpoint(
                    f"model.path: expected a Hugging Face model folder with safetensors weights, found no {pattern} in "
                    f"{folder}; save the model there with `save_pretrained`"
                )
        special_ids(models.load_tokenizer(folder))
    _check_layers(config)


def _check_layers(config: Config) -> None:
    """Check that the trunk of a new critic has at least the layers that the settings keep."""
    wanted, start = config.learner.critic_num_layers, Path(config.learner.critic_from or config.model.path)
    if not (config.learner.has_critic and wanted):
        return
    found = config.model.num_layers if start == Path() else models.num_trunk_layers(start)
    if found is not None and wanted > found:
        raise BadSetting(f"learner.critic_num_layers: expected at most the {found} of its trunk, got {wanted}")


def check_device(config: Config) -> None:
    """Check that there is a GPU if the settings ask for one.

    Raises:
        BadSetting: torch finds none.
    """
    if config.learner.device == "cuda" and not torch.cuda.is_available():
        raise BadSetting(
            'learner.device: expected "auto" or "cpu" if torch finds no GPU, got "cuda"; see mathppo doctor'
        )


def _check_engine(config: Config) -> None:
    settings = config.generator
    if settings.engine == "openai":
        raise BadSetting(
            'generator.engine: expected "hf", "vllm" or "vllm-http" for training, got "openai", which takes no new '
            "weights and only samples and evaluates"
        )
    if settings.engine == "vllm-http" and not settings.url:
        raise BadSetting(
            'generator.url: expected an address such as http://127.0.0.1:8000 with generator.engine="vllm-http", got '
            "''"
        )
    reason = vllm_memory.why_not() if settings.engine == "vllm" else ""
    if reason:
        raise BadSetting(f'generator.engine: expected vLLM for "vllm": {reason}; or use "hf"')
    if config.learner.optimizer == "adamw8bit" and find_spec("bitsandbytes") is None:
        raise BadSetting(
            'learner.optimizer: expected package bitsandbytes for "adamw8bit", found none; install it or use "adamw"'
        )
