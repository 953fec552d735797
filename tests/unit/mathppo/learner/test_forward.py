"""Forward passes: chunked head, shared trunk, activation checkpointing and bfloat16 change no result."""

import pytest
import tiny_lms
import torch
from tiny_runs import tiny_learner, tiny_rollouts

from mathppo.batch import Batch, collate
from mathppo.config import LearnerSettings, ModelSettings
from mathppo.errors import BadSetting
from mathppo.learner import forward
from mathppo.learner.backend import forward_options, models
from mathppo.learner.learner import Learner
from mathppo.learner.load_learner import start_critic

pytestmark = pytest.mark.gpu

Gradients = dict[str, torch.Tensor]


def large_learner(**settings: object) -> Learner:
    """A learner whose vocabulary is large enough for chunks."""
    config = LearnerSettings(**{"minibatches": 1, **settings})  # type: ignore[arg-type]
    shape = ModelSettings(hidden_size=32, num_layers=2, num_heads=2, intermediate_size=48, initializer_range=0.3)
    policy = models.build_policy(shape, vocab_size=1100, bos_id=1, eos_id=2, pad_id=0, seed=0)
    return Learner(policy, start_critic(policy, config), None, config, temperature=0.7)


def gradients(learner: Learner, batch: Batch) -> Gradients:
    learner.accumulate(learner.experience(batch), learner.count(batch), is_first=True)
    found = {
        f"{name}.{key}": p.grad.clone()
        for name, model in learner.models.items()
        for key, p in model.named_parameters()
        if p.grad is not None
    }
    learner.optimizers.zero_grad()
    return found


def assert_same(first: Gradients, second: Gradients, tolerance: float = 2e-6) -> None:
    assert first.keys() == second.keys()
    for name, gradient in first.items():
        torch.testing.assert_close(gradient, second[name], atol=tolerance, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("shared_trunk", [False, True])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.1])
def test_chunked_head_changes_no_gradient(entropy_coef: float, shared_trunk: bool) -> None:
    batch = collate(tiny_rollouts(6), pad_id=0)
    settings = {"entropy_coef": entropy_coef, "shared_trunk": shared_trunk}
    whole, chunked = large_learner(head_chunk_tokens=0, **settings), large_learner(head_chunk_tokens=5, **settings)
    assert (whole.options.head_chunk_tokens, chunked.options.head_chunk_tokens) == (0, 5)
    assert_same(gradients(whole, batch), gradients(chunked, batch))


def test_chunked_head_never_runs_the_whole_head() -> None:
    learner, batch = large_learner(head_chunk_tokens=5), collate(tiny_rollouts(6), pad_id=0)
    learner.policy.register_forward_hook(lambda *_: pytest.fail("the whole head ran"))
    learner.update(learner.experience(batch), progress=0.0, seed=0)


@pytest.mark.parametrize("name", tiny_lms.BUILDERS)
def test_a_plain_head_gives_the_same_logprobs_in_chunks(name: str) -> None:
    policy, batch = tiny_lms.build(name), collate(tiny_rollouts(4), pad_id=0)
    assert forward_options.has_plain_head(policy)
    if name == "bloom":
        return  # takes no position ids
    chunks = forward_options.ForwardOptions(head_chunk_tokens=3)
    expected = forward.completion_logprobs(policy, batch, temperature=0.7)
    found = forward.completion_logprobs(policy, batch, temperature=0.7, options=chunks)
    for first, second in zip(expected, found, strict=True):
        torch.testing.assert_close(first[batch.completion_mask], second[batch.completion_mask], atol=1e-5, rtol=1e-5)


def granite() -> models.PreTrainedModel:
    """A model that divides its logits by a constant, in `forward`."""
    from transformers import GraniteConfig, GraniteForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GraniteForCausalLM(GraniteConfig(**tiny_lms.SHAPE, logits_scaling=4.0)).eval()


def test_a_head_that_scales_its_logits_is_detected_and_not_chunked() -> None:
    policy = granite()
    assert not forward_options.has_plain_head(policy)
    policy.config.vocab_size = 2000
    assert forward_options.choose_forward_options(policy, LearnerSettings()).head_chunk_tokens == 0
    policy.get_output_embeddings().bias = torch.nn.Parameter(torch.zeros(1))  # type: ignore[union-attr]
    assert not forward_options.has_plain_head(policy)


def test_a_shared_trunk_with_a_scaled_head_raises() -> None:
    policy, settings = granite(), LearnerSettings(shared_trunk=True)
    with pytest.raises(BadSetting, match=r"learner\.shared_trunk: expected a policy whose logits are one matrix"):
        Learner(policy, tiny_learner().models["critic"], None, settings, temperature=1.0)


def test_8_bit_moments_raise_on_several_processes() -> None:
    policy, settings = tiny_learner().policy, LearnerSettings(optimizer="adamw8bit")
    forward_options.check_models(policy, LearnerSettings(), num_ranks=2)
    forward_options.check_models(policy, settings, num_ranks=1)
    with pytest.raises(BadSetting, match=r'learner\.optimizer: expected "adamw" on 2 processes, got "adamw8bit"'):
        forward_options.check_models(policy, settings, num_ranks=2)


def test_activation_checkpointing_changes_no_gradient_and_keeps_dropout_off() -> None:
    batch = collate(tiny_rollouts(6), pad_id=0)
    plain, again = tiny_learner(), tiny_learner(activation_checkpointing=True)
    runs, layers = [], again.policy.base_model.layers  # type: ignore[union-attr]
    layers[0].input_layernorm.register_forward_hook(lambda *_: runs.append(1))  # type: ignore[index,union-attr]
    expected, found = gradients(plain, batch), gradients(again, batch)
    assert_same(expected, found, tolerance=1e-7)
    assert len(runs) == 3  # the frozen pass, forward, and again in backward
    assert not any(module.training for model in again.models.values() for module in model.modules())


def test_bfloat16_compute_keeps_float32_weights_and_moments() -> None:
    batch = collate(tiny_rollouts(8), pad_id=0)
    exact, rounded = tiny_learner(), tiny_learner(compute_dtype="bfloat16", micro_batch_size=3)
    expected, found = gradients(exact, batch), gradients(rounded, batch)
    assert {p.dtype for model in rounded.models.values() for p in model.parameters()} == {torch.float32}
    assert {gradient.dtype for gradient in found.values()} == {torch.float32}
    first, second = (torch.cat([g.flatten() for g in grads.values()]) for grads in (expected, found))
    assert torch.cosine_similarity(first, second, dim=0) > 0.97
    assert not torch.equal(first, second)
    moments = rounded.update(rounded.experience(batch), progress=0.0, seed=0)
    assert moments["num_updates_skipped"] == 0.0
    assert {t.dtype for t in rounded.optimizers.state().values()} == {torch.float32}


def test_bfloat16_weights_become_float32_masters() -> None:
    learner = tiny_learner()
    small = Learner(learner.policy.bfloat16(), None, None, LearnerSettings(algorithm="grpo"), temperature=1.0)
    assert {p.dtype for p in small.policy.parameters()} == {torch.float32}


@pytest.mark.parametrize("factor", [0.0, 0.25, 1.0])
def test_scale_gradient_leaves_the_values_unchanged(factor: float) -> None:
    x = torch.tensor([0.1, 1e8, -3.0], requires_grad=True)
    scaled = forward.scale_gradient(x, factor)
    assert torch.equal(scaled, x)
    if factor:
        scaled.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [factor] * 3
    else:
        assert not scaled.requires_grad
