"""Checkpoints: written atomically, damage is named, resumed bit for bit, and plain model folders."""

import copy
import importlib.util
import os
import resource
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_runs import old_logprobs, tiny_learner, tiny_rollouts

from mathppo.batch import collate
from mathppo.config import LearnerSettings
from mathppo.errors import BadCheckpoint, BadSetting
from mathppo.learner.backend import checkpoint, models
from mathppo.learner.backend.optimizers import MOMENTS, make_adamw
from mathppo.learner.learner import Learner
from mathppo.learner.load_learner import load_learner


class NoTokenizer:
    """A tokenizer that leaves no file."""

    def save_pretrained(self, save_directory: str | os.PathLike[str], /) -> None:
        return None


def saved(learner: Learner, path: Path) -> Path:
    learner.save(path, NoTokenizer())
    return path


def loaded(path: Path, learner: Learner) -> Learner:
    return load_learner(path, learner.settings, reference=path / "policy", temperature=learner.temperature)


def trained(learner: Learner, steps: range) -> Learner:
    """Update on other rollouts at every step, in an order that the step fixes."""
    for step in steps:
        batch = collate(tiny_rollouts(8, seed=step), pad_id=0)
        learner.update(learner.experience(batch), progress=step / 8, seed=step)
    return learner


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(trained(tiny_learner(), range(1)), tmp_path / "000001")


def test_resuming_after_two_steps_equals_four_steps_bit_for_bit(tmp_path: Path) -> None:
    settings = {"minibatches": 2, "lr_schedule": "linear", "weight_decay": 0.1, "value_clip": 0.2}
    straight = saved(trained(tiny_learner(**settings), range(4)), tmp_path / "straight")
    halfway = saved(trained(tiny_learner(**settings), range(2)), tmp_path / "halfway")
    resumed = saved(trained(loaded(halfway, tiny_learner(**settings)), range(2, 4)), tmp_path / "resumed")
    names = ("policy/model.safetensors", "critic/model.safetensors", checkpoint.OPTIMIZERS)
    for name in names:
        first, second = load_file(straight / name), load_file(resumed / name)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first), name
    assert {key.partition(".")[0] for key in load_file(straight / names[2])} == {"policy", "critic"}
    assert checkpoint.verify_checkpoint(straight) == checkpoint.verify_checkpoint(resumed)
    assert not torch.equal(*(load_file(path / names[0])["model.norm.weight"] for path in (straight, halfway)))


def test_tied_embeddings_stay_tied_and_are_written_once(folder: Path) -> None:
    assert "lm_head.weight" not in load_file(folder / "policy" / "model.safetensors")
    learner = loaded(folder, tiny_learner())
    embeddings = (learner.policy.get_output_embeddings(), learner.policy.get_input_embeddings())
    assert getattr(embeddings[0], "weight") is getattr(embeddings[1], "weight")  # noqa: B009
    batch = collate(tiny_rollouts(3), pad_id=0)
    before = old_logprobs(trained(tiny_learner(), range(1)).experience(batch))
    assert torch.equal(old_logprobs(learner.experience(batch)), before)


def test_loaded_weights_are_aligned_like_new_ones(folder: Path) -> None:
    for model in (models.load_policy(folder / "policy"), models.load_critic(folder / "critic")):
        assert {parameter.data_ptr() % 64 for parameter in model.parameters()} == {0}


