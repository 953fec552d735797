"""Exit codes and options that several commands share."""

import argparse

from graders.sandbox.host.pool import GraderPool

OK, FOUND_FAILURE, BAD_USAGE = 0, 1, 2


def add_pool_options(command: argparse.ArgumentParser) -> None:
    """Add the options from which `pool_of` builds a pool."""
    command.add_argument(
        "--grader", default="math", help="a name, package.module:attribute or path.py:attribute; default: math"
    )
    command.add_argument("--workers", type=int, default=2, help="worker processes; default: 2")
    command.add_argument("--time-limit", type=float, default=2.0, help="seconds per answer; default: 2")
    command.add_argument("--memory-limit", type=int, default=1 << 30, help="bytes per worker; default: 1 GiB")


def pool_of(options: argparse.Namespace) -> GraderPool:
    """Return the pool that the options of a command describe."""
    return GraderPool(options.grader, options.workers, options.time_limit, options.memory_limit)
