"""vLLM in a separate process that is killed: no completion is lost or changed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm_samples import SAMPLING, build, by_problem, largest_gap, requests

from mathppo.errors import StageFailed
from mathppo.generator.base import Sampling
from mathppo.generator.vllm.vllm_generator import VLLMGenerator
from mathppo.generator.vllm.vllm_memory import VLLMOptions
from mathppo.learner.backend.models import PreTrainedModel
from mathppo.prompts import PreTrainedTokenizerBase

LONG = Sampling(max_new_tokens=200, stop_token_ids=(2,), temperature=0.7)


@pytest.fixture(scope="module")
def engine(folder: Path, tokenizer: PreTrainedTokenizerBase) -> Iterator[VLLMGenerator]:
    options = VLLMOptions(own_process=True, kv_cache_bytes=64 << 20, max_batch_size=8, max_restarts=1)
    with VLLMGenerator(folder, tokenizer, options=options) as opened:
        yield opened
        segments = held_by(opened)
        assert segments
        assert all(segment.is_file() for segment in segments)
    assert not any(segment.exists() for segment in segments)


def held_by(engine: VLLMGenerator) -> list[Path]:
    """Return the shared memory segments of vLLM, which a killed process leaves behind."""
    assert engine._shm is not None
    folder = engine._shm.folder
    return [folder.parent / name for name in (folder / "segments").read_text().split()]


def kill(engine: VLLMGenerator) -> None:
    os.kill(engine.llm.llm_engine.engine_core.resources.engine_manager.processes[0].pid, signal.SIGKILL)


def test_a_killed_engine_is_restarted_with_the_newest_weights(engine: VLLMGenerator, policy: PreTrainedModel) -> None:
    other = build(5)
    engine.refresh(1, other.state_dict())
    undisturbed = by_problem(engine.generate(requests(32), LONG))
    assert largest_gap(list(undisturbed.values()), other, LONG.temperature) < 1e-4
    rollouts = []
    first = held_by(engine)
    for rollout in engine.generate(requests(32), LONG):
        rollouts.append(rollout)
        if len(rollouts) == 3:
            kill(engine)
    assert len(rollouts) == 32
    assert by_problem(rollouts).keys() == undisturbed.keys()
    assert not any(segment.exists() for segment in first)
    for name, rollout in by_problem(rollouts).items():
        assert rollout.completion_ids == undisturbed[name].completion_ids
    engine.refresh(2, policy.state_dict())
    assert largest_gap(list(engine.generate(requests(8), SAMPLING)), policy, SAMPLING.temperature) < 1e-4


@pytest.mark.slow
def test_an_engine_that_keeps_dying_fails_the_stage(engine: VLLMGenerator) -> None:
    def kill_at_each() -> None:
        for rollout in engine.generate(requests(32), LONG):
            assert rollout.completion_ids
            kill(engine)

    with pytest.raises(StageFailed, match=r"died 2 times with \d+ completions unfinished"):
        kill_at_each()
    assert len(list(engine.generate(requests(4), SAMPLING))) == 4
