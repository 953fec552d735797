"""Stage `learn`: scored rollouts and a checkpoint to the next checkpoint."""

from collections.abc import Sequence
from pathlib import Path

from mathppo.batch import Batch, collate
from mathppo.config import Config
from mathppo.errors import BadInput, BadSetting, StageFailed
from mathppo.learner import load_learner
from mathppo.learner.backend import checkpoint
from mathppo.learner.backend.sharding import ALONE, Ranks
from mathppo.learner.learner import Learner
from mathppo.metrics import CriticPretraining, MetricRow, append_row
from mathppo.progress import Reporter
from mathppo.prompts import PreTrainedTokenizerBase, special_ids
from mathppo.records import ScoredRollout
from mathppo.seeds import derive_seed

HELD_OUT_SHARE = 0.125
"""Share of the critic's pretraining rollouts that are held out to measure it."""


def require_whole_distribution(config: Config) -> None:
    """Check that the sampler leaves no tokens out (note M-learner-6).

    Raises:
        BadSetting: `generator.top_p` or `generator.top_k` filters.
    """
    generator = config.generator
    if generator.top_p < 1 or generator.top_k:
        raise BadSetting(
            "generator: expected top_p=1 and top_k=0 for training, whose ratios are of the whole distribution, got "
            f"top_p={generator.top_p:g} and top_k={generator.top_k}; filter in generate and evaluate only"
        )


def open_learner(config: Config, folder: Path, ranks: Ranks = ALONE, *, reference: Path | None = None) -> Learner:
    """Load a learner from a checkpoint; a policy without a critic gets the initial one of the settings.

    Args:
        config: of the run.
        folder: the checkpoint.
        ranks: the processes that share the work.
        reference: folder of the reference policy of the KL term; None = that of `model.path`, or before the first
            update the checkpoint's policy.

    Raises:
        BadCheckpoint: missing, damaged, or of another kind.
        BadSetting: settings that the learner rejects, or a KL term without a reference policy.
    """
    require_whole_distribution(config)
    step = checkpoint.verify_checkpoint(folder).step
    if reference is None and config.model.path:
        reference = checkpoint.policy_folder(Path(config.model.path))
    if reference is None and step > 0 and config.learner.kl_place != "none":
        raise BadSetting(
            "model.path: expected the folder of the reference policy, which learner.kl_place="
            f'"{config.learner.kl_place}" needs, got none for {folder} after {step} updates; give the checkpoint that '
            "the run started from"
        )
    reference = reference or folder / "policy"
    is_started = step > 0 or (folder / "critic").is_dir()
    begin = load_learner.load_learner if is_started else load_learner.start_learner
    return begin(
        folder if is_started else folder / "policy",
        config.learner,
        reference=reference,
        temperature=config.generator.temperature,
        max_completion_tokens=config.generator.max_new_tokens,
        seed=derive_seed(config.run.seed, "factors"),
        ranks=ranks,
    )


def make_batch(scored: Sequence[ScoredRollout], config: Config, tokenizer: PreTrainedTokenizerBase) -> Batch:
    """Collate scored rollouts; truncated ones are handled as the settings say."""
    batch = collate(scored, pad_id=special_ids(tokenizer).pad, drop_truncated=config.learner.truncation == "mask")
    if not batch.loss_mask.any():
        raise StageFailed(
            f"learn: none of the {len(scored)} rollouts can be learnt from (grader errors, or truncated ones under "
            'learner.truncation="mask"); raise generator.max_new_tokens or look at the verdicts'
        )
    return batch


