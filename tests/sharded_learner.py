"""Program for torchrun in the tests of sharding: runs a few updates and writes their results.

Usage: `sharded_learner.py OUT CASES`. CASES is JSON: learner settings by case, with optional keys `start`, a checkpoint
to resume from, and `chunk`, tokens per head chunk. OUT/CASE gets `gradients.safetensors`, `metrics.json` and the
checkpoint `done`. A single process does the same work.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_runs import scored_rollout, tiny_learner, tiny_rollouts

from mathppo.batch import Batch, collate
from mathppo.learner.backend import lora
from mathppo.learner.backend.sharding import DistContext, full_tensor, join
from mathppo.learner.learner import Learner
from mathppo.learner.load_learner import load_learner

NUM_UPDATES = 2


class NoTokenizer:
    def save_pretrained(self, save_directory: object, /) -> None:
        return None


def batch_of(step: int) -> Batch:
    """Collate seven rollouts, one without a reward: an uneven number of micro-batches, and a row without a loss."""
    broken = scored_rollout(reward=None, problem_id="broken", completion_ids=[4, 5, 6])
    return collate([*tiny_rollouts(6, seed=step), broken], pad_id=0)


def move_factors(learner: Learner) -> None:
    """Set the factors that start at 0 to other values; otherwise the other factors would have no gradient."""
    factors, generator = lora.adapter_state(learner.models), torch.Generator().manual_seed(5)
    moved = {
        name: torch.randn(factor.shape, generator=generator) / 20 if ".lora_B." in name else factor
        for name, factor in factors.items()
    }
    lora.load_adapter_state(learner.models, moved, where=Path("nowhere"))


def gradients_of(learner: Learner, batch: Batch) -> dict[str, torch.Tensor]:
    learner.accumulate(learner.experience(batch), learner.count(batch), is_first=True)
    found = {
        f"{name}.{key}": full_tensor(parameter.grad).clone()
        for name, model in learner.models.items()
        for key, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    learner.optimizers.zero_grad()
    return found


def work(out: Path, settings: dict[str, Any], dist: DistContext) -> None:
    settings = dict(settings)
    start = Path(settings.pop("start", ""))
    chunk = settings.pop("chunk", 0)
    learner = tiny_learner(dist=dist, **settings)
    learner.options = dataclasses.replace(learner.options, head_chunk_tokens=chunk)  # regardless of the vocabulary
    move_factors(learner)
    if start.name:
        learner = load_learner(start, learner.settings, reference=start / "policy", temperature=1.0, dist=dist)
    gradients = gradients_of(learner, batch_of(learner.step))
    rows = []
    for _ in range(NUM_UPDATES):
        experience = learner.experience(batch_of(learner.step), for_update=True)
        rows.append(learner.update(experience, progress=0.0, seed=learner.step))
    learner.save(out / "done", NoTokenizer())
    if dist.rank == 0:
        save_file(gradients, out / "gradients.safetensors")
        (out / "metrics.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with join() as joined:
        for name, case in json.loads(sys.argv[2]).items():
            work(Path(sys.argv[1]) / name, case, joined)
