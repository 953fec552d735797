"""Loads learners from folders: a resumed learner, a new learner, and the reference policy."""

from pathlib import Path

from mathppo.config import LearnerSettings
from mathppo.errors import BadCheckpoint
from mathppo.learner.backend import checkpoint, models
from mathppo.learner.backend.models import PreTrainedModel
from mathppo.learner.backend.optimizers import CRITIC, POLICY
from mathppo.learner.backend.sharding import SINGLE_PROCESS, DistContext
from mathppo.learner.learner import Learner


def load_learner(
    path: Path,
    settings: LearnerSettings,
    *,
    reference: Path,
    temperature: float,
    max_completion_tokens: int | None = None,
    seed: int = 0,
    dist: DistContext = SINGLE_PROCESS,
) -> Learner:
    """Restore a learner from a checkpoint, exactly as it was saved by any number of processes.

    Args:
        path: the checkpoint.
        settings: of the learner.
        reference: folder of the reference policy; read only if the settings use a KL.
        temperature: the sampler's.
        max_completion_tokens: the sampler's budget.
        seed: of the initial LoRA factors.
        dist: the processes that share the work.

    Raises:
        BadCheckpoint: missing, damaged, of another model, or without the critic that the algorithm needs.
    """
    step = checkpoint.verify_checkpoint(path).step
    policy, critic = models.load_policy(path / POLICY), None
    if settings.has_critic:
        if not (path / CRITIC).is_dir():
            raise BadCheckpoint(
                f"{path}: expected a critic next to the policy for learner.algorithm={settings.algorithm!r}, found "
                "none; start from a checkpoint of that algorithm"
            )
        critic = models.load_critic(path / CRITIC)
        if settings.shared_trunk:
            models.share_trunk(critic, policy)
    learner = Learner(
        policy,
        critic,
        load_reference(reference, settings),
        settings,
        temperature=temperature,
        max_completion_tokens=max_completion_tokens,
        step=step,
        seed=seed,
        dist=dist,
    )
    learner.restore(path)
    return learner


def start_learner(
    path: Path,
    settings: LearnerSettings,
    *,
    reference: Path,
    temperature: float,
    max_completion_tokens: int | None = None,
    seed: int = 0,
    dist: DistContext = SINGLE_PROCESS,
) -> Learner:
    """Build the learner of a policy that has no critic yet; arguments and errors as in `load_learner`."""
    policy = models.load_policy(path)
    return Learner(
        policy,
        start_critic(policy, settings) if settings.has_critic else None,
        load_reference(reference, settings),
        settings,
        temperature=temperature,
        max_completion_tokens=max_completion_tokens,
        seed=seed,
        dist=dist,
    )


def start_critic(policy: PreTrainedModel, settings: LearnerSettings) -> PreTrainedModel:
    """Build or load the critic that the settings start from; a new critic's values are 0.

    Raises:
        BadCheckpoint: `critic_from` is missing, damaged, or has a smaller vocabulary than the policy.
    """
    if settings.shared_trunk:
        return models.build_shared_critic(policy)
    if not settings.critic_from:
        return models.build_critic(policy, num_layers=settings.critic_num_layers)
    critic = models.open_critic(Path(settings.critic_from), num_layers=settings.critic_num_layers)
    sizes = critic.config.get_text_config().vocab_size, policy.config.get_text_config().vocab_size
    if sizes[0] < sizes[1]:
        raise BadCheckpoint(
            f"{settings.critic_from}: expected a critic with a vocabulary of at least the policy's {sizes[1]} tokens, "
            f"got {sizes[0]}; start from a model with the policy's tokenizer"
        )
    return critic


def load_reference(path: Path, settings: LearnerSettings) -> PreTrainedModel | None:
    """Load the frozen reference policy; None if the settings use no KL."""
    return None if settings.kl_place == "none" else models.load_policy(path).requires_grad_(False)
