"""The probe after a weight update, with engines that have each fault observed in real ones."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pytest
import torch
from tiny_runs import tiny_config
from torch import Tensor

from mathppo.config import Config, ModelSettings
from mathppo.errors import BrokenInvariant
from mathppo.generator.base import Request, Sampling
from mathppo.generator.hf.hf_generator import HFGenerator
from mathppo.learner.backend import models
from mathppo.learner.backend.models import PreTrainedModel
from mathppo.learner.learner import Learner
from mathppo.pipeline.weight_sync import WeightSync
from mathppo.prompts import PreTrainedTokenizerBase, build_equation_tokenizer
from mathppo.records import Problem, Rollout

PROBLEMS = [Problem(id="p", question="Solve for x: x+1=3", reference="2")]


class Copying:
    """An engine with a copy of the weights, which may ignore new ones or report logprobs without the temperature."""

    shares_weights = False

    def __init__(self, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.inner = HFGenerator(policy, tokenizer)
        self.tokenizer = tokenizer
        self.ignores = self.reports_raw = False
        self.shift = 0.0
        self.policy_step = 0

    def refresh(self, policy_step: int, weights: Mapping[str, Tensor] | None = None) -> None:
        self.policy_step = policy_step
        if not self.ignores:
            self.inner.refresh(policy_step, weights)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Rollout]:
        for rollout in self.inner.generate(requests, sampling):
            shifted = [x + self.shift for x in rollout.behaviour_logprobs]
            yield (
                self._raw(rollout) if self.reports_raw else msgspec.structs.replace(rollout, behaviour_logprobs=shifted)
            )

    def sleep(self) -> None:
        pass

    def close(self) -> None:
        self.inner.close()

    def _raw(self, rollout: Rollout) -> Rollout:
        model = self.inner._open().model
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([rollout.prompt_ids + rollout.completion_ids])).logits[0]
        logprobs = torch.log_softmax(logits[len(rollout.prompt_ids) - 1 : -1], dim=-1)
        raw = logprobs.gather(1, torch.tensor(rollout.completion_ids)[:, None]).squeeze(1).tolist()
        return msgspec.structs.replace(rollout, behaviour_logprobs=raw)


def policy(seed: int, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    shape = ModelSettings(hidden_size=32, num_layers=2, num_heads=1, intermediate_size=32, initializer_range=0.3)
    return models.build_policy(shape, vocab_size=len(tokenizer), bos_id=1, eos_id=2, pad_id=0, seed=seed)


@pytest.fixture
def made() -> tuple[WeightSync, Copying]:
    config: Config = tiny_config(("generator.temperature", "0.5"), ("learner.algorithm", "reinforce++"))
    tokenizer = build_equation_tokenizer()
    learner = Learner(policy(1, tokenizer), None, None, config.learner, temperature=0.5, step=3)
    engine = Copying(policy(0, tokenizer), tokenizer)
    return WeightSync(config, engine, learner, tokenizer, PROBLEMS[0]), engine


def test_engine_with_the_new_weights_passes(made: tuple[WeightSync, Copying]) -> None:
    weight_sync, engine = made
    row = weight_sync.sync()
    assert engine.policy_step == 3
    assert row["probe_gap_max"] < 1e-4  # type: ignore[operator]
    assert row["refresh_s"] > 0  # type: ignore[operator]


def test_engine_with_other_weights_is_detected(made: tuple[WeightSync, Copying]) -> None:
    weight_sync, engine = made
    engine.ignores = True
    with pytest.raises(BrokenInvariant, match=r"step 3: expected the engine's log-probabilities .* usual causes"):
        weight_sync.sync()


def test_old_weights_are_recognised(made: tuple[WeightSync, Copying]) -> None:
    weight_sync, engine = made
    weight_sync.sync()
    with torch.no_grad():
        for parameter in weight_sync.learner.policy.parameters():
            parameter.mul_(1.5)
    engine.ignores = True
    with pytest.raises(BrokenInvariant, match="it still has the old weights"):
        weight_sync.sync()


def test_raw_logprobs_are_recognised(made: tuple[WeightSync, Copying]) -> None:
    weight_sync, engine = made
    engine.reports_raw = True
    with pytest.raises(BrokenInvariant, match="those of temperature 1: the engine returns raw log-probabilities"):
        weight_sync.sync()


def test_bfloat16_engine_may_differ_at_one_token_but_not_on_average(made: tuple[WeightSync, Copying]) -> None:
    _, engine = made
    config = tiny_config(("generator.temperature", "0.5"), ("generator.dtype", "bfloat16"))
    weight_sync = WeightSync(config, engine, made[0].learner, made[0].tokenizer, PROBLEMS[0])
    engine.shift = 0.1
    assert weight_sync.sync()["probe_gap_max"] == pytest.approx(0.1, abs=0.01)
    engine.shift = 0.2
    with pytest.raises(BrokenInvariant, match=r"up to 0\.6 nats, and 0\.12 on average, got a gap of 0\.2"):
        weight_sync.sync()


def test_server_on_a_gpu_may_sample_in_bfloat16_unless_the_dtype_is_set(
    made: tuple[WeightSync, Copying], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight_sync, engine = made
    engine.shift = 0.1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for settings, passes in (
        (("vllm-http", "auto"), True),
        (("vllm-http", "float32"), False),
        (("vllm", "auto"), False),
    ):
        named = zip(("generator.engine", "generator.dtype"), settings, strict=True)
        config = tiny_config(("generator.temperature", "0.5"), *named)
        again = WeightSync(config, engine, weight_sync.learner, weight_sync.tokenizer, PROBLEMS[0])
        if passes:
            assert again.sync()["probe_gap_max"] == pytest.approx(0.1, abs=0.01)
        else:
            with pytest.raises(BrokenInvariant, match=r"up to 0\.005 nats"):
                again.sync()


def test_probe_names_different_dtypes(made: tuple[WeightSync, Copying]) -> None:
    _, engine = made
    config = tiny_config(("generator.temperature", "0.5"), ("generator.dtype", "bfloat16"))
    engine.shift = 0.2
    with pytest.raises(BrokenInvariant, match=r"in bfloat16, the learner in float32, .* set generator\.dtype to auto"):
        WeightSync(config, engine, made[0].learner, made[0].tokenizer, PROBLEMS[0]).sync()


def test_probe_tolerance_setting_is_used(made: tuple[WeightSync, Copying]) -> None:
    _, engine = made
    engine.reports_raw = True
    config = tiny_config(("generator.temperature", "0.5"), ("generator.probe_tolerance", "99"))
    weight_sync = WeightSync(config, engine, made[0].learner, made[0].tokenizer, PROBLEMS[0])
    assert weight_sync.sync()["probe_gap_max"] > 0.01  # type: ignore[operator]


def test_shared_weights_need_no_probe(made: tuple[WeightSync, Copying]) -> None:
    learner, tokenizer = made[0].learner, made[0].tokenizer
    engine = HFGenerator(learner.policy, tokenizer)
    assert WeightSync(made[0].config, engine, learner, tokenizer, PROBLEMS[0]).sync() == {}
    assert engine.policy_step == 3
