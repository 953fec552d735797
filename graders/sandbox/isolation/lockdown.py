"""The isolation layers, in the order in which they must be put on, each reporting what it shows to be in force.

The filter of system calls comes last, for it forbids what the others need. It is also the one that counts: the others
are there for the day it has a hole (note G4).
"""

import os
import signal

from graders.sandbox.isolation import landlock, namespaces, seccomp, syscalls
from graders.sandbox.isolation.rlimits import Limits, apply_limits
from graders.sandbox.protocol import Layer, Setup

CPU_LIMITS_PER_LIFE = 1024
"""Processor time in a worker's whole life, in time limits: a backstop for a caller that is itself stuck."""
FIRST_WORKER_UID, NUM_WORKER_UIDS, NOBODY = 0x7E000000, 1 << 16, 65534


def enclose_zygote() -> list[Layer]:
    """Put on what a family of workers shares; call early, while single-threaded."""
    os.umask(0o077)
    return [namespaces.enter()]


def prepare_root(layers: list[Layer]) -> Layer:
    """Make ready what workers will take as their root; call when everything is imported, for this may hide it."""
    if any(layer.name == "namespaces" and layer.state == "active" for layer in layers):
        return namespaces.hide_files()
    return Layer("empty root", "unavailable", "no mount namespace of its own")


def limit_worker(setup: Setup) -> list[Layer]:
    """Put on resource limits only: the bare worker, which benchmarks and positive controls compare with."""
    _die_with_parent()
    cpu_s = int(CPU_LIMITS_PER_LIFE * setup.time_limit_s) + 1
    return [apply_limits(Limits(setup.memory_limit_bytes, cpu_s))]


def lock_worker(setup: Setup, token: int, root: Layer, writable_fds: tuple[int, ...]) -> list[Layer]:
    """Put on every layer there is; `token` tells workers apart, `root` is what `prepare_root` said."""
    return [
        _take_root(root),
        _drop_identity(token),
        *limit_worker(setup),
        _forgo_privileges(),
        landlock.restrict(),
        seccomp.install(writable_fds),
    ]


def _die_with_parent() -> None:
    """Arm the signal that ends this worker with its zygote; a change of identity disarms it."""
    parent = os.getppid()
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _take_root(prepared: Layer) -> Layer:
    if prepared.state != "active":
        return prepared
    try:
        os.chroot(namespaces.EMPTY_ROOT)
        os.chdir("/")
        left = os.listdir("/")
    except OSError as error:
        return Layer("empty root", "unavailable", f"chroot(): {error.strerror}")
    return Layer("empty root", "unavailable" if left else "active", f"{len(left)} entries in /")


def _drop_identity(token: int) -> Layer:
    """Give up root for a user that owns nothing, a different one for every worker, and all capabilities."""
    if os.geteuid() == 0:
        for uid in (FIRST_WORKER_UID + token % NUM_WORKER_UIDS, NOBODY):
            try:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                break
            except OSError:
                continue
    try:
        syscalls.drop_capabilities()
        left = syscalls.capabilities()
    except OSError as error:
        return Layer("identity", "unavailable", f"capset(): {error.strerror}")
    dropped = os.geteuid() != 0 and left == 0
    return Layer("identity", "active" if dropped else "unavailable", f"user {os.geteuid()}, capabilities {left:#x}")


def _forgo_privileges() -> Layer:
    try:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        in_force = syscalls.prctl(syscalls.PR_GET_NO_NEW_PRIVS)
    except OSError as error:
        return Layer("no_new_privs", "unavailable", f"prctl(): {error.strerror}")
    return Layer("no_new_privs", "active" if in_force else "unavailable", f"the kernel reports {in_force}")
