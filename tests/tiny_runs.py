"""Tiny models, rollouts and settings for tests of whole stages."""

import random
from collections.abc import Sequence

import torch

from graders.verdict import Status, Verdict
from mathppo.config import Config, LearnerSettings, ModelSettings, load_config
from mathppo.learner.backend import models
from mathppo.learner.backend.sharding import ALONE, Ranks
from mathppo.learner.experience import Experience
from mathppo.learner.learner import Learner
from mathppo.learner.load_learner import start_critic
from mathppo.records import FinishReason, Rollout, ScoredRollout

VOCABULARY = 13

TINY = (
    ("model.hidden_size", "32"),
    ("model.num_layers", "1"),
    ("model.num_heads", "1"),
    ("model.intermediate_size", "32"),
    ("problems.count", "64"),
    ("warmstart.steps", "6"),
    ("warmstart.batch_size", "8"),
    ("warmstart.checkpoint_every", "3"),
    ("run.iterations", "4"),
    ("run.checkpoint_every", "2"),
    ("generator.prompts_per_iteration", "8"),
    ("generator.max_new_tokens", "12"),
    ("learner.minibatches", "2"),
    ("learner.critic_pretraining_prompts", "16"),
    ("learner.critic_pretraining_epochs", "2"),
    ("evaluate.every", "2"),
    ("evaluate.num_problems", "6"),
    ("evaluate.num_problems_final", "10"),
)
"""Settings of a whole run that takes seconds and learns nothing."""


def tiny_config(*overrides: tuple[str, str]) -> Config:
    return load_config(None, [*TINY, *overrides])


def tiny_learner(*, seed: int = 0, temperature: float = 1.0, ranks: Ranks = ALONE, **settings: object) -> Learner:
    """Return a learner whose critic has a head that is not zero, so that values matter.

    `stale_anchor` is off by default, because tests learn from the same synthetic rollouts at every step.
    """
    defaults = {"minibatches": 1, "lr_schedule": "constant", "stale_anchor": "old"}
    config = LearnerSettings(**{**defaults, **settings})  # type: ignore[arg-type]
    shape = ModelSettings(hidden_size=32, num_layers=2, num_heads=2, intermediate_size=48, initializer_range=0.3)
    policy = models.build_policy(shape, vocab_size=VOCABULARY, bos_id=1, eos_id=2, pad_id=0, seed=seed)
    critic = start_critic(policy, config) if config.has_critic else None
    if critic is not None:
        generator = torch.Generator().manual_seed(seed + 1)
        for parameter in models.head_of(critic).parameters():
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    reference = None
    if config.kl_place != "none":
        reference = models.build_policy(shape, vocab_size=VOCABULARY, bos_id=1, eos_id=2, pad_id=0, seed=seed + 2)
    return Learner(policy, critic, reference, config, temperature=temperature, max_completion_tokens=12, ranks=ranks)


def old_logprobs(experience: Experience) -> torch.Tensor:
    assert experience.old is not None
    return experience.old.logprobs


def tiny_rollouts(count: int, *, seed: int = 0, samples: int = 1) -> list[ScoredRollout]:
    """Return scored rollouts of different lengths, about half of them right, some truncated."""
    rng = random.Random(seed)
    return [
        scored_rollout(
            problem_id=f"p{index // samples}",
            sample_index=index % samples,
            prompt_ids=[1, *(rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(1, 5)))],
            completion_ids=[rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(1, 9))],
            reward=float(rng.random() < 0.5),
            truncated=rng.random() < 0.3,
        )
        for index in range(count)
    ]


def scored_rollout(
    *,
    prompt_ids: Sequence[int] = (1, 5),
    completion_ids: Sequence[int] = (6, 2),
    reward: float | None = 1.0,
    truncated: bool = False,
    problem_id: str = "p0",
    sample_index: int = 0,
    status: Status | None = None,
    behaviour_logprob: float = -1.0,
    policy_step: int = 0,
    seed: int = 7,
) -> ScoredRollout:
    status = status or (Status.ERROR if reward is None else Status.CORRECT if reward > 0 else Status.INCORRECT)
    rollout = Rollout(
        problem_id=problem_id,
        sample_index=sample_index,
        prompt_ids=list(prompt_ids),
        completion_ids=list(completion_ids),
        completion="text",
        behaviour_logprobs=[behaviour_logprob] * len(completion_ids),
        finish_reason=FinishReason.LENGTH if truncated else FinishReason.STOP,
        policy_step=policy_step,
        seed=seed,
    )
    verdict = Verdict(status=status, answer=None, grader="test", method="test", detail="", duration_s=0.0)
    return ScoredRollout(rollout=rollout, verdict=verdict, reward=reward)
