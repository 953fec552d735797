"""Tests with vLLM: skipped if it is missing, an error if REQUIRE_VLLM is set."""

import os
from pathlib import Path

import pytest
import torch
from vllm_samples import build, save

from mathppo.generator.vllm import vllm_memory
from mathppo.learner.backend import models
from mathppo.learner.backend.models import PreTrainedModel
from mathppo.prompts import PreTrainedTokenizerBase, build_equation_tokenizer

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = vllm_memory.unavailable_reason()
    if reason and os.environ.get("REQUIRE_VLLM"):
        raise pytest.UsageError(f"vllm: {reason}")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # vLLM emits dozens
            if reason:
                item.add_marker(pytest.mark.skip(reason=f"vllm: {reason}"))


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    models.quiet()
    return build_equation_tokenizer()


@pytest.fixture(scope="session")
def policy() -> PreTrainedModel:
    return build(0)


@pytest.fixture(scope="session")
def folder(
    policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    state = torch.random.get_rng_state()
    path = save(policy, tokenizer, tmp_path_factory.mktemp("models") / "policy")
    assert torch.equal(state, torch.random.get_rng_state())
    return path
