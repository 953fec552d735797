"""System calls: numbers and constants of Linux on x86_64 and aarch64, and wrappers for calls that Python lacks."""

import ctypes
import os
import platform

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_X86_64 = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16,
    "readv": 19, "writev": 20, "access": 21, "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32,
    "dup2": 33, "nanosleep": 35, "alarm": 37, "setitimer": 38, "getpid": 39, "exit": 60, "uname": 63, "fcntl": 72,
    "getcwd": 79, "mkdir": 83, "unlink": 87, "readlink": 89, "getrusage": 98, "sysinfo": 99, "times": 100,
    "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "capget": 125, "capset": 126,
    "sigaltstack": 131, "prctl": 157, "arch_prctl": 158, "gettid": 186, "futex": 202, "sched_getaffinity": 204,
    "getdents64": 217,
    "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231,
    "tgkill": 234, "openat": 257, "mkdirat": 258, "newfstatat": 262, "unlinkat": 263, "readlinkat": 267,
    "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "dup3": 292, "pipe2": 293, "prlimit64": 302,
    "seccomp": 317, "getrandom": 318,
    "membarrier": 324, "statx": 332, "rseq": 334, "openat2": 437, "faccessat": 269, "faccessat2": 439,
}  # fmt: skip
_AARCH64 = {
    "read": 63, "write": 64, "close": 57, "fstat": 80, "lseek": 62, "mmap": 222, "mprotect": 226, "munmap": 215,
    "brk": 214, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "ioctl": 29, "readv": 65, "writev": 66,
    "sched_yield": 124, "mremap": 216, "madvise": 233, "dup": 23, "nanosleep": 101, "setitimer": 103, "getpid": 172,
    "exit": 93, "uname": 160, "fcntl": 25, "getcwd": 17, "getrusage": 165, "sysinfo": 179, "times": 153, "getuid": 174,
    "getgid": 176, "geteuid": 175, "getegid": 177, "getppid": 173, "capget": 90, "capset": 91, "sigaltstack": 132,
    "prctl": 167, "gettid": 178, "futex": 98, "sched_getaffinity": 123, "getdents64": 61, "restart_syscall": 128,
    "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115, "exit_group": 94, "tgkill": 131, "openat": 56,
    "mkdirat": 34, "newfstatat": 79, "unlinkat": 35, "readlinkat": 78, "pselect6": 72, "ppoll": 73,
    "set_robust_list": 99, "dup3": 24, "pipe2": 59, "prlimit64": 261, "seccomp": 277, "getrandom": 278,
    "membarrier": 283, "statx": 291, "rseq": 293, "openat2": 437, "faccessat": 48, "faccessat2": 439,
}  # fmt: skip
NUMBERS = {"x86_64": _X86_64, "aarch64": _AARCH64}
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446  # the same on every architecture

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS = 1, 4, 38, 39
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MNT_DETACH = 2
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x4000, 0x40000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def machine() -> str:
    return platform.machine()


def call(number: int, *arguments: int | bytes | ctypes.Array | None) -> int:
    """Make a system call by number.

    Raises:
        OSError: the call failed.
    """
    return _checked(_libc.syscall(ctypes.c_long(number), *(_word(argument) for argument in arguments)))


def prctl(option: int, value: int = 0) -> int:
    """Call prctl(2); raise OSError if it fails."""
    return _checked(_libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)))


def unshare(flags: int) -> None:
    """Call unshare(2); raise OSError if it fails."""
    _checked(_libc.unshare(flags))


def mount(source: bytes, target: bytes, kind: bytes | None, flags: int, options: bytes | None = None) -> None:
    """Call mount(2); raise OSError if it fails."""
    _checked(_libc.mount(source, target, kind, ctypes.c_ulong(flags), options))


def detach_mount(target: bytes) -> None:
    """Call umount2(2) with MNT_DETACH; raise OSError if it fails."""
    _checked(_libc.umount2(target, _MNT_DETACH))


def drop_capabilities() -> None:
    """Drop all capabilities of this thread; raise OSError if it fails."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, self
    call(NUMBERS[machine()]["capset"], header, (ctypes.c_uint32 * 6)())


def capabilities() -> int:
    """Return the permitted and effective capabilities of this thread as bits; raise OSError if it fails."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    held = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
    call(NUMBERS[machine()]["capget"], header, held)
    return held[0] | held[1] | (held[3] | held[4]) << 32


def _word(argument: int | bytes | ctypes.Array | None) -> object:
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
