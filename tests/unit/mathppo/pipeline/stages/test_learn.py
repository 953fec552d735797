"""Stage `learn`: which rollouts it accepts or masks, and the settings it passes to the learner."""

import math
from pathlib import Path

import msgspec
import pytest
from tiny_runs import scored_rollout, tiny_config, tiny_learner, tiny_rollouts

from mathppo.batch import collate
from mathppo.errors import BadInput, BadSetting, StageFailed
from mathppo.learner.backend import models
from mathppo.learner.learner import Learner
from mathppo.metrics import read_rows
from mathppo.pipeline.stages.generate import sampling_of
from mathppo.pipeline.stages.learn import learn, make_batch, open_learner, pretrain_critic, split_problems
from mathppo.pipeline.train import train
from mathppo.progress import SILENT
from mathppo.prompts import PreTrainedTokenizerBase, build_equation_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return build_equation_tokenizer()


def at_step(step: int, **settings: object) -> Learner:
    learner = tiny_learner(**settings)  # type: ignore[arg-type]
    learner.step = step
    return learner


def test_rollouts_of_an_earlier_step_are_learnt_from_and_reported(tokenizer: PreTrainedTokenizerBase) -> None:
    scored = [scored_rollout(policy_step=1 + i % 2, reward=float(i % 2), problem_id=str(i)) for i in range(4)]
    row = learn(at_step(2, stale_anchor="behaviour"), scored, tiny_config(), tokenizer)
    assert row["stale_share"] == 0.5


