"""Two processes with shards of the weights: the gradients, the run and the checkpoints of one."""

import json
from pathlib import Path
from typing import Any

import pytest
import sharded_learner
import torch
from safetensors.torch import load_file
from tiny_runs import tiny_rollouts
from two_processes import torchrun

from mathppo.cli import main
from mathppo.config import ModelSettings
from mathppo.learner.backend import checkpoint, models
from mathppo.learner.backend.sharding import ALONE
from mathppo.metrics import read_rows
from mathppo.prompts import build_equation_tokenizer, special_ids
from mathppo.storage import store

SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"minibatches": 2, "micro_batch_size": 2, "kl_place": "loss", "kl_coef": 0.1, "kl_target": 0.1},
    "one step": {"micro_batch_tokens": 16, "critic_extra_epochs": 1, "activation_checkpointing": True},
    "grpo": {"algorithm": "grpo", "micro_batch_size": 3, "aggregation": "sequence_mean"},
    "head by chunks": {
        "chunk": 5,
        "packing": "padded",
        "micro_batch_tokens": 16,
        "minibatches": 2,
        "entropy_coef": 0.1,
    },
    "shared trunk": {"shared_trunk": True, "trunk_value_gradient": 0.5, "chunk": 5, "critic_extra_epochs": 1},
    "shared trunk, whole head": {"shared_trunk": True, "micro_batch_size": 2, "critic_warmup_iterations": 1},
    "factors of low rank": {"lora_rank": 3, "micro_batch_size": 2, "chunk": 5, "activation_checkpointing": True},
    "factors in a shared trunk, packed": {
        **{"lora_rank": 2, "shared_trunk": True, "micro_batch_tokens": 20, "packing": "packed"},
        **{"chunk": 5, "activation_checkpointing": True},
    },
    "packed": {"packing": "packed", "micro_batch_tokens": 20, "minibatches": 2, "kl_place": "loss", "kl_coef": 0.1},
}


def on_two(out: Path, cases: dict[str, dict[str, Any]]) -> Path:
    """Do the work of all cases on two processes that torchrun starts."""
    for name in cases:
        (out / name).mkdir(parents=True)
    torchrun(str(Path(sharded_learner.__file__)), str(out), json.dumps(cases))
    return out


def alone(out: Path, settings: dict[str, Any]) -> Path:
    out.mkdir(parents=True)
    sharded_learner.work(out, settings, ALONE)
    return out


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return on_two(tmp_path_factory.mktemp("together"), SETTINGS)


def assert_close(first: Path, second: Path, tolerance: float) -> None:
    ours, theirs = load_file(first), load_file(second)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(
            tensor, theirs[name], atol=tolerance, rtol=1e-4, msg=lambda message, name=name: f"{name}: {message}"
        )


@pytest.mark.parametrize("name", SETTINGS)
def test_two_processes_give_the_gradients_and_the_run_of_one(together: Path, tmp_path: Path, name: str) -> None:
    one, two = alone(tmp_path / "one", SETTINGS[name]), together / name
    assert_close(one / "gradients.safetensors", two / "gradients.safetensors", 2e-6)
    for ours, theirs in zip(*(json.loads((x / "metrics.json").read_text()) for x in (one, two)), strict=True):
        assert ours.keys() == theirs.keys()
        assert {m: ours[m] for m in ours if ours[m] != pytest.approx(theirs[m], rel=1e-3, abs=1e-4)} == {}
    for part in ["policy/model.safetensors"] + ([] if name == "grpo" else ["critic/model.safetensors"]):
        assert_close(one / "done" / part, two / "done" / part, 1e-5)
    headers = [checkpoint.verify_checkpoint(x / "done") for x in (one, two)]
    assert headers[0].sha256.keys() == headers[1].sha256.keys()
    assert headers[0].numbers == pytest.approx(headers[1].numbers)


def test_shards_are_saved_as_a_plain_model_with_tied_embeddings(together: Path) -> None:
    folder = together / "ppo" / "done" / "policy"
    assert models.load_policy(folder).config.architectures == ["LlamaForCausalLM"]
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")


def test_a_checkpoint_goes_on_with_another_number_of_processes(together: Path, tmp_path: Path) -> None:
    """Two processes, then one, then two again end where one alone does."""
    settings = SETTINGS["ppo"]
    second = alone(tmp_path / "second", {**settings, "start": str(together / "ppo" / "done")})
    third = on_two(tmp_path / "third", {"ppo": {**settings, "start": str(second / "done")}}) / "ppo"
    straight = alone(tmp_path / "straight", settings)
    for more in ("straight 2", "straight 3"):
        straight = alone(tmp_path / more, {**settings, "start": str(straight / "done")})
    assert checkpoint.verify_checkpoint(third / "done").step == 3 * sharded_learner.NUM_UPDATES
    for part in ("policy/model.safetensors", "critic/model.safetensors", checkpoint.OPTIMIZERS):
        assert_close(straight / "done" / part, third / "done" / part, 5e-5)


def test_the_learn_stage_is_the_same_under_torchrun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer, shape = build_equation_tokenizer(), ModelSettings(hidden_size=32, num_layers=1, num_heads=1)
    ids = special_ids(tokenizer)
    policy = models.build_policy(
        shape, vocab_size=len(tokenizer), bos_id=ids.bos, eos_id=ids.eos, pad_id=ids.pad, seed=0
    )
    checkpoint.save_checkpoint(tmp_path / "warm", step=0, folders={"policy": (policy, tokenizer)}, optimizers={})
    scored, rollouts = tiny_rollouts(6), tmp_path / "rollouts"
    store.write_artefact(rollouts, store.ROLLOUTS, [item.rollout for item in scored], "a test")
    scores = [item.score for item in scored]
    store.write_artefact(tmp_path / "scored", store.SCORED, scores, "a test", source=rollouts)
    given = ("--checkpoint", str(tmp_path / "warm"), "--scored", str(tmp_path / "scored"))
    more = ("--critic-rollouts", str(tmp_path / "scored"), "--learner.critic_pretraining_epochs=1")
    assert main(["learn", *given, *more, "--out", str(tmp_path / "one")]) == 0
    alone_printed = capsys.readouterr().out
    printed = torchrun("-m", "mathppo.cli", "learn", *given, *more, "--out", str(tmp_path / "two"))
    names = [line.split()[0] for line in printed.splitlines()]
    assert names == [line.split()[0].replace("/one:", "/two:") for line in alone_printed.splitlines()]
    assert {"policy_loss", "value_loss", "entropy", "approx_kl"} < set(names)
    assert len(set(names)) == len(names) < 20  # once, by the first process
    logs = [(tmp_path / f"{name}.metrics.jsonl") for name in ("one", "two")]
    assert [len(log.read_text().splitlines()) for log in logs] == [2, 2]
    ours, theirs = (read_rows(log)[1][0].metrics for log in logs)
    assert {m: ours[m] for m in ours if ours[m] != pytest.approx(theirs[m], rel=1e-3, abs=1e-4)} == {}
    for part in ("policy/model.safetensors", "critic/model.safetensors"):
        assert_close(tmp_path / "one" / part, tmp_path / "two" / part, 1e-4)
