"""System call filter: an allow-list for a worker that opens nothing; it suffices if all other layers are missing.

Calls with which libraries probe their environment fail with EACCES. Every other call that is not listed kills the
process with SIGSYS, which makes an attack visible. Measured on the attack suite: the filter alone stops every payload,
as root, as an ordinary user and under Docker's default profile.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from graders.sandbox.isolation import syscalls
from graders.sandbox.protocol import Layer

ALLOWED = (
    "read", "futex_checked", "write_checked", "mmap_checked", "munmap", "mprotect_checked", "brk", "mremap",
    "madvise", "clock_gettime_checked", "getpid", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack",
    "readv", "writev_checked", "lseek", "fstat", "close", "exit", "exit_group", "clock_getres_checked",
    "clock_nanosleep_checked", "nanosleep", "getrandom", "gettid", "getppid", "getuid", "geteuid", "getgid",
    "getegid", "sched_yield", "sched_getaffinity_checked", "restart_syscall", "getrusage", "times", "rseq",
    "membarrier", "set_robust_list", "poll", "ppoll", "select", "pselect6",
)  # fmt: skip
REFUSED = (
    "open", "openat", "openat2", "stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2",
    "readlink", "readlinkat", "getcwd", "getdents64", "ioctl", "fcntl", "uname", "sysinfo", "dup", "dup2", "dup3",
    "pipe2", "unlink", "unlinkat", "mkdir", "mkdirat", "arch_prctl", "prctl", "prlimit64", "setitimer", "alarm",
    "tgkill",
)  # fmt: skip
"""Fail with EACCES: library code makes these calls and handles the error."""

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_X32_BIT = 0x40000000
_PROT_EXEC = 4
_FUTEX_COMMAND_MASK = 0x7F  # without the PRIVATE and CLOCK_REALTIME flags
_FUTEX_COMMANDS = (0, 1, 9, 10)  # WAIT, WAKE, WAIT_BITSET, WAKE_BITSET
_SET_MODE_FILTER, _ALL_THREADS = 1, 1

Instruction = tuple[int, int, int, int]
"""(code, jump if true, jump if false, operand)"""


def program(machine: str, writable_fds: Sequence[int]) -> list[Instruction]:
    """Return the filter for a machine; `writable_fds` are the only descriptors that may be written to."""
    numbers = syscalls.NUMBERS[machine]
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EACCES)
    code: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_JUMP_EQUAL, 1, 0, syscalls.AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, 0),
        (_JUMP_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _KILL_PROCESS),
    ]
    for entry in ALLOWED:
        name = entry.removesuffix("_checked")
        if name not in numbers:
            continue
        body = _checks(name, writable_fds) if entry.endswith("_checked") else [(_RETURN, 0, 0, _ALLOW)]
        code += [(_JUMP_EQUAL, 0, len(body), numbers[name]), *body]
    for name in REFUSED:
        if name in numbers:
            code += [(_JUMP_EQUAL, 0, 1, numbers[name]), refuse]
    return [*code, (_RETURN, 0, 0, _KILL_PROCESS)]


def _checks(name: str, writable_fds: Sequence[int]) -> list[Instruction]:
    """Return the instructions that check a call's arguments.

    Every path ends in a return instruction, so no path continues with the accumulator overwritten.
    """
    allow, refuse = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EACCES)
    if name in ("mmap", "mprotect"):
        return [(_LOAD, 0, 0, _argument(2)), (_JUMP_ANY_BIT, 0, 1, _PROT_EXEC), refuse, allow]
    if name.startswith("clock_"):  # numbers with the highest bit set are clocks of other processes
        return [(_LOAD, 0, 0, _argument(0)), (_JUMP_AT_LEAST, 0, 1, 0x80000000), refuse, allow]
    if name == "sched_getaffinity":  # 0 is the calling process
        return [(_LOAD, 0, 0, _argument(0)), (_JUMP_EQUAL, 1, 0, 0), refuse, allow]
    if name == "futex":
        values, prefix = _FUTEX_COMMANDS, [(_LOAD, 0, 0, _argument(1)), (_AND, 0, 0, _FUTEX_COMMAND_MASK)]
    else:
        values, prefix = tuple(writable_fds), [(_LOAD, 0, 0, _argument(0))]
    tests = [(_JUMP_EQUAL, len(values) - k, 0, value) for k, value in enumerate(values)]
    return [*prefix, *tests, refuse, allow]


def _argument(index: int) -> int:
    """Return the offset of the low half of an argument in struct seccomp_data (little-endian machines)."""
    return 16 + 8 * index


def install(writable_fds: Sequence[int]) -> Layer:
    """Install the filter on this process, and report if it refuses a call that no other layer blocks."""
    machine = syscalls.machine()
    if machine not in syscalls.NUMBERS:
        return Layer("seccomp", "unavailable", f"no table of system calls for {machine}")
    code = program(machine, writable_fds)
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    header = struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))  # struct sock_fprog, padded on 64 bits
    try:
        syscalls.call(syscalls.NUMBERS[machine]["seccomp"], _SET_MODE_FILTER, _ALL_THREADS, header)
    except OSError as error:
        return Layer("seccomp", "unavailable", f"seccomp(): {error.strerror}")
    try:
        os.getcwd()
    except PermissionError:
        return Layer("seccomp", "active", f"{len(code)} instructions; getcwd() is refused")
    except OSError:
        pass
    return Layer("seccomp", "unavailable", "installed, but getcwd() is not refused")
