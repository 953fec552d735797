"""Landlock: denies opening paths, using TCP ports and signalling other processes. Needs Linux 5.13, no privileges."""

import os
import struct

from graders.sandbox.isolation import syscalls
from graders.sandbox.protocol import Layer

_VERSION_QUERY = 1
_FS_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 5: 0xFFFF}
"""File access rights, by the ABI version that introduced them: +refer, +truncate, +ioctl on devices."""
_NET_RIGHTS, _NET_ABI = 0b11, 4  # bind and connect TCP
_SCOPES, _SCOPE_ABI = 0b11, 6  # abstract unix sockets, signals


def restrict() -> Layer:
    """Deny everything that this kernel's Landlock can deny, and report if it takes effect."""
    try:
        abi = syscalls.call(syscalls.LANDLOCK_CREATE_RULESET, None, 0, _VERSION_QUERY)
        ruleset = syscalls.call(syscalls.LANDLOCK_CREATE_RULESET, *_attributes(abi), 0)
        try:
            syscalls.call(syscalls.LANDLOCK_RESTRICT_SELF, ruleset, 0)
        finally:
            os.close(ruleset)
    except OSError as error:
        return Layer("landlock", "unavailable", f"landlock: {error.strerror}")
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY))
    except PermissionError:
        return Layer("landlock", "active", f"ABI {abi}; opening / is refused")
    except OSError:
        pass
    return Layer("landlock", "unavailable", "restricted, but opening / is not refused")


def _attributes(abi: int) -> tuple[bytes, int]:
    """Return struct landlock_ruleset_attr with the fields that an ABI version has, and its size."""
    rights = _FS_RIGHTS[max(known for known in _FS_RIGHTS if known <= abi)]
    fields = [rights]
    if abi >= _NET_ABI:
        fields.append(_NET_RIGHTS)
    if abi >= _SCOPE_ABI:
        fields.append(_SCOPES)
    packed = struct.pack(f"={len(fields)}Q", *fields)
    return packed, len(packed)
