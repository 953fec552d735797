"""What torchrun starts on each rank for the tests of sharding: a few updates, and what came of them.

Usage: `sharded_learner.py OUT CASES`, with settings of the learner by name of the case as JSON, and perhaps a
checkpoint to go on from as `start`, and the tokens of a chunk as `chunk`; OUT/NAME gets `gradients.safetensors`,
`metrics.json` and the checkpoint `done`.
Alone or with others it does the same.
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
from mathppo.learner.backend.sharding import Ranks, join, whole
from mathppo.learner.learner import Learner
from mathppo.learner.load_learner import load_learner

NUM_UPDATES = 2


class NoTokenizer:
    def save_pretrained(self, save_directory: object, /) -> None:
        return None


def batch_of(step: int) -> Batch:
    """Seven rollouts, one without reward: not as many passes as ranks, and a row that counts nothing."""
    broken = scored_rollout(reward=None, problem_id="broken", completion_ids=[4, 5, 6])
    return collate([*tiny_rollouts(6, seed=step), broken], pad_id=0)


def move_factors(learner: Learner) -> None:
    """Give the factors that start at 0 another value, for those beside them would have no gradient."""
    factors, generator = lora.summands(learner.models), torch.Generator().manual_seed(5)
    moved = {
        name: torch.randn(factor.shape, generator=generator) / 20 if ".lora_B." in name else factor
        for name, factor in factors.items()
    }
    lora.put_back(learner.models, moved, where=Path("nowhere"))


def gradients_of(learner: Learner, batch: Batch) -> dict[str, torch.Tensor]:
    learner.accumulate(learner.experience(batch), learner.count(batch), is_first=True)
    found = {
        f"{name}.{key}": whole(parameter.grad).clone()
        for name, model in learner.models.items()
        for key, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    learner.optimizers.zero_grad()
    return found


def work(out: Path, settings: dict[str, Any], ranks: Ranks) -> None:
    settings = dict(settings)
    start = Path(settings.pop("start", ""))
    chunk = settings.pop("chunk", 0)
    learner = tiny_learner(ranks=ranks, **settings)
    learner.compute = dataclasses.replace(learner.compute, head_chunk_tokens=chunk)  # however small the vocabulary is
    move_factors(learner)
    if start.name:
        learner = load_learner(start, learner.settings, reference=start / "policy", temperature=1.0, ranks=ranks)
    gradients = gradients_of(learner, batch_of(learner.step))
    rows = []
    for _ in range(NUM_UPDATES):
        experience = learner.experience(batch_of(learner.step), skip_old=True)
        rows.append(learner.update(experience, progress=0.0, seed=learner.step))
    learner.save(out / "done", NoTokenizer())
    if ranks.rank == 0:
        save_file(gradients, out / "gradients.safetensors")
        (out / "metrics.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with join() as joined:
        for name, case in json.loads(sys.argv[2]).items():
            work(Path(sys.argv[1]) / name, case, joined)
