"""Stage `prepare`: a problem source to training and held-out problems, with what they share taken out or refused.

Touches: artefacts, through the store.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from mathppo import store
from mathppo.config import Config, ProblemsSettings
from mathppo.errors import BadInput
from mathppo.problems import load_held_out, load_problems, sample_problems
from mathppo.progress import Reporter
from mathppo.records import Problem
from mathppo.seeds import derive_seed


def prepare(config: Config, out: Path, reporter: Reporter) -> tuple[list[Problem], list[Problem]]:
    """Write `out/train` and `out/held_out`, and give both.

    Raises:
        BadInput: a source that cannot be read, is empty, or shares problems with the held-out set.
    """
    settings = config.problems
    made_from = store.fingerprint(stage="prepare", problems=settings, seed=config.run.seed)
    loaders = {"held_out": _held_out_problems, "train": _training_problems}
    missing = [name for name in loaders if not store.is_finished(out / name, store.PROBLEMS, made_from)]
    # All are read before the first is written: a source that cannot be read leaves nothing behind.
    for name, problems in {name: loaders[name](settings, config.run.seed) for name in missing}.items():
        if not problems:
            raise BadInput(f"problems: expected at least one {name} problem, got none; check problems.source")
        store.write_artefact(out / name, store.PROBLEMS, problems, made_from)
    train = store.read_artefact(out / "train", store.PROBLEMS)
    held_out = store.read_artefact(out / "held_out", store.PROBLEMS)
    shared = overlap(train, held_out)
    report = {"schema": "contamination/1", "train": len(train), "held_out": len(held_out), "shared": sorted(shared)}
    store.write_file(out / "contamination.json", msgspec.json.format(msgspec.json.encode(report)))
    if shared:
        raise BadInput(
            f"{out}: {len(shared)} training problems are in the held-out set too (listed in contamination.json, first: "
            f"{sorted(shared)[0]!r}); take them out of problems.source, or choose another problems.held_out"
        )
    reporter.say(f"prepared {len(train)} training problems and {len(held_out)} held-out ones that share none with them")
    return train, held_out


def overlap(train: Sequence[Problem], held_out: Sequence[Problem]) -> set[str]:
    """Give the ids of training problems whose canonical form or question, up to spacing and case, is held out."""
    forbidden = {key for problem in held_out for key in _keys(problem)}
    return {problem.id for problem in train if not forbidden.isdisjoint(_keys(problem))}


def _keys(problem: Problem) -> set[str]:
    question = "question " + "".join(problem.question.split()).casefold()
    return {question} | ({f"canonical {problem.canonical}"} if problem.canonical else set())


def _training_problems(settings: ProblemsSettings, seed: int) -> list[Problem]:
    if settings.source == "equations":
        return sample_problems(settings.mix, settings.count, seed=derive_seed(seed, "problems"), split="train")
    return load_problems(
        settings.source,
        question_field=settings.question_field,
        reference_field=settings.reference_field,
        split=settings.split,
    )


def _held_out_problems(settings: ProblemsSettings, seed: int) -> list[Problem]:
    """Give the held-out set, which no seed changes."""
    if Path(settings.held_out).suffix:
        return load_problems(
            settings.held_out, question_field=settings.question_field, reference_field=settings.reference_field
        )
    return load_held_out(settings.held_out)
