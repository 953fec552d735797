"""Stage `learn`: scored rollouts and a checkpoint to the next checkpoint.

Touches: checkpoint folders, through the learner.
"""

from collections.abc import Sequence
from pathlib import Path

from mathppo.batch import Batch, collate
from mathppo.config import Config
from mathppo.errors import StageFailed
from mathppo.learner import checkpoint, opening
from mathppo.learner.learner import Learner
from mathppo.learner.sharding import ALONE, Ranks
from mathppo.metrics import CriticPretraining, MetricRow, append_row
from mathppo.progress import Reporter
from mathppo.prompts import PreTrainedTokenizerBase, special_ids
from mathppo.records import ScoredRollout
from mathppo.seeds import derive_seed

HELD_OUT_SHARE = 0.125
"""Share of the critic's pretraining rollouts that measure it and are never fitted."""


def open_learner(config: Config, folder: Path, ranks: Ranks = ALONE) -> Learner:
    """Load a learner from a checkpoint; a policy that has no critic yet gets the one that the settings start from.

    Raises:
        BadCheckpoint: missing, damaged, or of another kind.
    """
    reference = checkpoint.policy_folder(Path(config.model.path)) if config.model.path else folder / "policy"
    is_started = checkpoint.verify_checkpoint(folder).step > 0 or (folder / "critic").is_dir()
    begin = opening.load_learner if is_started else opening.start_learner
    return begin(
        folder if is_started else folder / "policy",
        config.learner,
        reference=reference,
        temperature=config.generator.temperature,
        max_completion_tokens=config.generator.max_new_tokens,
        ranks=ranks,
    )


def make_batch(scored: Sequence[ScoredRollout], config: Config, tokenizer: PreTrainedTokenizerBase) -> Batch:
    """Collate scored rollouts as the settings want truncation handled."""
    batch = collate(scored, pad_id=special_ids(tokenizer).pad, drop_truncated=config.learner.truncation == "mask")
    if not batch.loss_mask.any():
        raise StageFailed(
            f"learn: none of the {len(scored)} rollouts can be learnt from (grader errors, or truncated ones under "
            'learner.truncation="mask"); raise generator.max_new_tokens or look at the verdicts'
        )
    return batch


def learn(
    learner: Learner, scored: Sequence[ScoredRollout], config: Config, tokenizer: PreTrainedTokenizerBase
) -> MetricRow:
    """Update the learner on one iteration's rollouts and give what was measured."""
    iteration = learner.step
    experience = learner.experience(make_batch(scored, config, tokenizer), skip_old=True)
    return learner.update(
        experience,
        progress=min(iteration / max(config.run.iterations, 1), 1.0),
        seed=derive_seed(config.run.seed, "minibatches", iteration),
    )


def pretrain_critic(
    learner: Learner,
    scored: Sequence[ScoredRollout],
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    log: Path,
    reporter: Reporter,
) -> None:
    """Fit the critic to the frozen policy's rollouts until it knows enough of held-out ones, or the epochs end."""
    settings = config.learner
    batch = make_batch(scored, config, tokenizer)
    num_held_out = max(1, round(HELD_OUT_SHARE * batch.num_rows))
    rows = batch.group.argsort(stable=True)  # one problem's samples stay on one side
    train, held_out = batch.rows(rows[num_held_out:]), batch.rows(rows[:num_held_out])
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
