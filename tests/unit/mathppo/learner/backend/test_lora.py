"""LoRA: only factors and the critic's head are trained, saved folders are plain, runs resume bit for bit."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import old_logprobs, tiny_learner, tiny_rollouts

from mathppo.batch import collate
from mathppo.config import LearnerSettings
from mathppo.errors import BadCheckpoint, BadSetting
from mathppo.learner.backend import checkpoint, lora, models
from mathppo.learner.learner import Learner
from mathppo.learner.load_learner import load_learner

pytestmark = pytest.mark.gpu

needs_peft = pytest.mark.skipif(not importlib.util.find_spec("peft"), reason="needs the package peft")

LORA = {"lora_rank": 4, "lr": 1e-2, "critic_lr": 1e-2}


class NoTokenizer:
    def save_pretrained(self, save_directory: str | os.PathLike[str], /) -> None:
        return None


def saved(learner: Learner, path: Path) -> Path:
    learner.save(path, NoTokenizer())
    return path


def loaded(path: Path, settings: LearnerSettings) -> Learner:
    return load_learner(path, settings, reference=path / "policy", temperature=1.0)


def trained(learner: Learner, steps: range) -> Learner:
    for step in steps:
        batch = collate(tiny_rollouts(8, seed=step), pad_id=0)
        learner.update(learner.experience(batch), progress=0.0, seed=step)
    return learner


@needs_peft
def test_initial_factors_change_nothing_and_only_they_and_the_value_head_are_trained() -> None:
    batch, plain, learner = collate(tiny_rollouts(8), pad_id=0), tiny_learner(), tiny_learner(**LORA)
    first = learner.experience(batch)
    assert torch.equal(old_logprobs(first), old_logprobs(plain.experience(batch)))
    assert torch.equal(first.values, plain.experience(batch).values)
    before = {
        f"{name}.{key}": p.detach().clone() for name, m in learner.models.items() for key, p in m.named_parameters()
    }
    trained(learner, range(2))
    for name, model in learner.models.items():
        for key, parameter in model.named_parameters():
            moved = not torch.equal(parameter, before[f"{name}.{key}"])
            assert moved == ("lora_" in key or key.startswith("score.")), key
    layers = lora.lora_layers(learner.policy)
    assert len(layers) == 2 * 7  # four of attention, three of the feed-forward layer
    assert not any(module.training for model in learner.models.values() for module in model.modules())


@needs_peft
def test_initial_factors_depend_on_the_seed_and_leave_the_global_generator_unchanged() -> None:
    first = tiny_learner(**LORA).policy.state_dict()
    other = Learner(tiny_learner().policy, None, None, LearnerSettings(**LORA), temperature=1.0, seed=1)  # type: ignore[arg-type]
    differing = {name for name, tensor in other.policy.state_dict().items() if not torch.equal(tensor, first[name])}
    assert differing == {name for name in first if ".lora_A." in name}
    with torch.random.fork_rng():
        torch.manual_seed(99)
        before = torch.get_rng_state()
        second = tiny_learner(**LORA).policy.state_dict()
        assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)


@needs_peft
def test_the_product_of_factors_is_scaled_by_alpha_over_rank() -> None:
    learner = trained(tiny_learner(**LORA, lora_alpha=6.0), range(2))
    name, layer = next(iter(lora.lora_layers(learner.policy).items()))
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    assert (tuple(down.shape), tuple(up.shape)) == ((4, 32), (32, 4))
    expected = layer.base_layer.weight + (6.0 / 4) * up @ down
    torch.testing.assert_close(lora.merged_state(learner.policy)[f"{name}.weight"], expected.detach())
    assert up.abs().max() > 0


@needs_peft
@pytest.mark.parametrize("shared_trunk", [False, True])
def test_saved_folders_are_plain_and_equivalent(tmp_path: Path, shared_trunk: bool) -> None:
    learner = trained(tiny_learner(**LORA, shared_trunk=shared_trunk), range(2))
    path, batch = saved(learner, tmp_path / "1"), collate(tiny_rollouts(6), pad_id=0)
    for name in ("policy", "critic"):
        plain = {key for key, _ in tiny_learner().models[name].named_parameters()}
        assert load_file(path / name / "model.safetensors").keys() == plain
    # A separate engine gets every name of a plain policy, including the tied head.
    assert lora.merged_state(learner.policy).keys() == tiny_learner().policy.state_dict().keys()
    policy, critic = models.load_policy(path / "policy"), models.load_critic(path / "critic")
    others = Learner(policy, critic, None, LearnerSettings(), temperature=1.0).experience(batch)
    own = learner.experience(batch)
    for mine, theirs in ((old_logprobs(own), old_logprobs(others)), (own.values, others.values)):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)
    assert not torch.allclose(old_logprobs(own), old_logprobs(tiny_learner().experience(batch)), atol=1e-2)
    assert policy.get_output_embeddings().weight is policy.get_input_embeddings().weight  # type: ignore[union-attr]


@needs_peft
@pytest.mark.parametrize("shared_trunk", [False, True])
def test_resuming_after_two_steps_equals_four_steps_bit_for_bit(tmp_path: Path, shared_trunk: bool) -> None:
    straight, halfway = (tiny_learner(**LORA, shared_trunk=shared_trunk, micro_batch_size=3) for _ in range(2))
    first = saved(trained(straight, range(4)), tmp_path / "straight")
    middle = saved(trained(halfway, range(2)), tmp_path / "halfway")
    second = saved(trained(loaded(middle, straight.settings), range(2, 4)), tmp_path / "resumed")
    assert checkpoint.verify_checkpoint(first) == checkpoint.verify_checkpoint(second)
    assert checkpoint.verify_checkpoint(first).sha256.keys() >= {checkpoint.ADAPTERS, checkpoint.OPTIMIZERS}
    assert checkpoint.verify_checkpoint(first) != checkpoint.verify_checkpoint(middle)


@needs_peft
def test_a_checkpoint_with_another_lora_rank_or_none_raises(tmp_path: Path) -> None:
    path = saved(trained(tiny_learner(**LORA), range(1)), tmp_path / "1")
    whole = saved(trained(tiny_learner(), range(1)), tmp_path / "2")
    for folder, rank in ((path, 0), (path, 2), (whole, 4)):
        with pytest.raises(BadCheckpoint, match=r"expected the \d+ tensors of learner\.lora_rank in these models, got"):
            loaded(folder, LearnerSettings(lora_rank=rank))


@needs_peft
def test_checkpointing_and_micro_batches_change_no_gradient_of_the_factors() -> None:
    batch, found = collate(tiny_rollouts(6), pad_id=0), []
    for settings in ({}, {"activation_checkpointing": True}, {"micro_batch_size": 2}, {"micro_batch_tokens": 24}):
        learner = tiny_learner(**LORA, **settings)  # type: ignore[arg-type]
        for model in learner.models.values():
            for layer in lora.lora_layers(model).values():
                torch.nn.init.normal_(
                    layer.lora_B["default"].weight, std=0.02, generator=torch.Generator().manual_seed(1)
                )
        learner.accumulate(learner.experience(batch), learner.count(batch), is_first=True)
        trained_ones = learner.optimizers.parameters["policy"] | learner.optimizers.parameters["critic"]
        found.append({key: p.grad for key, p in trained_ones.items()})
        assert all(p.grad is None for p in learner.policy.parameters() if not p.requires_grad)
    for other in found[1:]:
        for key, gradient in found[0].items():
            torch.testing.assert_close(gradient, other[key], atol=1e-5, rtol=1e-4)


@needs_peft
def test_a_trunk_without_linear_layers_raises() -> None:
    policy = tiny_learner().policy
    policy.base_model_prefix = "nowhere"
    with pytest.raises(BadSetting, match=r"learner\.lora_rank: expected linear layers in LlamaForCausalLM, found none"):
        lora.inject(policy, LearnerSettings(lora_rank=2))


def test_lora_without_the_package_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(BadSetting, match=r"learner\.lora_rank: expected the package peft, got: .* the extra `lora`"):
        tiny_learner(**LORA)
