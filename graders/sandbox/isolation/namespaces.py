"""Linux namespaces for the zygote and its workers: no network, no other processes, an empty file system.

Root enters them directly; an ordinary user needs a user namespace, which some systems forbid.
"""

import contextlib
import os
import signal
from typing import NamedTuple

from graders.sandbox.isolation import syscalls
from graders.sandbox.protocol import Layer

_KINDS = {
    "net": syscalls.CLONE_NEWNET,
    "pid": syscalls.CLONE_NEWPID,
    "mnt": syscalls.CLONE_NEWNS,
    "ipc": syscalls.CLONE_NEWIPC,
    "uts": syscalls.CLONE_NEWUTS,
}
_MOUNT_POINT = "/tmp"
"""Any directory that exists everywhere; the mount is detached immediately, so it hides nothing."""
PARENT_CHECK_S = 0.5


class EmptyRoot(NamedTuple):
    """An empty, read-only file system that is mounted nowhere; `fd` refers to it, or is None if there is none."""

    layer: Layer
    fd: int | None = None

    def change_directory(self) -> None:
        """Make it the working directory, which `lockdown.lock_worker` makes the root."""
        if self.fd is not None:
            os.fchdir(self.fd)


def enter() -> Layer:
    """Enter new namespaces, and return as the first process of the new process namespace.

    Call it early, while single-threaded. The original process only waits, and exits with its parent or its child.
    """
    before = {kind: _identity(kind) for kind in _KINDS}
    error = _unshare()
    if error is not None:
        return Layer("namespaces", "unavailable", f"unshare(): {error}")
    _become_first_process()
    entered = [kind for kind in _KINDS if _identity(kind) != before[kind]]
    return Layer("namespaces", "active" if len(entered) == len(_KINDS) else "unavailable", f"new: {', '.join(entered)}")


def make_empty_root() -> EmptyRoot:
    """Create the file system that workers use as their root; it needs a mount namespace."""
    flags = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    try:
        syscalls.mount(b"none", b"/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount(b"graders", _MOUNT_POINT.encode(), b"tmpfs", flags, b"size=4k,mode=555")
        fd = os.open(_MOUNT_POINT, os.O_PATH | os.O_DIRECTORY)
        syscalls.detach_mount(_MOUNT_POINT.encode())
    except OSError as error:
        return EmptyRoot(Layer("empty root", "unavailable", f"mount(): {error.strerror}"))
    return EmptyRoot(Layer("empty root", "active", "a detached, read-only file system"), fd)


def _unshare() -> str | None:
    uid, gid = os.geteuid(), os.getegid()
    flags = sum(_KINDS.values()) | (0 if uid == 0 else syscalls.CLONE_NEWUSER)
    try:
        syscalls.unshare(flags)
    except OSError as error:
        return error.strerror or str(error)
    if uid != 0:
        # if this fails, mounting fails too, and reports it
        with contextlib.suppress(OSError):
            for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{file}", "w") as target:
                    target.write(text)
    return None


def _become_first_process() -> None:
    """Continue in a forked child, the first process of the new process namespace, whose exit ends the namespace."""
    outer_parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # above all the control socket: closing it must end the zygote
    while os.getppid() == outer_parent:
        signal.sigtimedwait([signal.SIGCHLD], PARENT_CHECK_S)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            os._exit(max(0, os.waitstatus_to_exitcode(status)))
    os._exit(1)


def _identity(kind: str) -> str | None:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return None
