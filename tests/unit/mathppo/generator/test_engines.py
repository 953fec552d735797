"""Selection of an engine by the settings, and errors if it cannot run."""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from openai_server import serve
from vllm_samples import build, save

from mathppo.config import GeneratorSettings
from mathppo.errors import BadSetting
from mathppo.generator.engines import open_engine
from mathppo.generator.hf.hf_generator import HFGenerator
from mathppo.generator.server.server_generator import ServerGenerator
from mathppo.generator.vllm import vllm_memory
from mathppo.generator.vllm.vllm_memory import VLLMOptions, cpu_cache_bytes
from mathppo.prompts import build_equation_tokenizer


@cache
def tokenizer() -> Any:
    return build_equation_tokenizer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(build(0), tokenizer(), tmp_path_factory.mktemp("policy"))


def test_the_embedded_engine_samples_from_a_module_or_a_folder(folder: Path) -> None:
    policy = build(0)
    shared = open_engine(GeneratorSettings(), folder=folder, tokenizer=tokenizer(), policy_step=2, module=policy)
    loaded = open_engine(GeneratorSettings(), folder=folder, tokenizer=tokenizer(), policy_step=2)
    assert isinstance(shared, HFGenerator)
    assert isinstance(loaded, HFGenerator)
    assert shared._open().model is policy
    assert (shared.policy_step, loaded.policy_step) == (2, 2)


def test_the_embedded_engine_loads_a_folder_on_the_given_device(folder: Path) -> None:
    settings, elsewhere = GeneratorSettings(), torch.device("meta")
    engine = open_engine(settings, folder=folder, tokenizer=tokenizer(), policy_step=0, device=elsewhere)
    assert isinstance(engine, HFGenerator)
    assert engine._open().device == elsewhere


@pytest.mark.parametrize("name", ["vllm-http", "openai"])
def test_http_engines_connect_to_their_url(folder: Path, name: str) -> None:
    with serve() as fake:
        settings = msgspec.convert({"engine": name, "url": fake.url}, GeneratorSettings)
        engine = open_engine(settings, folder=folder, tokenizer=tokenizer(), policy_step=1)
        assert isinstance(engine, ServerGenerator)
        engine.close()


@pytest.mark.skipif(not vllm_memory.unavailable_reason(), reason="vllm is installed here")
def test_the_error_for_missing_vllm_names_the_remedy(folder: Path) -> None:
    with pytest.raises(BadSetting, match=r"engine 'vllm': not installed; pip install .* or use engine 'hf'"):
        open_engine(GeneratorSettings(engine="vllm"), folder=folder, tokenizer=tokenizer(), policy_step=0)


def test_a_cpu_cache_too_small_for_the_longest_completion_is_rejected(folder: Path) -> None:
    needed = 2 * 3 * 3 * 32 * 4 * 320  # keys and values, layers, heads, head size, bytes, tokens
    assert cpu_cache_bytes(VLLMOptions(kv_cache_bytes=needed), folder, torch.float32) == needed
    assert cpu_cache_bytes(VLLMOptions(), folder, torch.float32) == 512 << 20
    with pytest.raises(BadSetting, match=rf"expected at least {needed} for one completion of 320 tokens, got"):
        cpu_cache_bytes(VLLMOptions(kv_cache_bytes=needed - 1), folder, torch.float32)
    assert cpu_cache_bytes(VLLMOptions(kv_cache_bytes=needed, context_tokens=100), folder, torch.float32) == needed
