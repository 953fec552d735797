"""Emulated restrictions: kernels without a feature, and Docker's default profile.

A system call filter is installed in the calling process before the sandbox starts, and its children inherit it.
The Docker profile is approximated by its relevant deny rules and the capabilities that it drops.
"""

import contextlib
import ctypes
import errno
import struct

from graders.sandbox.isolation import syscalls

_DOCKER_CAPABILITIES = 0xA80425FB
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, NET_RAW, SYS_CHROOT, MKNOD,
AUDIT_WRITE, SETFCAP."""
_NAMESPACE_FLAGS = 0x7E020000
_X86_64 = {
    "landlock": {444: errno.ENOSYS, 445: errno.ENOSYS, 446: errno.ENOSYS},
    "namespaces": {272: errno.EPERM, 308: errno.EPERM},
    "seccomp": {317: errno.EINVAL},
    "processes": {56: errno.EAGAIN, 57: errno.EAGAIN, 435: errno.EAGAIN},
    "docker": {
        272: errno.EPERM, 308: errno.EPERM, 165: errno.EPERM, 166: errno.EPERM, 155: errno.EPERM, 435: errno.ENOSYS,
        248: errno.EPERM, 249: errno.EPERM, 250: errno.EPERM, 321: errno.EPERM, 298: errno.EPERM, 323: errno.EPERM,
        425: errno.EPERM, 426: errno.EPERM, 427: errno.EPERM, 312: errno.EPERM, 438: errno.EPERM, 169: errno.EPERM,
        103: errno.EPERM, 256: errno.EPERM, 303: errno.EPERM, 304: errno.EPERM, 135: errno.EPERM,
    },
}  # fmt: skip


def deny(kinds: list[str]) -> None:
    """Apply each kind of restriction to this process and the processes that it starts."""
    refused = {number: code for kind in kinds for number, code in _X86_64[kind].items()}
    if "docker" in kinds:
        _drop_capabilities_but(_DOCKER_CAPABILITIES)
    if refused:
        _install(refused, deny_namespaces="docker" in kinds)


def _drop_capabilities_but(kept: int) -> None:
    for capability in range(64):
        if not kept >> capability & 1:
            try:
                ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
            except OSError:
                break
    words = [kept & 0xFFFFFFFF, kept & 0xFFFFFFFF, 0, 0, 0, 0]
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    with contextlib.suppress(OSError):  # an ordinary user has none
        syscalls.call(syscalls.NUMBERS["x86_64"]["capset"], header, (ctypes.c_uint32 * 6)(*words))


def _install(refused: dict[int, int], *, deny_namespaces: bool) -> None:
    code = [(0x20, 0, 0, 0)]
    for number, answer in refused.items():
        code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | answer)]
    if deny_namespaces:  # clone() with a namespace flag
        code += [(0x15, 0, 3, 56), (0x20, 0, 0, 16), (0x45, 0, 1, _NAMESPACE_FLAGS), (0x06, 0, 0, 0x00050000 | 1)]
    code.append((0x06, 0, 0, 0x7FFF0000))
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    # the older interface, because the filter may deny seccomp() itself
    header = struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))
    syscalls.call(157, 22, 2, header, 0, 0)  # prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER)
