"""Resource limits: set by a worker before its lockdown; they cannot be raised again."""

import resource
import sys

import msgspec

from graders.sandbox.protocol import Layer

RECURSION_LIMIT = 1000
INT_DIGITS_LIMIT = 4300
MAX_OPEN_FILES = 16
STACK_BYTES = 8 << 20


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on one worker, for its whole life.

    Args:
        memory_bytes: address space, code of the interpreter included (about 80 MB).
        cpu_s: processor time; a safeguard behind the caller's deadlines.
    """

    memory_bytes: int
    cpu_s: int


def apply_limits(limits: Limits) -> Layer:
    """Set every limit and report the limits that the kernel now enforces."""
    wanted = {
        "AS": limits.memory_bytes,
        "CPU": limits.cpu_s,
        "CORE": 0,
        "FSIZE": 0,
        "NOFILE": MAX_OPEN_FILES,
        "NPROC": 0,
        "MEMLOCK": 0,
        "MSGQUEUE": 0,
        "STACK": STACK_BYTES,
    }
    missed = [name for name, value in wanted.items() if not _lower(name, value)]
    sys.setrecursionlimit(RECURSION_LIMIT)
    sys.set_int_max_str_digits(INT_DIGITS_LIMIT)
    if missed:
        return Layer("rlimits", "unavailable", f"not set: {', '.join(missed)}")
    return Layer("rlimits", "active", f"{', '.join(wanted)}; memory {limits.memory_bytes} bytes, CPU {limits.cpu_s} s")


def _lower(name: str, value: int) -> bool:
    """Set the soft and the hard limit; return True if the kernel reports the new soft limit."""
    number = getattr(resource, f"RLIMIT_{name}", None)
    if number is None:
        return False
    _, hard = resource.getrlimit(number)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        # the hard CPU limit is one second higher, so the worker is killed by the SIGXCPU of the soft one
        resource.setrlimit(number, (bound, bound + 1 if name == "CPU" and hard != bound else bound))
    except (ValueError, OSError):
        return False
    return resource.getrlimit(number)[0] == bound
