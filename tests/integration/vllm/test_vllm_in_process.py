"""vLLM in this process against plain transformers: samples, logprobs and weight updates."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from vllm_samples import GREEDY, SAMPLING, build, by_problem, largest_gap, requests, save

from mathppo.errors import BadCheckpoint, BadInput, BadSetting
from mathppo.generator.base import Sampling
from mathppo.generator.hf.hf_generator import HFGenerator
from mathppo.generator.stops import StopStrings
from mathppo.generator.vllm.vllm_generator import VLLMGenerator
from mathppo.generator.vllm.vllm_memory import VLLMOptions
from mathppo.learner.backend.models import PreTrainedModel
from mathppo.prompts import PreTrainedTokenizerBase

TOLERANCE = 1e-4
"""Nats between vLLM in float32 and a transformers forward in float32; measured: 2e-6."""

OPTIONS = VLLMOptions(kv_cache_bytes=64 << 20, max_batch_size=64)


@pytest.fixture(scope="module")
def engine(folder: Path, tokenizer: PreTrainedTokenizerBase) -> Iterator[VLLMGenerator]:
    state = torch.random.get_rng_state()
    with VLLMGenerator(folder, tokenizer, policy_step=4, options=OPTIONS) as opened:
        assert torch.equal(state, torch.random.get_rng_state()), "starting vLLM moved the global generator"
        yield opened


@pytest.fixture(autouse=True)
def first_weights(engine: VLLMGenerator, policy: PreTrainedModel) -> None:
    engine.refresh(4, policy.state_dict())


def test_logprobs_match_the_sampling_temperature(engine: VLLMGenerator, policy: PreTrainedModel) -> None:
    rollouts = list(engine.generate(requests(32), SAMPLING))
    assert len(rollouts) == 32
    assert largest_gap(rollouts, policy, SAMPLING.temperature) < TOLERANCE
    assert {rollout.policy_step for rollout in rollouts} == {4}


def test_the_stop_token_is_the_last_and_ends_a_completion(engine: VLLMGenerator) -> None:
    rollouts = list(engine.generate(requests(32), SAMPLING))
    assert {rollout.terminated for rollout in rollouts} == {True, False}
    for rollout in rollouts:
        *before, last = rollout.completion_ids
        assert not set(before) & {2, 3}
        assert (last in (2, 3)) == rollout.terminated
        assert rollout.terminated or len(rollout.completion_ids) == SAMPLING.max_new_tokens


def test_an_eos_token_outside_stop_token_ids_does_not_stop(engine: VLLMGenerator) -> None:
    sampling = Sampling(max_new_tokens=64, stop_token_ids=(), temperature=1.5)
    rollouts = list(engine.generate(requests(16), sampling))
    assert all(rollout.truncated and len(rollout.completion_ids) == 64 for rollout in rollouts)
    assert any(2 in rollout.completion_ids for rollout in rollouts)


def test_stop_strings_match_the_embedded_engine(
    engine: VLLMGenerator, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    asked = requests(48)
    free = Sampling(max_new_tokens=24, stop_token_ids=(2,), temperature=0.0)
    texts = by_problem(engine.generate(asked, free))
    bound = msgspec.structs.replace(free, stop=(texts["p0"].completion[5:8], texts["p1"].completion[9:12]))
    ours = by_problem(engine.generate(asked, bound))
    theirs = by_problem(HFGenerator(policy, tokenizer).generate(asked, bound))
    same = [name for name in ours if ours[name].completion_ids == theirs[name].completion_ids]
    assert len(same) >= 0.95 * len(asked)
    assert all(ours[name].finish_reason == theirs[name].finish_reason for name in same)
    assert ours["p0"].terminated
    assert ours["p1"].terminated
    assert any(text in ours["p0"].completion for text in bound.stop)
    assert largest_gap(list(ours.values()), policy, 1.0) < TOLERANCE
    assert not engine.llm.llm_engine.has_unfinished_requests()
    # Seeded samples are the same up to the stop string.
    free, bound = (msgspec.structs.replace(sampling, temperature=0.7) for sampling in (free, bound))
    whole = by_problem(engine.generate(asked, free))
    for name, rollout in by_problem(engine.generate(asked, bound)).items():
        cut = StopStrings(tokenizer, bound.stop).find_end(whole[name].completion_ids)
        assert rollout.completion_ids == whole[name].completion_ids[:cut]
        assert rollout.terminated == (cut is not None or whole[name].terminated)


def test_greedy_completions_match_the_embedded_engine(
    engine: VLLMGenerator, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    asked = requests(64)
    ours = by_problem(engine.generate(asked, GREEDY))
    theirs = by_problem(HFGenerator(policy, tokenizer).generate(asked, GREEDY))
    same = [name for name in ours if ours[name].completion_ids == theirs[name].completion_ids]
    assert len(same) >= 0.95 * len(asked)
    assert {ours[name].completion for name in same} == {theirs[name].completion for name in same}
    assert largest_gap(list(ours.values()), policy, 1.0) < TOLERANCE


def test_a_completion_does_not_depend_on_its_batch(engine: VLLMGenerator) -> None:
    asked = requests(24)
    together = by_problem(engine.generate(asked, SAMPLING))
    apart = by_problem(engine.generate(asked[::5], SAMPLING))
    assert all(together[name].completion_ids == apart[name].completion_ids for name in apart)


def test_samples_of_one_prompt_depend_only_on_their_seeds(engine: VLLMGenerator) -> None:
    prompt = requests(1)[0].prompt_ids
    asked = [type(r)(problem_id="p", sample_index=i, prompt_ids=prompt, seed=r.seed) for i, r in enumerate(requests(8))]
    first, second = ({r.sample_index: r.completion_ids for r in engine.generate(asked, SAMPLING)} for _ in range(2))
    assert first == second
    assert len({tuple(ids) for ids in first.values()}) > 4


def test_the_context_limit_truncates(engine: VLLMGenerator) -> None:
    sampling = Sampling(max_new_tokens=24, stop_token_ids=())
    (rollout,) = engine.generate(requests(1, length=315), sampling)
    assert rollout.truncated
    assert len(rollout.completion_ids) == 320 - 316


def test_filtered_logprobs_are_renormalised(engine: VLLMGenerator) -> None:
    rollouts = list(engine.generate(requests(8), Sampling(max_new_tokens=8, stop_token_ids=(), top_k=1)))
    assert {x for rollout in rollouts for x in rollout.behaviour_logprobs} == {0.0}


def test_ten_refreshes_match_a_fresh_engine(
    engine: VLLMGenerator, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    asked = requests(16) + [
        type(r)(problem_id=f"long{r.problem_id}", sample_index=0, prompt_ids=r.prompt_ids, seed=r.seed)
        for r in requests(8, length=280)
    ]
    last = None
    for seed in range(1, 11):
        last = build(seed)
        engine.refresh(seed, last.state_dict())
        rollouts = list(engine.generate(asked, SAMPLING))  # fills the prefix cache with this seed's keys
        assert largest_gap(rollouts, last, SAMPLING.temperature) < TOLERANCE, f"after refresh {seed}"
    assert last is not None
    refreshed = by_problem(engine.generate(asked, SAMPLING))
    engine._discard()  # only one engine per process
    try:
        with VLLMGenerator(save(last, tokenizer, tmp_path), tokenizer, policy_step=10, options=OPTIONS) as fresh:
            expected = by_problem(fresh.generate(asked, SAMPLING))
    finally:
        engine._started()
    assert refreshed == expected


def test_weights_of_another_model_are_rejected_and_the_engine_still_works(
    engine: VLLMGenerator, policy: PreTrainedModel
) -> None:
    weights = policy.state_dict()
    headless = {name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}
    with pytest.raises(BadCheckpoint, match=r"no lm_head\.weight"):
        engine.refresh(5, headless)
    with pytest.raises(BadCheckpoint, match="unknown other"):
        engine.refresh(5, weights | {"other": torch.zeros(1)})
    with pytest.raises(BadCheckpoint, match=r"of shape \(3,\) instead of"):
        engine.refresh(5, weights | {"model.norm.weight": torch.zeros(3)})
    with pytest.raises(BadInput, match="expected the policy's weights, got none"):
        engine.refresh(5)
    assert largest_gap(list(engine.generate(requests(4), SAMPLING)), policy, SAMPLING.temperature) < TOLERANCE


def test_finished_completions_are_yielded_while_others_are_sampled(engine: VLLMGenerator) -> None:
    sampling = Sampling(max_new_tokens=200, stop_token_ids=(2, 3), temperature=0.7)
    stream = engine.generate(requests(32), sampling)
    next(stream)
    assert engine.llm.llm_engine.has_unfinished_requests()
    with pytest.raises(BadInput, match="one iterator at a time"):
        next(engine.generate(requests(1), sampling))
    stream.close()  # type: ignore[attr-defined]
    assert not engine.llm.llm_engine.has_unfinished_requests()
    assert len(list(engine.generate(requests(4), SAMPLING))) == 4


def test_bad_requests_are_rejected_before_sampling(engine: VLLMGenerator) -> None:
    bad = requests(1)[0]
    for prompt, message in (
        ((), "at least one prompt id"),
        ((1, 99), "prompt ids in 0..35, got 99"),
        ((1,) * 320, "a prompt of at most 319 tokens"),
    ):
        request = type(bad)(problem_id="bad", sample_index=0, prompt_ids=prompt, seed=1)
        with pytest.raises(BadInput, match=message):
            engine.generate([*requests(2), request], SAMPLING)
    assert len(list(engine.generate(requests(2), SAMPLING))) == 2


def test_bad_folders_and_too_little_memory_are_rejected(
    engine: VLLMGenerator, folder: Path, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    with pytest.raises(BadCheckpoint, match=r"found no config\.json"):
        VLLMGenerator(tmp_path, tokenizer)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadCheckpoint, match="found none; convert the model"):
        VLLMGenerator(tmp_path, tokenizer)
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(BadCheckpoint, match="expected a whole safetensors file"):
        VLLMGenerator(tmp_path, tokenizer)
    with pytest.raises(BadSetting, match=r"generator\.kv_cache_bytes: expected at least"):
        VLLMGenerator(folder, tokenizer, options=VLLMOptions(kv_cache_bytes=1000))
