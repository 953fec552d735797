"""Weights for an engine: checks before sending, and the weights file."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import tiny_learner

from mathppo.errors import BadCheckpoint
from mathppo.generator.weights import WeightsFile, check_weights, expected_shapes, has_tied_head


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy")
    tiny_learner(algorithm="reinforce++").policy.save_pretrained(path)
    return path


def test_a_complete_state_dict_with_a_tied_head_matches_its_folder(folder: Path) -> None:
    policy = tiny_learner(algorithm="reinforce++", seed=3).policy
    assert has_tied_head(folder)
    assert "lm_head.weight" not in expected_shapes(folder)
    check_weights(policy.state_dict(), expected_shapes(folder), is_tied=True, policy_step=3)


def test_named_parameters_without_the_tied_head_are_rejected(folder: Path) -> None:
    policy = tiny_learner(algorithm="reinforce++").policy
    with pytest.raises(BadCheckpoint, match=r"step 3: expected the \d+ tensors .* got no lm_head\.weight \(1 diff"):
        check_weights(dict(policy.named_parameters()), expected_shapes(folder), is_tied=True, policy_step=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"other": torch.zeros(1)}, "unknown other"),
        ({"model.norm.weight": torch.zeros(3)}, r"model\.norm\.weight of shape \(3,\) instead of \(32,\)"),
    ],
)
def test_weights_of_another_model_are_rejected(folder: Path, change: dict[str, torch.Tensor], message: str) -> None:
    weights = tiny_learner(algorithm="reinforce++").policy.state_dict() | change
    with pytest.raises(BadCheckpoint, match=message):
        check_weights(weights, expected_shapes(folder), is_tied=True, policy_step=0)


def test_folders_without_a_complete_model_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"found no config\.json"):
        expected_shapes(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadCheckpoint, match="found none; convert the model"):
        expected_shapes(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(BadCheckpoint, match="expected a whole safetensors file"):
        expected_shapes(tmp_path)


def test_a_weights_file_replaces_the_previous_one_and_is_removed_at_close(tmp_path: Path) -> None:
    policy = tiny_learner(algorithm="reinforce++").policy
    file = WeightsFile(tmp_path / "shared")
    first = file.write(policy.state_dict(), 1, torch.bfloat16)
    second = file.write(policy.state_dict(), 2, torch.float32)
    assert not first.exists()
    written = load_file(second)
    assert written.keys() == policy.state_dict().keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in policy.state_dict().items())
    file.close()
    assert list((tmp_path / "shared").iterdir()) == []


def test_a_temporary_folder_is_removed_at_close() -> None:
    file = WeightsFile()
    file.write({"x": torch.ones(2), "n": torch.arange(2)}, 0, torch.bfloat16)
    assert file.folder.is_dir()
    file.close()
    file.close()
    assert not file.folder.exists()