def test_rollouts_of_an_earlier_step_are_rejected_if_the_clip_refers_to_the_learner(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    learner, scored = at_step(2, stale_anchor="old"), [scored_rollout(policy_step=1), scored_rollout(policy_step=2)]
    with pytest.raises(BadInput, match=r'of step 2 only while learner\.stale_anchor is "old", got those of \[1, 2\]'):
        learn(learner, scored, tiny_config(), tokenizer)
    assert "policy_loss" in learn(learner, scored[1:], tiny_config(), tokenizer)


@pytest.mark.parametrize("anchor", ["behaviour", "old"])
def test_rollouts_of_a_later_step_are_rejected(anchor: str, tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(BadInput, match=r"expected rollouts of step 2 or before, the checkpoint's, got those of \[3\]"):
        learn(at_step(2, stale_anchor=anchor), [scored_rollout(policy_step=3)], tiny_config(), tokenizer)


@pytest.mark.parametrize("field", ["prompt_ids", "completion_ids"])
@pytest.mark.parametrize("token", [-1, 10_000, 2**64 - 1])
def test_rollouts_of_another_vocabulary_are_rejected(
    field: str, token: int, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    good = scored_rollout(problem_id="other")
    foreign = msgspec.structs.replace(good.rollout, **{field: [token] * len(getattr(good.rollout, field))})
    scored = [scored_rollout(), msgspec.structs.replace(good, rollout=foreign)]
    with pytest.raises(BadInput, match=rf"rollout 'other' sample 0: expected token ids from 0 to \d+.*got {token} to"):
        learn(tiny_learner(), scored, tiny_config(), tokenizer)
    with pytest.raises(BadInput, match="the policy's"):
        pretrain_critic(tiny_learner(), scored, tiny_config(), tokenizer, tmp_path / "log", SILENT)


def test_truncated_rollouts_leave_the_losses_only_if_masked(tokenizer: PreTrainedTokenizerBase) -> None:
    scored = [scored_rollout(truncated=True, problem_id="cut"), scored_rollout()]
    for truncation in ("terminal", "bootstrap", "penalty", "mask"):
        batch = make_batch(scored, tiny_config(("learner.truncation", truncation)), tokenizer)
        assert batch.loss_mask.any(1).tolist() == [truncation != "mask", True]
    with pytest.raises(StageFailed, match="learn: none of the 1 rollouts can be learnt from"):
        make_batch(scored[:1], tiny_config(("learner.truncation", "mask")), tokenizer)


def test_learning_rate_follows_the_progress_of_the_run(tokenizer: PreTrainedTokenizerBase) -> None:
    learner = at_step(3, lr_schedule="linear", lr=1e-3)
    row = learn(learner, [scored_rollout(policy_step=3)], tiny_config(("run.iterations", "4")), tokenizer)
    assert row["policy_lr"] == pytest.approx(0.25e-3)


def test_iteration_of_one_step_needs_no_frozen_pass_of_the_policy(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    learner, passes = tiny_learner(minibatches=1, micro_batch_size=128), []
    learner.policy.register_forward_hook(lambda *_: passes.append(1))
    learn(learner, tiny_rollouts(8), tiny_config(), tokenizer)
    assert len(passes) == 1


@pytest.mark.parametrize(("gate", "num_epochs"), [(-1e9, 1), (1.0, 3)])
def test_pretraining_ends_at_the_gate_or_with_the_epochs(
    gate: float, num_epochs: int, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    settings = (("learner.critic_pretraining_gate", str(gate)), ("learner.critic_pretraining_epochs", "3"))
    learner = tiny_learner(critic_pretraining_epochs=3)
    log = tmp_path / "metrics.jsonl"
    pretrain_critic(learner, tiny_rollouts(16), tiny_config(*settings), tokenizer, log, SILENT)
    epochs, _ = read_rows(log)
    assert [row.epoch for row in epochs] == list(range(1, num_epochs + 1))
    assert all(math.isfinite(row.metrics["value_loss"]) for row in epochs)  # type: ignore[arg-type]


def test_critic_is_measured_on_problems_it_is_not_fitted_to() -> None:
    scored = [
        scored_rollout(problem_id=f"p{i % 7}", prompt_ids=[1, 3 + i % 7], sample_index=i // 7, reward=float(i % 2))
        for i in range(21)
    ]
    batch = collate(scored, pad_id=0)
    train, held_out = split_problems(batch)
    prompts = [set(part.ids[:, 1].tolist()) for part in (train, held_out)]
    assert (train.num_rows, held_out.num_rows) == (18, 3)
    assert prompts == [{4, 5, 6, 7, 8, 9}, {3}]
    with pytest.raises(StageFailed, match="expected rollouts of at least two problems, got 3 of one"):
        split_problems(held_out)


def test_kl_after_the_first_update_needs_a_reference_policy(tmp_path: Path) -> None:
    config = tiny_config(("learner.kl_place", "loss"), ("learner.kl_coef", "0.1"), ("run.iterations", "2"))
    run = train(config, tmp_path / "run", SILENT)
    with pytest.raises(BadSetting, match=r"model\.path: expected the folder of the reference policy.* after 2 updates"):
        open_learner(config, run.checkpoint(2))
    named = tiny_config(*[("learner.kl_place", "loss"), ("model.path", str(run.warmstart))])
    first, warm = open_learner(named, run.checkpoint(2)).reference, models.load_policy(run.warmstart / "policy")
    assert first is not None
    assert all(x.equal(y) for x, y in zip(first.parameters(), warm.parameters(), strict=True))


@pytest.mark.parametrize("filtered", [("generator.top_p", "0.9"), ("generator.top_k", "5")])
def test_filtered_sampler_is_rejected_for_training(
    filtered: tuple[str, str], tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    config = tiny_config(filtered)
    sampling = sampling_of(config, tokenizer)
    assert {"generator.top_p": sampling.top_p, "generator.top_k": sampling.top_k}[filtered[0]] == float(filtered[1])
    with pytest.raises(BadSetting, match=r"expected top_p=1 and top_k=0 for training, .* filter in generate and eval"):
        train(config, tmp_path / "run", SILENT)
    assert not (tmp_path / "run").exists()
    with pytest.raises(BadSetting, match="expected top_p=1 and top_k=0 for training"):
        open_learner(config, tmp_path)
