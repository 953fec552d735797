"""Preflight: missing models, packages and devices are named before a run starts."""

import json
from pathlib import Path

import pytest
from tiny_runs import TINY

from mathppo.config import load_config
from mathppo.errors import BadCheckpoint, BadInput, BadSetting, MathPPOError
from mathppo.learner.backend import models
from mathppo.pipeline import preflight
from mathppo.pipeline.preflight import check_start
from mathppo.prompts import build_equation_tokenizer


def check(**settings: object) -> None:
    check_start(
        load_config(None, [*TINY, *((name.replace("__", "."), str(value)) for name, value in settings.items())])
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a Hugging Face folder that a run can start from."""
    tokenizer = build_equation_tokenizer()
    shape = load_config(None, TINY).model
    policy = models.build_policy(shape, vocab_size=len(tokenizer), bos_id=1, eos_id=2, pad_id=0, seed=0)
    policy.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_existing_models_are_accepted(folder: Path) -> None:
    check()
    check(model__path=folder, learner__critic_from=folder)


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"model__path": "/no/where"}, BadCheckpoint, r"model\.path: .* found no config\.json in /no/where"),
        (
            {"learner__critic_from": "/no/where"},
            BadCheckpoint,
            r"learner\.critic_from: .* no config\.json in /no/where",
        ),
        ({"generator__engine": "openai", "generator__url": "http://here"}, BadSetting, r"which takes no new weights"),
        ({"generator__engine": "vllm-http"}, BadSetting, r"generator\.url: expected an address .* got ''"),
    ],
)
def test_missing_folder_or_address_is_rejected(
    settings: dict[str, str], kind: type[MathPPOError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        check(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"generator__engine": "vllm"}, r'generator\.engine: expected vLLM for "vllm": not installed; pip install'),
        (
            {"learner__optimizer": "adamw8bit"},
            r'expected package bitsandbytes for "adamw8bit", found none; install it',
        ),
    ],
)
def test_missing_package_is_rejected(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], message: str) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    monkeypatch.setattr(preflight.vllm_memory.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadSetting, match=message):
        check(**settings)


def test_missing_gpu_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadSetting, match=r'learner\.device: expected "auto" or "cpu" if torch finds no GPU'):
        check(learner__device="cuda")


@pytest.mark.parametrize("start", ["scratch", "model__path", "learner__critic_from"])
def test_critic_with_more_layers_than_its_trunk_is_rejected(folder: Path, start: str) -> None:
    given = {} if start == "scratch" else {start: folder}
    check(learner__critic_num_layers=1, **given)
    with pytest.raises(BadSetting, match=r"learner\.critic_num_layers: expected at most the 1 of its trunk, got 2"):
        check(learner__critic_num_layers=2, **given)
    check(learner__critic_num_layers=2, learner__algorithm="reinforce++", **given)


def test_trunk_with_an_unreadable_config_is_rejected(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "unheard-of"}')
    with pytest.raises(BadCheckpoint, match=r"model: expected a config\.json that transformers reads, got: ValueError"):
        check(learner__critic_from=folder, learner__critic_num_layers=1)


def test_whole_critic_keeps_its_layers(folder: Path) -> None:
    models.build_critic(models.load_policy(folder)).save_pretrained(folder.parent / "start" / "critic")
    check(learner__critic_from=folder.parent / "start", learner__critic_num_layers=2)


def test_weights_in_a_pickle_are_rejected(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(BadCheckpoint, match=r"safetensors weights, found no \*\.safetensors in .*model"):
        check(model__path=folder)


def test_tokenizer_without_an_end_token_is_rejected(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    del settings["eos_token"]
    file.write_text(json.dumps(settings))
    with pytest.raises(BadInput, match="tokenizer: expected an end token, got none"):
        check(model__path=folder)
