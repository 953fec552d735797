"""Zygote: a failed fork leaks no descriptors and is reported with a remedy."""

import os
import resource
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from graders.sandbox.child.zygote import Spawner
from graders.sandbox.protocol import Spawn, SpawnFailed


def descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("spare", [0, 2, 3, 4, 5])  # three pipes take six
def test_failed_spawn_leaks_no_descriptor(spare: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    unused: Any = None
    with ours, theirs:
        spawner = Spawner(theirs, unused, unused, unused, unused, unused)
        before = descriptors()
        lowest_free = os.dup(0)
        os.close(lowest_free)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + spare, hard))
        try:
            spawner._spawn(Spawn(7, "grade"))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        message = msgspec.msgpack.decode(ours.recv(1 << 16), type=SpawnFailed)
        assert descriptors() == before
    assert message.token == 7
    assert "raise the limit on open files" in message.reason
