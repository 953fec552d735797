"""Critic trunks: a copy of the policy's, fewer layers, another model's, or a shared trunk."""

from pathlib import Path

import pytest
import torch
from tiny_runs import scored_rollout, tiny_learner, tiny_rollouts

from mathppo.batch import Batch, collate
from mathppo.errors import BadCheckpoint, BadSetting
from mathppo.learner.backend import models
from mathppo.learner.learner import Learner
from mathppo.learner.load_learner import load_learner, start_critic

pytestmark = pytest.mark.gpu


class NoTokenizer:
    def save_pretrained(self, save_directory: object, /) -> None:
        return None


def gradients(learner: Learner, batch: Batch) -> dict[str, dict[str, torch.Tensor]]:
    learner.accumulate(learner.experience(batch), learner.count(batch), is_first=True)
    found = {
        name: {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
        for name, model in learner.models.items()
    }
    learner.optimizers.zero_grad()
    return found


@pytest.mark.parametrize("share", [0.0, 1.0, 0.25])
@pytest.mark.parametrize("micro_batch_size", [3, 8])
def test_trunk_value_gradient_scales_the_value_gradient_in_a_shared_trunk(share: float, micro_batch_size: int) -> None:
    batch = collate(tiny_rollouts(8), pad_id=0)
    apart = gradients(tiny_learner(), batch)
    shared = gradients(
        tiny_learner(shared_trunk=True, trunk_value_gradient=share, micro_batch_size=micro_batch_size), batch
    )
    assert max(gradient.abs().max() for gradient in apart["critic"].values()) > 1e-3
    for name, gradient in shared["policy"].items():
        own = apart["policy"][name] + share * apart["critic"].get(name, torch.zeros(()))
        torch.testing.assert_close(gradient, own, atol=2e-6, rtol=1e-4)
    for name in ("score.weight", "score.bias"):
        torch.testing.assert_close(shared["critic"][name], apart["critic"][name], atol=1e-6, rtol=1e-4)


def test_a_shared_trunk_runs_and_is_stepped_once_per_step() -> None:
    learner, batch = tiny_learner(shared_trunk=True), collate(tiny_rollouts(8), pad_id=0)
    assert learner.optimizers.parameters["critic"].keys() == {"score.weight", "score.bias"}
    experience, passes = learner.experience(batch), []
    learner.policy.base_model.register_forward_hook(lambda *_: passes.append(1))
    learner.update(experience, progress=0.0, seed=0)
    assert len(passes) == 1


def test_training_the_critic_alone_does_not_move_a_shared_trunk() -> None:
    learner = tiny_learner(
        shared_trunk=True, critic_warmup_iterations=1, critic_extra_epochs=1, critic_pretraining_epochs=2
    )
    batch = collate(tiny_rollouts(16), pad_id=0)
    policy, head = [p.clone() for p in learner.policy.parameters()], models.value_head(learner.models["critic"])
    first = head.weight.clone()
    list(learner.pretrain_critic(batch, batch, seed=0))
    learner.update(learner.experience(batch), progress=0.0, seed=0)
    assert all(torch.equal(old, new) for old, new in zip(policy, learner.policy.parameters(), strict=True))
    assert not torch.equal(first, head.weight)


def test_a_restored_learner_shares_the_trunk_again(tmp_path: Path) -> None:
    learner, batch = tiny_learner(shared_trunk=True), collate(tiny_rollouts(8), pad_id=0)
    learner.update(learner.experience(batch), progress=0.0, seed=0)
    learner.save(tmp_path / "1", NoTokenizer())
    resumed = load_learner(tmp_path / "1", learner.settings, reference=tmp_path, temperature=1.0)
    for each in (learner, resumed):
        each.update(each.experience(batch), progress=0.0, seed=1)
        assert each.models["critic"].base_model is each.policy.base_model
    assert torch.equal(learner.experience(batch).values, resumed.experience(batch).values)
    for old, new in zip(learner.policy.parameters(), resumed.policy.parameters(), strict=True):
        assert torch.equal(old, new)


def test_a_smaller_critic_keeps_the_first_layers_starts_at_zero_and_learns() -> None:
    learner = tiny_learner(critic_num_layers=1, critic_lr=3e-3, critic_pretraining_epochs=20)
    critic = learner.models["critic"]
    layers = torch.nn.ModuleList(critic.base_model.layers)  # type: ignore[arg-type]
    assert len(layers) == 1
    assert torch.equal(layers[0].mlp.up_proj.weight, learner.policy.base_model.layers[0].mlp.up_proj.weight)  # type: ignore[index,union-attr]
    assert not models.value_head(start_critic(learner.policy, learner.settings)).weight.any()
    scored = [scored_rollout(prompt_ids=[1, 3 + i % 2], reward=float(i % 2), problem_id=str(i)) for i in range(32)]
    batch = collate(scored, pad_id=0)
    rows = list(learner.pretrain_critic(batch, batch, seed=0))
    explained = rows[-1]["explained_variance_outcome"]
    assert isinstance(explained, float)
    assert explained > 0.9
    with pytest.raises(BadSetting, match=r"learner\.critic_num_layers: expected at most the 2 of its trunk, got 3"):
        models.build_critic(learner.policy, num_layers=3)


def test_a_critic_loads_from_a_checkpoint_a_critic_folder_or_a_policy_folder(tmp_path: Path) -> None:
    learner, batch = tiny_learner(), collate(tiny_rollouts(4), pad_id=0)
    values = learner.experience(batch).values
    learner.save(tmp_path / "1", NoTokenizer())
    for folder in (tmp_path / "1", tmp_path / "1" / "critic"):
        critic = start_critic(learner.policy, tiny_learner(critic_from=str(folder)).settings)
        assert torch.equal(
            models.value_head(critic).weight.cpu(), models.value_head(learner.models["critic"]).weight.cpu()
        )
        other = Learner(learner.policy, critic, None, learner.settings, temperature=1.0)
        assert torch.equal(other.experience(batch).values, values)
    fresh = models.open_critic(tmp_path / "1" / "policy", num_layers=1)
    assert not models.value_head(fresh).weight.any()
    with pytest.raises(BadCheckpoint, match=r"expected a Hugging Face model folder, found no config\.json there"):
        models.open_critic(tmp_path / "nowhere")


def test_a_critic_with_a_smaller_vocabulary_or_another_trunk_raises(tmp_path: Path) -> None:
    learner = tiny_learner()
    learner.save(tmp_path / "1", NoTokenizer())
    policy = tiny_learner().policy
    policy.resize_token_embeddings(20)
    with pytest.raises(BadCheckpoint, match=r"expected a critic with a vocabulary of at least .* 20 tokens, got 13"):
        start_critic(policy, tiny_learner(critic_from=str(tmp_path / "1")).settings)
    other = models.build_critic(learner.policy)
    other.model = torch.nn.Linear(2, 2)  # type: ignore[assignment]
    with pytest.raises(BadCheckpoint, match=r"expected a head for the policy's LlamaModel, got one for Linear"):
        models.share_trunk(other, learner.policy)
