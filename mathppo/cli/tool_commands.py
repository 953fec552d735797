"""Commands that need no policy: problems, reports, metrics export, conformance checks and model import.

Each one imports its own dependencies, because most of them run without torch.
"""

import argparse

from mathppo.errors import BadInput
from mathppo.progress import Reporter


def run_prepare(options: argparse.Namespace) -> int:
    """Write the training and held-out problems."""
    from mathppo.pipeline.stages.prepare import prepare

    prepare(options.config, options.out, Reporter())
    print(f"{options.out}/train and {options.out}/held_out")
    return 0


def run_report(options: argparse.Namespace) -> int:
    """Write the report of a run, or print its table."""
    from mathppo.cli.result_commands import print_table
    from mathppo.report import write_report

    for folder in (options.run_dir, *options.control):
        if not (folder / "config.toml").is_file():
            raise BadInput(f"{folder}: expected a run directory, found no config.toml in it; pass train's --run-dir")
    if options.terminal:
        print_table(options.run_dir)
    else:
        print(write_report(options.run_dir, controls=options.control))
    return 0


def run_track(options: argparse.Namespace) -> int:
    """Send a run's metrics to a tracker."""
    from mathppo.report.trackers import track

    print(f"{options.to}: {track(options.run_dir, options.to, follow=options.follow)} iterations")
    return 0


def run_conformance(options: argparse.Namespace) -> int:
    """Check a PPO function; return 1 if a check fails."""
    from mathppo import conformance

    rows = conformance.run(options.kind, options.spec)
    for row in rows:
        print(f"{'pass' if row.passed else 'FAIL'}  {row.name}  {row.detail}  [{row.issue}]")
    return 0 if all(row.passed for row in rows) else 1


def run_import_gguf(options: argparse.Namespace) -> int:
    """Convert a GGUF file to a Hugging Face folder."""
    from mathppo.importers.import_gguf import import_gguf
    from mathppo.learner.backend import models

    models.quiet()
    print(import_gguf(options.source, options.out))
    return 0


def run_doctor(options: argparse.Namespace) -> int:
    """Print what works on this machine."""
    from mathppo.cli import doctor

    return doctor.examine(as_json=options.json)
