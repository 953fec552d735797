"""A world of one's own for the zygote and its workers: no network, no other processes, an empty file system.

Root gets it outright; an ordinary user by way of a user namespace, where the system lets users have one.
"""

import contextlib
import os
import signal

from graders.sandbox.isolation import syscalls
from graders.sandbox.protocol import Layer

_KINDS = {
    "net": syscalls.CLONE_NEWNET,
    "pid": syscalls.CLONE_NEWPID,
    "mnt": syscalls.CLONE_NEWNS,
    "ipc": syscalls.CLONE_NEWIPC,
    "uts": syscalls.CLONE_NEWUTS,
}
EMPTY_ROOT = "/tmp"
"""Any directory that exists everywhere: an empty, read-only file system hides it, in this namespace only."""
PARENT_CHECK_S = 0.5


def enter() -> Layer:
    """Leave for new namespaces. In a new process namespace, the caller goes on as its first process.

    Must be called while single-threaded, early. What is left of the calling process only waits, and dies with either
    its parent or its child.
    """
    before = {kind: _identity(kind) for kind in _KINDS}
    error = _unshare()
    if error is not None:
        return Layer("namespaces", "unavailable", f"unshare(): {error}")
    _become_first_process()
    entered = [kind for kind in _KINDS if _identity(kind) != before[kind]]
    return Layer("namespaces", "active" if len(entered) == len(_KINDS) else "unavailable", f"new: {', '.join(entered)}")


def hide_files() -> Layer:
    """Mount an empty, read-only file system for workers to take as their root; call when all is imported."""
    flags = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    try:
        syscalls.mount(b"none", b"/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount(b"graders", EMPTY_ROOT.encode(), b"tmpfs", flags, b"size=4k,mode=555")
        left = os.listdir(EMPTY_ROOT)
    except OSError as error:
        return Layer("empty root", "unavailable", f"mount(): {error.strerror}")
    state = "unavailable" if left else "active"
    return Layer("empty root", state, f"{len(left)} entries in the workers' file system")


def _unshare() -> str | None:
    uid, gid = os.geteuid(), os.getegid()
    flags = sum(_KINDS.values()) | (0 if uid == 0 else syscalls.CLONE_NEWUSER)
    try:
        syscalls.unshare(flags)
    except OSError as error:
        return error.strerror or str(error)
    if uid != 0:
        # where this fails, mounting will fail too, and say so
        with contextlib.suppress(OSError):
            for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{file}", "w") as target:
                    target.write(text)
    return None


def _become_first_process() -> None:
    """Go on in a child, which the new process namespace begins with; it ends when its first process does."""
    outer_parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # above all the control socket: its closing must mean the end
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
