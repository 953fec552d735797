"""Packed sequences give the numbers and gradients of padded ones and do not attend to each other."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import tiny_lms
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import scored_rollout, tiny_learner, tiny_rollouts

from mathppo.batch import Batch, collate
from mathppo.config import LearnerSettings
from mathppo.errors import BadSetting
from mathppo.learner import forward
from mathppo.learner.backend import attention, models
from mathppo.learner.backend.attention import packed_attention
from mathppo.learner.backend.forward_options import ForwardOptions, choose_forward_options, packing_problem
from mathppo.learner.backend.micro_batches import MicroBatches
from mathppo.learner.backend.sharding import DistContext
from mathppo.learner.learner import Learner
from mathppo.learner.load_learner import start_critic

pytestmark = pytest.mark.gpu

PACKED = ForwardOptions(packed=True)
TAKES_POSITIONS = [name for name in tiny_lms.BUILDERS if name != "bloom"]


def batch_of(count: int = 7, seed: int = 1) -> Batch:
    return collate(tiny_rollouts(count, seed=seed, samples=4), pad_id=0)


def wider(batch: Batch, left: int, right: int) -> Batch:
    """The same rows with more padding."""

    def pad(x: torch.Tensor, first: int, last: int, value: int = 0) -> torch.Tensor:
        return torch.nn.functional.pad(x, (first, last), value=value)

    columns = {name: pad(getattr(batch, name), left, right) for name in ("attention_mask", "position_ids")}
    steps = {
        name: pad(getattr(batch, name), 0, right) for name in ("completion_mask", "loss_mask", "behaviour_logprobs")
    }
    return dataclasses.replace(batch, ids=pad(batch.ids, left, right, 9), **columns, **steps)


def gradients(learner: Learner, batch: Batch) -> dict[str, torch.Tensor]:
    learner.accumulate(learner.experience(batch), learner.count(batch), is_first=True)
    return {
        f"{name}.{key}": p.grad
        for name, model in learner.models.items()
        for key, p in model.named_parameters()
        if p.grad is not None
    }


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    assert any(float(gradient.abs().max()) > 1e-3 for gradient in first.values())
    for name, gradient in first.items():
        torch.testing.assert_close(gradient, second[name], atol=2e-6, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_example_of_the_batch_module() -> None:
    batch = collate(
        [
            scored_rollout(prompt_ids=[3, 4], completion_ids=[5, 6, 7], problem_id="q"),
            scored_rollout(prompt_ids=[3, 4], completion_ids=[5]),
        ],
        pad_id=0,
    )
    packed = batch.packed()
    assert packed.ids.tolist() == [[3, 4, 5, 6, 7, 3, 4, 5]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2]]
    assert (packed.ends.tolist(), packed.longest) == ([0, 5, 8], 5)
    assert (packed.before.tolist(), packed.last.tolist()) == ([1, 2, 3, 6], [4, 7])


@pytest.mark.parametrize("name", TAKES_POSITIONS)
def test_packed_logprobs_and_values_equal_padded_ones(name: str) -> None:
    policy, batch = tiny_lms.build(name), wider(batch_of(), 3, 2)
    assert packing_problem(policy, PACKED) == ""
    expected = forward.completion_logprobs(policy, batch, temperature=0.7)
    for options in (PACKED, ForwardOptions(packed=True, head_chunk_tokens=3)):
        found = forward.completion_logprobs(policy, batch, temperature=0.7, options=options)
        for first, second in zip(expected, found, strict=True):
            torch.testing.assert_close(
                first[batch.completion_mask], second[batch.completion_mask], atol=1e-5, rtol=1e-5
            )
    critic = models.build_critic(policy)
    torch.nn.init.normal_(models.value_head(critic).weight, generator=torch.Generator().manual_seed(1))
    values, final = forward.completion_values(critic, batch)
    packed_values, packed_final = forward.completion_values(critic, batch, options=PACKED)
    mask = batch.completion_mask
    torch.testing.assert_close(values[mask], packed_values[mask], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(final, packed_final, atol=1e-5, rtol=1e-5)
    assert policy.config._attn_implementation == ("eager" if name == "llama_eager" else "sdpa")


@pytest.mark.parametrize("tokens", [0, 1, 17, 1000])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"entropy_coef": 0.1, "value_clip": 0.1, "kl_place": "loss", "kl_coef": 0.1},
        {"shared_trunk": True, "trunk_value_gradient": 0.5},
        {"activation_checkpointing": True},
        {"algorithm": "grpo"},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_packing_changes_no_gradient(settings: dict[str, Any], tokens: int) -> None:
    batch = batch_of()
    padded = gradients(tiny_learner(packing="padded", **settings), batch)
    learner = tiny_learner(packing="packed", micro_batch_tokens=tokens, **settings)
    assert learner.options.packed
    assert_same(padded, gradients(learner, batch))


def test_row_order_and_widths_change_no_packed_gradient() -> None:
    batch = batch_of()
    expected = gradients(tiny_learner(packing="packed", micro_batch_tokens=20), batch)
    mixed = wider(batch.rows(torch.tensor([3, 0, 6, 2, 5, 1, 4])), 2, 5)
    assert_same(expected, gradients(tiny_learner(packing="packed", micro_batch_tokens=31), mixed))


def test_packed_updates_equal_padded_ones() -> None:
    rows = []
    for packing in ("padded", "packed"):
        learner = tiny_learner(packing=packing, micro_batch_tokens=24, critic_extra_epochs=1)
        rows.append(learner.update(learner.experience(batch_of(8), for_update=True), progress=0.0, seed=0))
    assert rows[0].keys() == rows[1].keys()
    assert all(rows[0][name] == pytest.approx(rows[1][name], abs=2e-4) for name in rows[0])


@pytest.mark.parametrize("name", TAKES_POSITIONS)
def test_no_token_attends_to_another_sequence(name: str) -> None:
    policy, batch = tiny_lms.build(name), batch_of()
    other = dataclasses.replace(batch, ids=batch.ids.clone())
    other.ids[3] = (other.ids[3] + 1) % 13
    before, after = (
        forward.completion_logprobs(policy, rows, temperature=1.0, options=PACKED)[0] for rows in (batch, other)
    )
    changed = (before != after).any(1)
    assert changed.tolist() == [row == 3 for row in range(batch.num_rows)]

    embedded: list[torch.Tensor] = []
    policy.get_input_embeddings().register_forward_hook(lambda *args: embedded.append(args[2]))
    found, _ = forward.completion_logprobs(policy, batch, temperature=1.0, options=PACKED)
    (pull,) = torch.autograd.grad(found[3].sum(), embedded[0])
    felt, ends = pull[0].abs().sum(1), batch.packed().ends.tolist()
    assert felt[: ends[3]].max() == felt[ends[4] :].max() == 0.0
    assert felt[ends[3] : ends[4] - 1].min() > 0.0


def test_recomputed_layers_use_packed_attention_too() -> None:
    learner = tiny_learner(packing="packed", activation_checkpointing=True)
    layer = learner.policy.base_model.layers[0].self_attn  # type: ignore[union-attr,index]
    ways: list[str] = []
    layer.register_forward_pre_hook(lambda module, _: ways.append(module.config._attn_implementation))  # type: ignore[union-attr]
    gradients(learner, batch_of())
    assert ways == [models.PACKED] * 3  # the frozen pass, forward, and again in backward
    assert learner.policy.config._attn_implementation == "sdpa"


def test_another_attention_function_raises_on_packed_sequences() -> None:
    policy, batch = tiny_lms.build("llama"), batch_of()
    plain = ForwardOptions(packed=True)
    with models.attend_packed(policy), pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "mathppo.learner.backend.forward_options.attend_packed", lambda model: pytest.MonkeyPatch.context()
        )
        policy.config._attn_implementation = "sdpa"
        with pytest.raises(RuntimeError, match="dtype"):
            forward.completion_logprobs(policy, batch, temperature=1.0, options=plain)


def test_a_model_that_does_not_support_packing_is_detected() -> None:
    policy = tiny_lms.build("bloom")
    assert packing_problem(policy, PACKED)
    with pytest.raises(BadSetting, match=r'learner\.packing: expected "auto" or "padded" with BloomForCausalLM'):
        choose_forward_options(policy, LearnerSettings(packing="packed"))


def test_a_model_that_attends_across_packed_sequences_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AttentionInterface

    policy = tiny_lms.build("llama")

    def blind(module: object, *states: torch.Tensor, cu_seq_lens_q: torch.Tensor, **more: object) -> object:
        ends = cu_seq_lens_q[[0, -1]]
        return packed_attention(module, *states, cu_seq_lens_q=ends, **more)  # type: ignore[arg-type]

    monkeypatch.setitem(AttentionInterface._global_mapping, models.PACKED, blind)
    assert "hidden states differ by" in packing_problem(policy, PACKED)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU chooses by dtype")
def test_auto_packs_on_a_cpu_with_a_token_budget_if_all_models_support_it() -> None:
    llama, bloom = tiny_lms.build("llama"), tiny_lms.build("bloom")
    assert not choose_forward_options(llama, LearnerSettings()).packed
    budget = LearnerSettings(micro_batch_tokens=64)
    assert choose_forward_options(llama, budget).packed
    assert not choose_forward_options(bloom, budget).packed
    assert not choose_forward_options(llama, budget, others=[bloom]).packed
    assert not choose_forward_options(llama, LearnerSettings(micro_batch_tokens=64, packing="padded")).packed
    with pytest.raises(BadSetting, match="with BloomForCausalLM"):
        choose_forward_options(llama, LearnerSettings(packing="packed"), others=[bloom])


def kernel(*states: torch.Tensor, scale: float, window_size: tuple[int, int]) -> torch.Tensor:
    """Reference of `varlen_attn`: states `[N, H, D]`, window of tokens to the left and right, -1 = all."""
    query, key, value, ends = states[:4]
    assert window_size[1] == 0
    mixed = torch.empty_like(query)
    for token in range(len(query)):
        start = max(end for end in ends.tolist() if end <= token)
        seen = slice(start if window_size[0] < 0 else max(start, token - window_size[0]), token + 1)
        scores = torch.einsum("thd,hd->th", key[seen], query[token] * scale).softmax(0)
        mixed[token] = torch.einsum("th,thd->hd", scores, value[seen])
    return mixed


@pytest.mark.parametrize("by_kernel", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3, 9])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_packed_attention_equals_attention_of_each_sequence(
    heads: int, window: int | None, by_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_kernel:
        from torch.nn.attention import varlen

        monkeypatch.setattr(varlen, "varlen_attn", kernel)
        monkeypatch.setattr(attention, "_attention_by_length", attention._attention_by_kernel)
    generator, lengths = torch.Generator().manual_seed(0), [3, 3, 1, 7, 3]
    query = torch.randn(1, 4, sum(lengths), 8, generator=generator)
    key, value = (torch.randn(1, heads, sum(lengths), 8, generator=generator) for _ in range(2))
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    mixed, _ = packed_attention(
        torch.nn.Identity(), query, key, value, None, cu_seq_lens_q=ends, max_length_q=7, scaling=0.3,
        sliding_window=window,
    )  # fmt: skip
    for token in range(sum(lengths)):
        start = max(end for end in ends.tolist() if end <= token)
        seen = slice(start if window is None else max(start, token - window + 1), token + 1)
        for head in range(4):
            shared = head * heads // 4
            scores = (key[0, shared, seen] @ query[0, head, token] * 0.3).softmax(0)
            torch.testing.assert_close(mixed[0, token, head], scores @ value[0, shared, seen])


def test_capped_scores_raise() -> None:
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(BadSetting, match=r"learner\.packing: expected attention without softcap, got Identity"):
        packed_attention(
            torch.nn.Identity(), x, x, x, None, cu_seq_lens_q=torch.tensor([0, 2]), max_length_q=2, softcap=50.0
        )


@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=14),
    budget=st.integers(1, 60),
    size=st.integers(1, 3),
)
def test_packed_micro_batches_are_balanced_and_within_the_budget(
    lengths: list[tuple[int, int]], budget: int, size: int
) -> None:
    batch = collate(
        [
            scored_rollout(prompt_ids=[1] * prompt, completion_ids=[6] * completion, problem_id=str(index))
            for index, (prompt, completion) in enumerate(lengths)
        ],
        pad_id=0,
    )
    split = MicroBatches(1, budget, packed=True, dist=DistContext(0, size)).split(batch)
    assert sorted(torch.cat(split).tolist()) == list(range(len(lengths)))
    tokens = [sum(sum(lengths[row]) for row in rows.tolist()) for rows in split]
    longest = max(sum(pair) for pair in lengths)
    assert max(tokens) <= max(budget, longest)
    assert len(split) % size == 0 or len(split) == len(lengths)
    assert max(tokens) - min(tokens) <= longest


needs_gpu: Callable[..., object] = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("name", ["llama", "qwen2", "mistral"])
def test_the_variable_length_kernel_gives_the_gradients_of_padded_sequences(name: str) -> None:
    policy, batch = tiny_lms.build(name), batch_of()
    found = []
    for packing in ("padded", "auto"):
        settings = LearnerSettings(packing=packing, compute_dtype="bfloat16", minibatches=1, stale_anchor="old")  # type: ignore[arg-type]
        learner = Learner(policy, start_critic(policy, settings), None, settings, temperature=1.0)
        assert learner.options.packed == (packing == "auto")
        found.append(torch.cat([gradient.flatten().cpu() for gradient in gradients(learner, batch).values()]))
        learner.optimizers.zero_grad()
    assert torch.cosine_similarity(*found, dim=0) > 0.97
