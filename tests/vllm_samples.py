"""A tiny policy, requests for it, and a comparison of rollouts with a float32 forward pass."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from mathppo.config import ModelSettings
from mathppo.generator.base import Request, Sampling
from mathppo.learner.backend import models
from mathppo.learner.backend.models import PreTrainedModel
from mathppo.prompts import PreTrainedTokenizerBase, build_equation_tokenizer
from mathppo.records import Rollout

SAMPLING = Sampling(max_new_tokens=24, stop_token_ids=(2, 3), temperature=0.7)
GREEDY = Sampling(max_new_tokens=24, stop_token_ids=(2, 3), temperature=0.0)


SHAPE = ModelSettings(context_tokens=320)
"""The quickstart's shape with a longer context; heads of size 32 are the smallest that vLLM supports on a CPU."""


def build(seed: int) -> PreTrainedModel:
    """Return a random policy with a tied head."""
    vocab_size = len(build_equation_tokenizer())
    return models.build_policy(SHAPE, vocab_size=vocab_size, bos_id=1, eos_id=2, pad_id=0, seed=seed)


def save(policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> Path:
    """Write a model folder whose generation_config differs from the tests' sampling parameters."""
    assert policy.generation_config is not None
    policy.generation_config.update(repetition_penalty=1.5, temperature=0.3, top_k=3, do_sample=True)
    policy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def requests(count: int, *, length: int = 4, seed: int = 1000) -> list[Request]:
    return [
        Request(
            problem_id=f"p{i}",
            sample_index=0,
            prompt_ids=(1, *(3 + (7 * i + 5 * place) % 30 for place in range(length))),
            seed=seed + i,
        )
        for i in range(count)
    ]


def by_problem(rollouts: Iterable[Rollout]) -> dict[str, Rollout]:
    return {rollout.problem_id: rollout for rollout in rollouts}


@torch.no_grad()
def largest_gap(rollouts: Sequence[Rollout], policy: PreTrainedModel, temperature: float) -> float:
    """Return the largest difference between a behaviour log-probability and log_softmax(logits / temperature)."""
    gaps = []
    for rollout in rollouts:
        ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
        logits = policy(input_ids=ids).logits[0, len(rollout.prompt_ids) - 1 : -1].double()
        logprobs = torch.log_softmax(logits / temperature, dim=-1)
        chosen = logprobs.gather(1, torch.tensor(rollout.completion_ids)[:, None]).squeeze(1)
        gaps.append((chosen - torch.tensor(rollout.behaviour_logprobs)).abs().max().item())
    return max(gaps)
