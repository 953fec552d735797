"""Interface and errors of the embedded engine on a tiny model; the integration test checks its numbers."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_lms import CONTEXT, VOCAB_SIZE, IdsTokenizer, build

from mathppo.errors import BadCheckpoint, BadInput, BrokenInvariant
from mathppo.generator.base import Request, Sampling
from mathppo.generator.hf.hf_generator import HFGenerator
from mathppo.prompts import build_equation_tokenizer
from mathppo.records import FinishReason, Rollout

SAMPLING = Sampling(max_new_tokens=6, stop_token_ids=(1,))


def request(
    problem_id: str = "p", sample_index: int = 0, prompt: tuple[int, ...] = (3, 4, 5), seed: int = 7
) -> Request:
    return Request(problem_id=problem_id, sample_index=sample_index, prompt_ids=prompt, seed=seed)


@pytest.fixture
def model() -> Any:
    return build("llama")


@pytest.fixture
def engine(model: Any) -> HFGenerator:
    return HFGenerator(model, IdsTokenizer(special=(1,)), policy_step=4)


def favour(model: Any, token: int) -> None:
    """Make one token almost certain after any prompt, with a zero output matrix and a bias."""
    model.lm_head = torch.nn.Linear(model.config.hidden_size, VOCAB_SIZE, bias=True)
    torch.nn.init.zeros_(model.lm_head.weight)
    torch.nn.init.zeros_(model.lm_head.bias)
    with torch.no_grad():
        model.lm_head.bias[token] = 50.0


def test_a_stop_token_terminates_and_is_the_last_id(model: Any) -> None:
    favour(model, 1)
    (rollout,) = HFGenerator(model, IdsTokenizer(special=(1,)), policy_step=4).generate([request()], SAMPLING)
    assert (rollout.completion_ids, rollout.finish_reason) == ([1], FinishReason.STOP)
    assert rollout.completion == ""
    assert rollout.prompt_ids == [3, 4, 5]
    assert (rollout.policy_step, rollout.seed, rollout.problem_id, rollout.sample_index) == (4, 7, "p", 0)


def test_the_budget_truncates_and_changes_no_id(model: Any) -> None:
    favour(model, 9)
    (rollout,) = HFGenerator(model, IdsTokenizer()).generate([request()], SAMPLING)
    assert (rollout.completion_ids, rollout.finish_reason) == ([9] * 6, FinishReason.LENGTH)
    assert rollout.truncated


def test_a_stop_token_at_the_last_position_terminates(model: Any) -> None:
    favour(model, 1)
    sampling = Sampling(max_new_tokens=1, stop_token_ids=(5, 1))
    (rollout,) = HFGenerator(model, IdsTokenizer()).generate([request()], sampling)
    assert (rollout.completion_ids, rollout.finish_reason) == ([1], FinishReason.STOP)


def test_stop_tokens_come_from_sampling_not_from_the_model(model: Any) -> None:
    favour(model, 9)
    model.config.eos_token_id = 9
    model.generation_config.eos_token_id = 9
    (rollout,) = HFGenerator(model, IdsTokenizer()).generate([request()], SAMPLING)
    assert rollout.finish_reason is FinishReason.LENGTH
    sampling = Sampling(max_new_tokens=6, stop_token_ids=(9,))
    (rollout,) = HFGenerator(model, IdsTokenizer()).generate([request()], sampling)
    assert rollout.terminated


@pytest.mark.parametrize(("prompt_length", "expected"), [(CONTEXT - 4, 4), (CONTEXT - 1, 1)])
def test_the_end_of_the_context_truncates(model: Any, prompt_length: int, expected: int) -> None:
    favour(model, 9)
    requests = [request("long", prompt=(2,) * prompt_length), request("short")]
    rollouts = {r.problem_id: r for r in HFGenerator(model, IdsTokenizer()).generate(requests, SAMPLING)}
    assert len(rollouts["long"].completion_ids) == expected
    assert rollouts["long"].truncated
    assert len(rollouts["short"].completion_ids) == 6


def test_completions_are_yielded_as_they_finish(model: Any) -> None:
    progress: list[tuple[int, int]] = []
    engine = HFGenerator(
        model, IdsTokenizer(), max_batch_size=2, on_progress=lambda done, asked: progress.append((done, asked))
    )
    requests = [request(f"p{i}", prompt=(2,) * (CONTEXT - i)) for i in range(1, 6)]
    order = [r.problem_id for r in engine.generate(requests, Sampling(max_new_tokens=9, stop_token_ids=()))]
    assert order == ["p1", "p2", "p3", "p4", "p5"]  # the smallest budget first
    assert progress[-1] == (5, 5)
    assert [done for done, _ in progress] == sorted({done for done, _ in progress})


def test_no_requests_give_no_rollouts(engine: HFGenerator) -> None:
    assert list(engine.generate([], SAMPLING)) == []


def test_the_training_mode_of_each_module_is_restored(model: Any) -> None:
    model.train()
    model.model.layers[0].eval()
    before = [module.training for module in model.modules()]
    for _ in HFGenerator(model, IdsTokenizer()).generate([request(), request("q")], SAMPLING):
        assert [module.training for module in model.modules()] == before
        assert not torch.is_inference_mode_enabled()
    assert [module.training for module in model.modules()] == before


def test_dropout_is_off() -> None:
    model = build("gpt2")
    (expected,) = HFGenerator(model, IdsTokenizer()).generate([request()], SAMPLING)
    (rollout,) = HFGenerator(model.train(), IdsTokenizer()).generate([request()], SAMPLING)
    assert rollout == expected


def test_the_model_can_be_trained_afterwards(model: Any) -> None:
    list(HFGenerator(model, IdsTokenizer()).generate([request()], SAMPLING))
    model(torch.tensor([[3, 4, 5]])).logits.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request("e", prompt=()), r"problem 'e' sample 0: expected at least one prompt id, got none; add"),
        (
            request("v", prompt=(3, VOCAB_SIZE)),
            r"problem 'v' sample 0: expected prompt ids in 0\.\.22, got 23; tokenize",
        ),
        (request("n", prompt=(-1,)), r"problem 'n' sample 0: expected prompt ids in 0\.\.22, got -1"),
        (
            request("l", prompt=(2,) * CONTEXT),
            r"problem 'l' sample 0: expected a prompt of at most 47 tokens .*got 48; shorten it or",
        ),
        (request("good"), r"problem 'good' sample 0: expected one request per sample, got two; number the samples"),
    ],
)
def test_bad_requests_are_rejected_before_sampling(engine: HFGenerator, bad: Request, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        engine.generate([request("good"), bad], SAMPLING)


def test_a_stop_token_outside_the_vocabulary_is_rejected(engine: HFGenerator) -> None:
    with pytest.raises(BadInput, match=r"expected stop_token_ids in 0\.\.22, got 23"):
        engine.generate([request()], Sampling(max_new_tokens=1, stop_token_ids=(VOCAB_SIZE,)))


@pytest.mark.parametrize("limits", [{"max_batch_size": 0}, {"max_batch_tokens": 0}])
def test_limits_below_one_are_rejected(model: Any, limits: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"expected max_batch_\w+ >= 1, got 0"):
        HFGenerator(model, IdsTokenizer(), **limits)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_non_finite_logits_name_the_request(model: Any, temperature: float) -> None:
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    stream = HFGenerator(model, IdsTokenizer()).generate(
        [request("sick")], Sampling(max_new_tokens=2, stop_token_ids=(), temperature=temperature)
    )
    with pytest.raises(
        BrokenInvariant, match=r"problem 'sick' sample 0: expected finite logits, got .*nan for new token 1"
    ):
        next(stream)


def test_refresh_sets_the_policy_step_of_later_rollouts(model: Any, engine: HFGenerator) -> None:
    favour(model, 9)
    engine.refresh(5)
    assert engine.policy_step == 5
    (rollout,) = engine.generate([request()], SAMPLING)
    assert (rollout.policy_step, rollout.completion_ids) == (5, [9] * 6)


def test_a_refresh_fails_unfinished_completions(engine: HFGenerator) -> None:
    stream: Iterator[Rollout] = engine.generate(
        [request("a", prompt=(2,) * (CONTEXT - 1)), request("b")], Sampling(max_new_tokens=9, stop_token_ids=())
    )
    assert next(stream).problem_id == "a"
    engine.refresh(5)
    with pytest.raises(BrokenInvariant, match=r"expected the weights of step 4 .*1 of 2 unfinished; exhaust or drop"):
        next(stream)


def test_a_closed_engine_raises_and_a_second_close_does_nothing(engine: HFGenerator) -> None:
    engine.close()
    engine.close()
    with pytest.raises(BadInput, match="expected an open engine"):
        engine.generate([request()], SAMPLING)


@pytest.mark.parametrize("drop_tied_head", [False, True])
def test_loaded_weights_sample_like_their_source_model(engine: HFGenerator, drop_tied_head: bool) -> None:
    other = build("llama", seed=1)
    weights = other.state_dict()
    if drop_tied_head:
        del weights["lm_head.weight"]  # as in the safetensors file of a tied model
    engine.load(weights, policy_step=9)
    (rollout,) = engine.generate([request()], SAMPLING)
    (expected,) = HFGenerator(other, IdsTokenizer(special=(1,)), policy_step=9).generate([request()], SAMPLING)
    assert rollout == expected


def test_a_half_precision_copy_accepts_float32_weights(model: Any) -> None:
    copy = build("llama", seed=1).to(torch.bfloat16)
    HFGenerator(copy, IdsTokenizer()).load(model.state_dict(), policy_step=1)
    assert torch.equal(copy.model.norm.weight, model.model.norm.weight.to(torch.bfloat16))
    assert copy.dtype == torch.bfloat16


def test_later_completions_use_weights_changed_in_place(model: Any, engine: HFGenerator) -> None:
    before = list(engine.generate([request()], SAMPLING))
    with torch.no_grad():
        for parameter, new in zip(model.parameters(), build("llama", seed=1).parameters(), strict=True):
            parameter.copy_(new)
    engine.refresh(5)
    after = list(engine.generate([request()], SAMPLING))
    fresh = list(
        HFGenerator(build("llama", seed=1), IdsTokenizer(special=(1,)), policy_step=5).generate([request()], SAMPLING)
    )
    assert after == fresh
    assert after != before


def test_samples_of_one_prompt_depend_only_on_their_seeds(engine: HFGenerator) -> None:
    requests = [request(sample_index=i, seed=i // 2) for i in range(4)]
    ids = {r.sample_index: r.completion_ids for r in engine.generate(requests, SAMPLING)}
    assert ids[0] == ids[1]
    assert ids[2] == ids[3]
    assert ids[0] != ids[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), r"got no model\.norm\.weight \(1 differences\)"),
        (lambda w: w.update(extra=torch.zeros(1)), r"got unknown extra"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(3)}), r"shape \(3,\) instead of \(32,\)"),
    ],
)
def test_weights_of_another_model_are_rejected_and_change_nothing(
    model: Any, engine: HFGenerator, change: Any, message: str
) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weights = build("llama", seed=1).state_dict()
    change(weights)
    with pytest.raises(BadCheckpoint, match=message):
        engine.load(weights, policy_step=9)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert engine.policy_step == 4


@pytest.fixture
def checkpoint(tmp_path: Path, model: Any) -> Path:
    folder = tmp_path / "checkpoint"
    model.save_pretrained(folder)
    build_equation_tokenizer().save_pretrained(folder)
    return folder


def test_a_checkpoint_folder_samples_like_the_saved_model(checkpoint: Path, model: Any) -> None:
    tokenizer = build_equation_tokenizer()
    with HFGenerator.from_pretrained(checkpoint, policy_step=3) as loaded:
        (rollout,) = loaded.generate([request()], SAMPLING)
    (expected,) = HFGenerator(model, tokenizer, policy_step=3).generate([request()], SAMPLING)
    assert rollout == expected
    assert rollout.completion == tokenizer.decode(rollout.completion_ids, skip_special_tokens=True)


def test_a_checkpoint_loads_in_the_requested_dtype(checkpoint: Path) -> None:
    loaded = HFGenerator.from_pretrained(checkpoint, dtype=torch.bfloat16)
    (rollout,) = loaded.generate([request()], SAMPLING)
    assert len(rollout.completion_ids) >= 1


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _cut_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def _broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _unknown_model(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "unheard_of"}))


def _own_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "code.Model", "AutoConfig": "code.Config"}
    config["model_type"] = "unheard_of"
    (folder / "config.json").write_text(json.dumps(config))


def _more_layers(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))


def _wider(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))


def _sets(**changed: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changed}))

    return damage


def _no_object(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


@pytest.mark.parametrize(
    "damage",
    [
        *(_no_weights, _pickled_weights, _cut_weights, _broken_config, _unknown_model, _own_code, _more_layers, _wider),
        _no_object,
        _sets(hidden_size="wide"),
        _sets(num_attention_heads=0),
        _sets(dtype="float99"),
        _sets(vocab_size=-1),
    ],
)
def test_a_damaged_checkpoint_gives_a_one_line_error(checkpoint: Path, damage: Any) -> None:
    damage(checkpoint)
    with pytest.raises(BadCheckpoint, match=r"checkpoint: expected .*, got .*; point to a folder") as caught:
        HFGenerator.from_pretrained(checkpoint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["nowhere", "org/model"])
def test_a_missing_checkpoint_is_rejected_without_network_access(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadCheckpoint, match=r"expected a checkpoint folder with config\.json, got none; point to"):
        HFGenerator.from_pretrained(tmp_path / name)