@pytest.mark.parametrize("name", ["policy/model.safetensors", "critic/config.json", checkpoint.OPTIMIZERS])
def test_a_damaged_file_is_named(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(BadCheckpoint, match=rf"{name}: damaged, its sha256 differs from the one in checkpoint\.json"):
        checkpoint.verify_checkpoint(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "critic" / "model.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match=r"critic/model\.safetensors: expected a file that checkpoint\.json names"):
        loaded(folder, tiny_learner())


def test_a_header_that_points_outside_the_folder_raises(folder: Path) -> None:
    header = msgspec.json.decode((folder / checkpoint.HEADER).read_bytes(), type=checkpoint.CheckpointHeader)
    (folder.parent / "elsewhere").write_text("x")
    outside = msgspec.structs.replace(header, sha256={"../elsewhere": "0" * 64})
    (folder / checkpoint.HEADER).write_bytes(msgspec.json.encode(outside))
    with pytest.raises(BadCheckpoint, match=r"elsewhere: expected a file that checkpoint\.json names, found none"):
        checkpoint.verify_checkpoint(folder)


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"schema": "checkpoint/9", "step": 1, "sha256": {}}'])
def test_a_folder_without_a_valid_header_raises(folder: Path, content: bytes | None) -> None:
    if content is None:
        (folder / checkpoint.HEADER).unlink()
    else:
        (folder / checkpoint.HEADER).write_bytes(content)
    with pytest.raises(BadCheckpoint, match=r"expected a checkpoint folder with checkpoint\.json, got:"):
        checkpoint.verify_checkpoint(folder)


def test_a_checkpoint_without_the_required_critic_raises(tmp_path: Path) -> None:
    path = saved(tiny_learner(algorithm="rloo"), tmp_path / "rloo")
    with pytest.raises(BadCheckpoint, match=r"expected a critic next to the policy for learner\.algorithm='ppo'"):
        loaded(path, tiny_learner())


def test_moments_of_another_model_raise(folder: Path) -> None:
    learner = tiny_learner()
    names = dict(learner.policy.named_parameters())
    tensors = checkpoint.load_optimizers(folder)
    short = {key: value for key, value in tensors.items() if key != "policy.model.norm.weight.exp_avg"}
    wide = {**tensors, "policy.model.norm.weight.exp_avg": torch.zeros(7)}
    optimizer = torch.optim.AdamW(learner.policy.parameters())
    for bad, got in ((short, "none"), (wide, r"\(7,\)")):
        with pytest.raises(BadCheckpoint, match=rf"norm.weight.exp_avg of shape \(32,\), got {got}; it belongs to"):
            checkpoint.restore_optimizer("policy", names, optimizer, bad, where=folder)


def test_weights_of_another_kind_of_model_raise(folder: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"weights do not match LlamaForTokenClassification"):
        models.load_critic(folder / "policy")
    with pytest.raises(BadCheckpoint, match=r"expected a Hugging Face model folder, found no config\.json there"):
        models.load_policy(folder)
    with pytest.raises(BadCheckpoint, match="expected a tokenizer next to the weights"):
        models.load_tokenizer(folder / "critic")
    save_file({"unrelated": torch.zeros(2)}, folder / "policy" / "model.safetensors")
    with pytest.raises(BadCheckpoint, match="weights do not match LlamaForCausalLM"):
        models.load_policy(folder / "policy")
    (folder / "policy" / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(BadCheckpoint, match="expected weights that transformers loads from safetensors"):
        models.load_policy(folder / "policy")


def test_weights_id_depends_on_the_content_only(folder: Path, tmp_path: Path) -> None:
    plain = folder / "policy"
    assert checkpoint.weights_id(folder) == checkpoint.weights_id(plain)
    assert (checkpoint.checkpoint_step(folder), checkpoint.checkpoint_step(plain)) == (1, 0)
    other = saved(tiny_learner(), tmp_path / "other")
    assert checkpoint.weights_id(other) != checkpoint.weights_id(folder)
    with pytest.raises(BadCheckpoint, match=r"expected a folder with \*\.safetensors, found none"):
        checkpoint.weights_id(tmp_path / "nowhere")


def test_saving_replaces_an_older_checkpoint_and_removes_an_unfinished_one(tmp_path: Path) -> None:
    path = saved(tiny_learner(), tmp_path / "000000")
    torn = tmp_path / ".000000.partial"
    torn.mkdir()
    (torn / "stray").write_text("x")
    (path / "stray").write_text("x")
    saved(tiny_learner(), path)
    assert sorted(p.name for p in path.iterdir()) == ["checkpoint.json", "critic", "policy"]
    assert [p.name for p in tmp_path.iterdir()] == ["000000"]


def test_recover_finishes_a_replacement_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def kill(source: Path, target: Path) -> None:
        if source.name.endswith(".partial"):
            raise Killed
        os.replace(source, target)

    path = tmp_path / "state"
    checkpoint.save_checkpoint(path, step=1, folders={}, optimizers={})
    monkeypatch.setattr(os, "rename", kill)
    with pytest.raises(Killed):
        checkpoint.save_checkpoint(path, step=2, folders={}, optimizers={})
    monkeypatch.undo()
    assert not path.exists()
    checkpoint.recover(path)
    assert checkpoint.verify_checkpoint(path).step == 2
    assert [found.name for found in tmp_path.iterdir()] == ["state"]
    checkpoint.recover(path)
    (tmp_path / ".state.partial").mkdir()  # a later one, which is not finished
    checkpoint.recover(path)
    assert checkpoint.verify_checkpoint(path).step == 2


def test_pruning_keeps_step_0_and_the_newest(tmp_path: Path) -> None:
    for step in (0, 10, 20, 30):
        checkpoint.save_checkpoint(tmp_path / f"{step:06d}", step=step, folders={}, optimizers={})
    (tmp_path / "000040").mkdir()  # no header: not a checkpoint
    checkpoint.prune_checkpoints(tmp_path, keep=2)
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == ["000000", "000020", "000030"]


def test_8_bit_moments_are_resumed_exactly(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the package bitsandbytes")
    settings = LearnerSettings(optimizer="adamw8bit")

    def steps(layer: torch.nn.Linear, optimizer: torch.optim.Optimizer, numbers: range) -> None:
        for number in numbers:
            x = torch.randn(4, 80, generator=torch.Generator().manual_seed(number))
            layer(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = torch.nn.Linear(80, 80)  # large enough for 8 bits
    optimizer = make_adamw(list(first.parameters()), settings)
    steps(first, optimizer, range(2))
    second = copy.deepcopy(first)
    tensors = copy.deepcopy(checkpoint.optimizer_tensors("policy", dict(first.named_parameters()), optimizer))
    assert tensors["policy.weight.state1"].dtype == torch.uint8
    other = make_adamw(list(second.parameters()), settings)
    checkpoint.restore_optimizer(
        "policy", dict(second.named_parameters()), other, tensors, where=tmp_path, moments=MOMENTS["adamw8bit"]
    )
    steps(first, optimizer, range(2, 4))
    steps(second, other, range(2, 4))
    assert torch.equal(first.weight, second.weight)


def test_8_bit_moments_without_the_package_raise() -> None:
    if importlib.util.find_spec("bitsandbytes"):
        pytest.skip("bitsandbytes is there")
    with pytest.raises(BadSetting, match=r"learner\.optimizer: expected the package bitsandbytes for .adamw8bit."):
        tiny_learner(optimizer="adamw8bit")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", '{"model_type": "llama", "hidden_size": "wide"}'),
        ("config.json", '{"model_type": "llama", "num_attention_heads": 0}'),
        ("config.json", '{"model_type": "no-such-model"}'),
        ("config.json", "[]"),
        ("config.json", "{"),
        ("model.safetensors", ""),
    ],
)
def test_a_broken_model_folder_raises_bad_checkpoint(tmp_path: Path, file: str, text: str) -> None:
    tiny_learner().policy.save_pretrained(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(BadCheckpoint, match="expected weights that transformers loads from safetensors"):
        models.load_policy(tmp_path)


def test_weights_with_mismatched_shapes_are_named(tmp_path: Path) -> None:
    tiny_learner().policy.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"hidden_size": 32', '"hidden_size": 64'))
    with pytest.raises(BadCheckpoint, match="'mismatched_shapes': "):
        models.load_policy(tmp_path)


def test_a_full_disk_raises_oserror_and_keeps_the_older_checkpoint(tmp_path: Path) -> None:
    path = saved(tiny_learner(), tmp_path / "c")
    before = checkpoint.verify_checkpoint(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            saved(tiny_learner(), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert checkpoint.verify_checkpoint(path) == before
