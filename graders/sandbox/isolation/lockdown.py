"""Lockdown: applies the isolation layers in the required order; each reports the state that it observes.

The system call filter is applied last, because it forbids calls that the other layers need. It is also the layer that
stops every known attack by itself; the others limit the damage if it has a hole (note G4).
"""

import os
import signal

from graders.sandbox.isolation import landlock, namespaces, seccomp, syscalls
from graders.sandbox.isolation.rlimits import Limits, apply_limits
from graders.sandbox.protocol import Layer, Setup

CPU_LIMITS_PER_LIFE = 1024
"""Processor time of a worker's whole life, in time limits: a safeguard in case the caller hangs."""
FIRST_WORKER_UID, NUM_WORKER_UIDS, NOBODY = 0x7E000000, 1 << 16, 65534


def isolate_zygote() -> list[Layer]:
    """Apply the layers that all workers of a zygote share; call it early, while single-threaded."""
    os.umask(0o077)
    return [namespaces.enter()]


def make_empty_root(layers: list[Layer]) -> namespaces.EmptyRoot:
    """Create the workers' root if the zygote's layers include its own namespaces."""
    if any(layer.name == "namespaces" and layer.state == "active" for layer in layers):
        return namespaces.make_empty_root()
    return namespaces.EmptyRoot(Layer("empty root", "unavailable", "no separate mount namespace"))


def limit_worker(setup: Setup) -> list[Layer]:
    """Apply resource limits only, for the unsandboxed worker that benchmarks and positive controls use."""
    _die_with_parent()
    cpu_s = int(CPU_LIMITS_PER_LIFE * setup.time_limit_s) + 1
    return [apply_limits(Limits(setup.memory_limit_bytes, cpu_s))]


def lock_worker(setup: Setup, token: int, root: namespaces.EmptyRoot, writable_fds: tuple[int, ...]) -> list[Layer]:
    """Apply every layer. The working directory is the root if that is active; `token` selects the user id."""
    return [
        _change_root(root.layer),
        _drop_identity(token),
        *limit_worker(setup),
        _set_no_new_privs(),
        landlock.restrict(),
        seccomp.install(writable_fds),
    ]


def _die_with_parent() -> None:
    """Arrange for the kernel to kill this worker when its zygote exits; a change of user resets this."""
    parent = os.getppid()
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _change_root(layer: Layer) -> Layer:
    if layer.state != "active":
        return layer
    try:
        os.chroot(".")
        os.chdir("/")
        left = os.listdir("/")
    except OSError as error:
        return Layer("empty root", "unavailable", f"chroot(): {error.strerror}")
    return Layer("empty root", "unavailable" if left else "active", f"{len(left)} entries in /")


def _drop_identity(token: int) -> Layer:
    """Switch from root to an unused user id, a different one per worker, and drop all capabilities."""
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


def _set_no_new_privs() -> Layer:
    try:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        in_force = syscalls.prctl(syscalls.PR_GET_NO_NEW_PRIVS)
    except OSError as error:
        return Layer("no_new_privs", "unavailable", f"prctl(): {error.strerror}")
    return Layer("no_new_privs", "active" if in_force else "unavailable", f"the kernel reports {in_force}")
