"""Embedded engine against the models: logprobs, independence of the batch, distributions."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from tiny_lms import BUILDERS, CONTEXT, VOCAB_SIZE, IdsTokenizer, build

from mathppo.generator.base import Request, Sampling
from mathppo.generator.hf.hf_generator import HFGenerator
from mathppo.records import Rollout

pytestmark = pytest.mark.filterwarnings("ignore:.*`generation_config`.*")


def mixed_requests(count: int, *, max_prompt: int = 12, seed: int = 0) -> list[Request]:
    """Build requests with prompts of 1 to `max_prompt` tokens, some of them shared."""
    rng = random.Random(seed)
    prompts = [
        tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, max_prompt))) for _ in range(count - count // 4)
    ]
    prompts += prompts[: count // 4]
    return [
        Request(problem_id=f"p{i}", sample_index=i % 3, prompt_ids=prompt, seed=rng.randrange(2**63))
        for i, prompt in enumerate(prompts)
    ]


def sample(model: Any, requests: list[Request], sampling: Sampling, **options: Any) -> dict[str, Rollout]:
    rollouts = list(HFGenerator(model, IdsTokenizer(), **options).generate(requests, sampling))
    assert sorted(r.problem_id for r in rollouts) == sorted(r.problem_id for r in requests)
    return {r.problem_id: r for r in rollouts}


def teacher_forced(model: Any, rollout: Rollout, temperature: float = 1.0) -> torch.Tensor:
    """Return log-probabilities [T, V] from a full forward pass of the unpadded sequence."""
    with torch.no_grad():
        logits = model(torch.tensor([rollout.prompt_ids + rollout.completion_ids])).logits[0].double()
    return torch.log_softmax(logits[len(rollout.prompt_ids) - 1 : -1] / temperature, dim=-1)


def assert_same(got: dict[str, Rollout], expected: dict[str, Rollout]) -> None:
    for problem_id, rollout in expected.items():
        other = got[problem_id]
        assert other.completion_ids == rollout.completion_ids
        assert other.behaviour_logprobs == pytest.approx(rollout.behaviour_logprobs, abs=1e-5)
        assert other.finish_reason == rollout.finish_reason


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_match_a_full_forward_pass(name: str, temperature: float) -> None:
    model = build(name)
    sampling = Sampling(max_new_tokens=14, stop_token_ids=(1, 2), temperature=temperature)
    rollouts = sample(model, mixed_requests(24), sampling, max_batch_size=9).values()
    assert {r.terminated for r in rollouts} == {True, False}
    for rollout in rollouts:
        full = teacher_forced(model, rollout, temperature)
        own = full.gather(1, torch.tensor(rollout.completion_ids)[:, None])[:, 0]
        assert rollout.behaviour_logprobs == pytest.approx(own.tolist(), abs=1e-5)


@pytest.mark.parametrize("name", BUILDERS)
def test_padding_changes_nothing(name: str) -> None:
    model = build(name)
    short = Request(problem_id="short", sample_index=0, prompt_ids=(5, 9, 4), seed=3)
    sampling = Sampling(max_new_tokens=5, stop_token_ids=())
    alone = sample(model, [short], sampling)["short"]
    for padding in range(1, 8):
        long = Request(problem_id="long", sample_index=0, prompt_ids=(7,) * (3 + padding), seed=4)
        assert_same(sample(model, [short, long], sampling), {"short": alone})


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("filters", [{}, {"top_k": 5, "top_p": 0.9, "temperature": 1.3}, {"temperature": 0.0}])
def test_a_completion_does_not_depend_on_its_batch(name: str, filters: dict[str, Any]) -> None:
    model = build(name)
    requests = mixed_requests(20)
    sampling = Sampling(max_new_tokens=12, stop_token_ids=(1, 2), **filters)
    together = sample(model, requests, sampling)
    assert_same(sample(model, requests, sampling), together)
    assert_same(sample(model, requests[5:9], sampling), {r.problem_id: together[r.problem_id] for r in requests[5:9]})
    shuffled = list(requests)
    for size in (1, 3, 8):
        random.Random(size).shuffle(shuffled)
        assert_same(sample(model, shuffled, sampling, max_batch_size=size), together)
    assert_same(sample(model, requests, sampling, max_batch_tokens=60), together)


def test_a_longer_budget_only_extends_a_completion() -> None:
    model, requests = build("llama"), mixed_requests(10)
    short = sample(model, requests, Sampling(max_new_tokens=4, stop_token_ids=(1,)))
    long = sample(model, requests, Sampling(max_new_tokens=12, stop_token_ids=(1,)))
    for problem_id, rollout in short.items():
        assert long[problem_id].completion_ids[:4] == rollout.completion_ids


def test_buffers_grow_and_shift_under_many_refills() -> None:
    model = build("qwen2")
    requests = mixed_requests(90, max_prompt=CONTEXT - 1)
    sampling = Sampling(max_new_tokens=40, stop_token_ids=(1,))
    together = sample(model, requests, sampling)
    for size in (2, 5, 16):
        assert_same(sample(model, requests, sampling, max_batch_size=size), together)


@pytest.mark.parametrize("name", BUILDERS)
def test_fewer_device_syncs_change_no_rollout(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator the batcher reads sampled tokens every few steps; rows continue past their stop token."""
    model, requests = build(name), mixed_requests(20)
    sampling = Sampling(max_new_tokens=13, stop_token_ids=(1, 2))
    every_step = sample(model, requests, sampling)
    monkeypatch.setattr("mathppo.generator.hf.batcher._STEPS_PER_SYNC_CPU", 4)
    assert_same(sample(model, requests, sampling), every_step)
    assert_same(sample(model, requests, sampling, max_batch_size=5), every_step)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2"])
