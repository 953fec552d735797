"""Stage `prepare`: a problem source to training and held-out problems without problems in common."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mathppo.config import Config, ProblemsSettings
from mathppo.errors import BadInput
from mathppo.evaluate.benchmarks import Benchmark, find_card, load_benchmark
from mathppo.evaluate.contamination import find_contamination
from mathppo.problems import load_problems, sample_problems
from mathppo.progress import Reporter
from mathppo.records import Problem
from mathppo.seeds import derive_seed
from mathppo.storage import store
from mathppo.storage.files import write_record


def prepare(config: Config, out: Path, reporter: Reporter) -> tuple[list[Problem], list[Problem]]:
    """Write `out/train` and `out/held_out`, and return both.

    Raises:
        BadInput: a source that cannot be read, is empty, or shares problems with the held-out set.
    """
    settings = config.problems
    made_from = store.fingerprint(stage="prepare", problems=settings, seed=config.run.seed)
    loaders = {
        "held_out": partial(held_out_problems, settings),
        "train": partial(_training_problems, settings, config.run.seed),
    }
    others = [load_benchmark(find_card(name), _benchmark_folder(settings)) for name in settings.check_against]
    missing = [name for name in loaders if not store.is_finished(out / name, store.PROBLEMS, made_from)]
    # Read and compare all before writing the first: rejected problems must not be left behind to train on.
    found = {name: loaders[name]() for name in missing}
    for name, problems in found.items():
        if not problems:
            raise BadInput(f"problems: expected at least one {name} problem, got none; check problems.source")
    train, held_out = (
        found[name] if name in found else store.read_artefact(out / name, store.PROBLEMS)
        for name in ("train", "held_out")
    )
    _check_contamination(train, held_out, others, out, reporter)
    for name, problems in found.items():
        store.write_artefact(out / name, store.PROBLEMS, problems, made_from)
    reporter.say(f"prepared {len(train)} training problems and {len(held_out)} held-out problems, with none in common")
    return train, held_out


def _check_contamination(
    train: Sequence[Problem],
    held_out: Sequence[Problem],
    others: Sequence[Benchmark],
    out: Path,
    reporter: Reporter,
) -> None:
    """Write `contamination.json`, reject training problems that an evaluation set holds, and report near ones."""
    found = [find_contamination("held_out", train, held_out)]
    found += [find_contamination(benchmark.card.name, train, benchmark.problems) for benchmark in others]
    shared = sorted({hit.train_id for one in found for hit in one.exact})
    report = {
        "schema": "contamination/2",
        "train": len(train),
        "held_out": len(held_out),
        "shared": shared,
        "sets": found,
    }
    write_record(out / "contamination.json", report)
    for one in found:
        if one.near:
            reporter.say(
                f"{len({hit.train_id for hit in one.near})} training problems are similar to one of {one.name} but not "
                f"equal, first {one.near[0].train_id!r} and {one.near[0].evaluation_id!r}; see contamination.json"
            )
    hits = [(one.name, len({hit.train_id for hit in one.exact})) for one in found if one.exact]
    if hits:
        where = ", ".join(f"{count} in {name.replace('held_out', 'the held-out set')}" for name, count in hits)
        raise BadInput(
            f"{out}: {len(shared)} training problems are in an evaluation set too: {where} (listed in "
            f"contamination.json, first: {shared[0]!r}); remove them from problems.source, or choose another "
            "problems.held_out or problems.check_against"
        )


def _training_problems(settings: ProblemsSettings, seed: int) -> list[Problem]:
    if settings.source == "equations":
        return sample_problems(settings.mix, settings.count, seed=derive_seed(seed, "problems"), split="train")
    return load_problems(
        settings.source,
        question_field=settings.question_field,
        reference_field=settings.reference_field,
        reference_format=settings.reference_format,
        split=settings.split,
    )


def held_out_problems(settings: ProblemsSettings) -> list[Problem]:
    """Return the held-out set that the settings name: a committed one, a benchmark, or a file; it depends on no seed.

    Raises:
        BadSetting: no such set.
        BadInput: a file that is missing or cannot be read.
    """
    if Path(settings.held_out).suffix in ("", ".toml"):
        return list(load_benchmark(find_card(settings.held_out), _benchmark_folder(settings)).problems)
    return load_problems(
        settings.held_out,
        question_field=settings.question_field,
        reference_field=settings.reference_field,
        reference_format=settings.reference_format,
    )


def _benchmark_folder(settings: ProblemsSettings) -> Path | None:
    return Path(settings.benchmark_dir) if settings.benchmark_dir else None