def require_known_steps(learner: Learner, scored: Sequence[ScoredRollout]) -> None:
    """Check that the rollouts are of policy steps that the update can learn from.

    Rollouts of an earlier step are allowed if `learner.stale_anchor = "behaviour"` (note M-learner-2): their ratio and
    its clip refer to the policy that sampled them, and `stale_share` counts them.

    Raises:
        BadInput: rollouts of a later step, or of an earlier one if the ratio would refer to the learner instead.
    """
    steps = sorted({item.rollout.policy_step for item in scored})
    if steps and steps[-1] > learner.step:
        raise BadInput(
            f"learn: expected rollouts of step {learner.step} or before, the checkpoint's, got those of {steps}; give "
            "the checkpoint that sampled them"
        )
    if steps and steps[0] < learner.step and learner.settings.stale_anchor != "behaviour":
        raise BadInput(
            f'learn: expected rollouts of step {learner.step} only while learner.stale_anchor is "old", got those of '
            f'{steps}; set it to "behaviour", or give the checkpoint that sampled them'
        )


def require_known_tokens(learner: Learner, scored: Sequence[ScoredRollout]) -> None:
    """Check that every token id has a row in the policy's embedding.

    Raises:
        BadInput: a token id that the policy does not have.
    """
    size = learner.policy.config.get_text_config().vocab_size
    for rollout in (item.rollout for item in scored):
        for ids in (rollout.prompt_ids, rollout.completion_ids):
            if min(ids) < 0 or max(ids) >= size:
                raise BadInput(
                    f"rollout {rollout.problem_id!r} sample {rollout.sample_index}: expected token ids from 0 to "
                    f"{size - 1}, the policy's, got {min(ids)} to {max(ids)}; give the checkpoint that sampled it"
                )


def learn(
    learner: Learner, scored: Sequence[ScoredRollout], config: Config, tokenizer: PreTrainedTokenizerBase
) -> MetricRow:
    """Update the learner on one iteration's rollouts and return its metrics.

    Raises:
        BadInput: see `require_known_steps` and `require_known_tokens`.
        StageFailed: no rollout can be learnt from.
    """
    require_known_steps(learner, scored)
    require_known_tokens(learner, scored)
    iteration = learner.step
    experience = learner.experience(make_batch(scored, config, tokenizer), skip_old=True)
    return learner.update(
        experience,
        progress=min(iteration / max(config.run.iterations, 1), 1.0),
        seed=derive_seed(config.run.seed, "minibatches", iteration),
    )


def split_problems(batch: Batch) -> tuple[Batch, Batch]:
    """Split into rollouts to fit and held-out ones, at least `HELD_OUT_SHARE`; no problem is in both.

    Raises:
        StageFailed: all rollouts are of one problem.
    """
    rows = batch.group.argsort(stable=True)
    num_held_out = max(1, round(HELD_OUT_SHARE * batch.num_rows))
    groups = batch.group[rows]
    is_held_out = groups <= groups[num_held_out - 1]
    if is_held_out.all():
        raise StageFailed(
            f"critic pretraining: expected rollouts of at least two problems, got {batch.num_rows} of one; raise "
            "learner.critic_pretraining_prompts"
        )
    return batch.rows(rows[~is_held_out]), batch.rows(rows[is_held_out])


def pretrain_critic(
    learner: Learner,
    scored: Sequence[ScoredRollout],
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    log: Path,
    reporter: Reporter,
) -> None:
    """Fit the critic to rollouts of the frozen policy, until it explains enough held-out variance or the epochs end.

    The first rank appends a row per epoch to the metrics log.

    Raises:
        BadInput: see `require_known_tokens`.
        StageFailed: no rollout can be learnt from, or all are of one problem.
    """
    settings = config.learner
    require_known_tokens(learner, scored)
    batch = make_batch(scored, config, tokenizer)
    train, held_out = split_problems(batch)
    seed = derive_seed(config.run.seed, "critic pretraining")
    with reporter.task("pretrain critic", settings.critic_pretraining_epochs) as advance:
        epochs = learner.pretrain_critic(train, held_out, seed=seed)
        for epoch, row in enumerate(epochs, start=1):
            if learner.passes.ranks.rank == 0:
                append_row(log, CriticPretraining(epoch=epoch, metrics=row))
            explained = row.get("explained_variance_outcome", 0.0)
            assert isinstance(explained, float)
            advance(1, loss=row["value_loss"], explained=explained)
            if explained >= settings.critic_pretraining_gate:
                break