def test_greedy_matches_model_generate(name: str) -> None:
    model = build(name)
    sampling = Sampling(max_new_tokens=16, stop_token_ids=(1,), temperature=0.0)
    for rollout in sample(model, mixed_requests(12), sampling).values():
        prompt = torch.tensor([rollout.prompt_ids])
        from transformers import GenerationConfig

        config = GenerationConfig(do_sample=False, max_new_tokens=16, eos_token_id=1, pad_token_id=0)
        expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
        assert rollout.prompt_ids + rollout.completion_ids == expected[0].tolist()
        full = teacher_forced(model, rollout)  # greedy reports temperature 1
        own = full.gather(1, torch.tensor(rollout.completion_ids)[:, None])[:, 0]
        assert rollout.behaviour_logprobs == pytest.approx(own.tolist(), abs=1e-5)


def test_generation_config_is_ignored() -> None:
    model, requests = build("llama"), mixed_requests(12)
    sampling = Sampling(max_new_tokens=12, stop_token_ids=(1,))
    neutral = sample(model, requests, sampling)
    model.generation_config.update(
        repetition_penalty=1.9, temperature=0.1, top_k=1, top_p=0.1, min_new_tokens=9, eos_token_id=3, max_length=5
    )
    model.generation_config.suppress_tokens = list(range(5, 20))
    assert_same(sample(model, requests, sampling), neutral)


def test_filters_renormalise_on_the_kept_tokens() -> None:
    model = build("llama")
    sampling = Sampling(max_new_tokens=10, stop_token_ids=(), temperature=0.8, top_k=6, top_p=0.7)
    for rollout in sample(model, mixed_requests(16), sampling).values():
        for row, token, logprob in zip(
            teacher_forced(model, rollout, 0.8).exp(), rollout.completion_ids, rollout.behaviour_logprobs, strict=True
        ):
            probs, order = row.sort(descending=True)
            probs = probs[:6] / probs[:6].sum()
            kept = probs[probs.cumsum(0) - probs < 0.7]
            rank = order.tolist().index(token)
            assert rank < len(kept)
            assert logprob == pytest.approx((kept[rank] / kept.sum()).log().item(), abs=1e-4)


def test_samples_of_one_prompt_follow_the_model_distribution() -> None:
    model, count = build("llama", seed=2), 6000
    requests = [Request(problem_id="p", sample_index=i, prompt_ids=(3, 8, 6), seed=i) for i in range(count)]
    sampling = Sampling(max_new_tokens=2, stop_token_ids=(), temperature=1.5)
    rollouts = list(HFGenerator(model, IdsTokenizer(), max_batch_size=1500).generate(requests, sampling))
    first = torch.tensor([r.completion_ids[0] for r in rollouts]).bincount(minlength=VOCAB_SIZE).numpy()
    expected = teacher_forced(model, rollouts[0], 1.5)[0].exp().numpy()
    assert _fits(first, expected * count)
    # The second token, given the most frequent first token.
    token = int(first.argmax())
    given = [r for r in rollouts if r.completion_ids[0] == token]
    second = torch.tensor([r.completion_ids[1] for r in given]).bincount(minlength=VOCAB_SIZE).numpy()
    assert _fits(second, teacher_forced(model, given[0], 1.5)[1].exp().numpy() * len(given))


def _fits(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Run a chi-square test with all cells of expected count below 5 merged."""
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    kept = expected > 0
    from scipy import stats

    return stats.chisquare(counts[kept], expected[kept] * counts[kept].sum() / expected[kept].sum()).pvalue > 1e-3


def test_bfloat16_models_sample() -> None:
    model = build("qwen2").to(torch.bfloat16)
    rollouts = sample(model, mixed_requests(12), Sampling(max_new_tokens=8, stop_token_ids=(1,)), max_batch_size=4)
    assert all(max(r.behaviour_logprobs) <= 0 for r in rollouts.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", BUILDERS)
def test_gpu_and_cpu_sample_the_same_completions(name: str) -> None:
    model, requests = build(name), mixed_requests(40)
    sampling = Sampling(max_new_tokens=20, stop_token_ids=(1, 2), temperature=0.9)
    on_cpu = sample(model, requests, sampling)
    on_gpu = sample(model.to("cuda"), requests, sampling, max_batch_size=12)
    same = [on_gpu[problem_id].completion_ids == rollout.completion_ids for problem_id, rollout in on_cpu.items()]
    assert sum(same) >= 38  # devices round differently: a draw close to a boundary may differ
    for problem_id, rollout in on_cpu.items():
        if on_gpu[problem_id].completion_ids == rollout.completion_ids:
            assert on_gpu[problem_id].behaviour_logprobs == pytest.approx(rollout.behaviour_logprobs, abs=2e-3)
