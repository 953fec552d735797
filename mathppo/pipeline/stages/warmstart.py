"""Stage `warmstart`: training problems to a policy with partial skill, taught by worked derivations with slips.

Clean derivations leave a model that solves everything, or one that cannot compute yet. Derivations with slips in a
share of them leave a policy that computes well and has learnt the slips (note M-recipe-1).
"""

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mathppo.config import Config
from mathppo.errors import BadCheckpoint, BadInput
from mathppo.learner.backend import checkpoint, models
from mathppo.learner.supervised import Example, learning_rate, make_optimizer, supervised_step
from mathppo.problems import demonstrate
from mathppo.progress import Reporter
from mathppo.prompts import PreTrainedTokenizerBase, build_equation_tokenizer, encode_prompt, encode_text, special_ids
from mathppo.records import Problem
from mathppo.seeds import derive_seed
from mathppo.storage import store
from mathppo.storage.files import check_free, remove_folder, write_file

ORIGIN = "origin"
"""Folder in a warm start's checkpoint with the fingerprint of what it was made from."""


def warmstart(config: Config, problems: Sequence[Problem], out: Path, reporter: Reporter) -> None:
    """Write a checkpoint of step 0 at `out`: `model.path` unchanged, or a new model taught for `warmstart.steps` steps.

    A killed run resumes from its last state, at most `warmstart.checkpoint_every` steps back, to the same weights.

    Raises:
        BadArtefact: `out` or the folder of its states exists and is not a checkpoint.
        BadCheckpoint: a checkpoint or state there is damaged, or was made from other problems or settings.
        BadInput: a problem without a derivation, or one that the tokenizer cannot encode.
    """
    origin = _origin_of(config, problems)
    if _exists(out, origin):
        checkpoint.verify_checkpoint(out)
        return
    if config.model.path:
        folder = checkpoint.policy_folder(Path(config.model.path))
        parts = (models.load_policy(folder), models.load_tokenizer(folder))
        checkpoint.save_checkpoint(out, step=0, folders={"policy": parts, ORIGIN: (origin,)}, optimizers={})
        return
    state = out.with_name(f"{out.name}.partial")
    teach(config, problems, start=state if _exists(state, origin) else None, out=state, reporter=reporter)
    parts = models.load_policy(state / "policy"), models.load_tokenizer(state / "policy")
    checkpoint.save_checkpoint(out, step=0, folders={"policy": parts, ORIGIN: (origin,)}, optimizers={})
    remove_folder(state)


@dataclass(frozen=True)
class Origin:
    """Fingerprint of the problems and settings of a warm start, saved in its checkpoint.

    Args:
        made_from: the fingerprint.
    """

    made_from: str

    def save_pretrained(self, save_directory: str | os.PathLike[str], /) -> None:
        write_file(Path(save_directory) / "made_from", self.made_from)


def _origin_of(config: Config, problems: Sequence[Problem]) -> Origin:
    settings = msgspec.structs.replace(config.warmstart, checkpoint_every=1)  # has no effect on the weights
    template, seed = config.problems.template, config.run.seed
    made_from = {"settings": settings, "model": config.model, "template": template, "seed": seed}
    return Origin(store.fingerprint(stage="warmstart", problems=list(problems), **made_from))


def _exists(folder: Path, origin: Origin) -> bool:
    """Return True if the folder is a checkpoint of this origin, False if there is nothing; raise for anything else."""
    checkpoint.recover(folder)
    if not (folder / checkpoint.HEADER).is_file():
        check_free(folder)
        return False
    file = folder / ORIGIN / "made_from"
    found = file.read_text() if file.is_file() else ""
    if found != origin.made_from:
        raise BadCheckpoint(
            f"{folder}: was made from other problems or settings; delete it, or choose another output folder"
        )
    return True


def teach(config: Config, problems: Sequence[Problem], *, start: Path | None, out: Path, reporter: Reporter) -> None:
    """Train on derivations up to `warmstart.steps`, saving resumable states at `out`; resume from `start` if given."""
    settings = config.warmstart
    if start is None:
        step, tokenizer = 0, build_equation_tokenizer()
        policy = _new_policy(config, tokenizer)
        optimizer = make_optimizer(policy)
    else:
        step = checkpoint.verify_checkpoint(start).step
        tokenizer, policy = models.load_tokenizer(start / "policy"), models.load_policy(start / "policy")
        optimizer = make_optimizer(policy)
        tensors = checkpoint.load_optimizers(start)
        checkpoint.restore_optimizer("policy", dict(policy.named_parameters()), optimizer, tensors, where=start)
    with reporter.task("warm start", settings.steps, done=step) as advance:
        while step < settings.steps:
            examples = draw_examples(problems, tokenizer, config, step)
            loss = supervised_step(policy, optimizer, examples, lr=learning_rate(step, settings))
            step += 1
            advance(1, loss=loss)
            if step % settings.checkpoint_every == 0 or step == settings.steps:
                tensors = checkpoint.optimizer_tensors("policy", dict(policy.named_parameters()), optimizer)
                folders = {"policy": (policy, tokenizer), ORIGIN: (_origin_of(config, problems),)}
                checkpoint.save_checkpoint(out, step=step, folders=folders, optimizers=tensors)


def draw_examples(
    problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase, config: Config, step: int
) -> list[Example]:
    """Return the derivations of one step, determined by the run's seed and the step."""
    rng = random.Random(derive_seed(config.run.seed, "warmstart", step))
    examples: list[Example] = []
    for _ in range(config.warmstart.batch_size):
        problem = problems[rng.randrange(len(problems))]
        if not problem.demonstration:
            raise BadInput(
                f"problem {problem.id!r}: expected a worked derivation to learn from, got none; warm-start on the "
                "built-in equations, or set model.path to a policy that already has some skill"
            )
        text = demonstrate(problem, rng, config.warmstart.slip_rate)
        prompt = encode_prompt(problem, tokenizer, template=config.problems.template)
        examples.append((prompt, [*encode_text(text, tokenizer), special_ids(tokenizer).eos]))
    return examples


def _new_policy(config: Config, tokenizer: PreTrainedTokenizerBase) -> models.PreTrainedModel:
    special = special_ids(tokenizer)
    return models.build_policy(
        config.model,
        vocab_size=len(tokenizer),
        bos_id=special.bos,
        eos_id=special.eos,
        pad_id=special.pad,
        seed=derive_seed(config.run.seed, "weights"),
    )
