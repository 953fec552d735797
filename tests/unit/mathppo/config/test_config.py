"""Settings: defaults, files, overrides, and error messages."""

from pathlib import Path

import msgspec
import pytest

from mathppo.config import Config, LearnerSettings, encode_config, load_config, settings_of
from mathppo.errors import BadSetting


def test_overrides_take_precedence_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[learner]\nlr = 1e-5\ncritic_lr = 2e-5\n")
    config = load_config(file, [("learner.lr", "3e-6"), ("reward.kind", "random"), ("learner.whiten", "false")])
    assert config.learner.lr == 3e-6
    assert config.learner.critic_lr == 2e-5
    assert config.learner.whiten is False
    assert config.reward.kind == "random"
    assert config.learner.gamma == Config().learner.gamma


def test_encoded_configuration_is_read_back_unchanged(tmp_path: Path) -> None:
    config = load_config(None, [("learner.dual_clip", "3.0"), ("problems.mix", '[["linear", 2, 0.5]]')])
    file = tmp_path / "config.toml"
    file.write_bytes(encode_config(config))
    assert load_config(file) == config


def test_none_turns_a_setting_off(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[learner]\ntarget_kl = 0.1\n")
    assert load_config(file, [("learner.target_kl", "none")]).learner.target_kl is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("learner.lrr", "1", r"learner\.lrr: unknown setting; did you mean learner\.lr\?"),
        ("lerner.lr", "1", r"lerner\.lr: unknown setting; did you mean learner\.lr\?"),
        ("nothing.at_all", "1", r"nothing\.at_all: unknown setting; sections are run, problems"),
        ("learner", "1", r"expected a setting as --section\.name=value"),
        ("learner.lr", "fast", r"learner\.lr: expected float, got str"),
        ("learner.lr", "-1", r"learner\.lr: expected float > 0\.0, got -1"),
        ("learner.epochs", "2.5", r"learner\.epochs: expected int, got float"),
        ("generator.max_new_tokens", "0", r"generator\.max_new_tokens: expected int >= 1, got 0"),
        ("reward.kind", "luck", r"reward\.kind: expected one of 'grader', 'random', 'format', got 'luck'"),
        ("problems.mix", "[]", r"problems\.mix: expected array of length >= 1"),
        ("learner.algorithm", "rloo", r"generator\.samples_per_prompt: expected at least 2"),
        ("learner.minibatches", "9999", r"learner\.minibatches: expected at most 128, the rollouts per iteration"),
        ("model.num_heads", "5", r"model\.hidden_size: expected a multiple of twice model\.num_heads=5"),
        ("learner.kl_coef", "0.1", r'learner\.kl_coef: expected 0 while learner\.kl_place is "none"'),
        ("learner.kl_target", "0.1", r"learner\.kl_target: expected none while learner\.kl_coef is 0, got 0\.1"),
    ],
)
def test_invalid_setting_is_reported_with_path_and_allowed_values(key: str, value: str, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        load_config(None, [(key, value)])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("shared_trunk", True, r"learner\.shared_trunk: expected no settings of a separate critic trunk"),
        ("algorithm", "reinforce++", r"learner\.critic_warmup_iterations: expected 0 with .*reinforce\+\+"),
    ],
)
def test_critic_settings_without_a_critic_are_rejected(name: str, value: object, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        Config(learner=LearnerSettings(**{"critic_num_layers": 1, "critic_warmup_iterations": 1, name: value}))  # type: ignore[arg-type]


def test_k1_is_rejected_in_the_loss_and_accepted_in_the_reward() -> None:
    overrides = [("learner.kl_kind", "k1"), ("learner.kl_coef", "0.1")]
    assert load_config(None, [*overrides, ("learner.kl_place", "reward")]).learner.kl_kind == "k1"
    with pytest.raises(BadSetting, match=r'learner\.kl_kind: expected "k2" or "k3" with learner\.kl_place="loss"'):
        load_config(None, [*overrides, ("learner.kl_place", "loss")])


def test_extra_epochs_need_a_critic() -> None:
    overrides = [("learner.algorithm", "reinforce++"), ("learner.critic_extra_epochs", "2")]
    with pytest.raises(BadSetting, match=r"learner\.critic_extra_epochs: expected 0 .* no critic, got 2"):
        load_config(None, overrides)


def test_bootstrapping_needs_a_critic() -> None:
    overrides = [("learner.algorithm", "reinforce++"), ("learner.truncation", "bootstrap")]
    with pytest.raises(BadSetting, match="no critic to bootstrap from"):
        load_config(None, overrides)


@pytest.mark.parametrize("key", ["run.num_threads", "grader.num_workers", "grader.memory_limit_bytes"])
def test_excessive_number_is_rejected(key: str) -> None:
    with pytest.raises(BadSetting, match=f"^{key}: expected int <= [0-9]+, got 999999999999999999"):
        load_config(None, [(key, "999999999999999999")])


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize("key", ["learner.lr", "reward.correct", "generator.temperature", "grader.time_limit_s"])
def test_number_that_is_not_finite_is_rejected(key: str, value: str) -> None:
    with pytest.raises(BadSetting, match=f"^{key}: expected a finite number, got (nan|-?inf)$"):
        load_config(None, [(key, value)])


def test_missing_broken_or_flat_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="found nothing at"):
        load_config(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[learner\n")
    with pytest.raises(BadSetting, match="expected a TOML file at"):
        load_config(broken)
    flat = tmp_path / "flat.toml"
    flat.write_text("learner = 3\n")
    with pytest.raises(BadSetting, match="learner: expected a section of settings, got 3"):
        load_config(flat)


def test_every_setting_has_a_description() -> None:
    for section in msgspec.structs.fields(Config):
        for name, _, description, _ in settings_of(section.type):
            assert description, f"{section.name}.{name}"
