"""Protocol: frames are reassembled from any pieces, and a too large frame is rejected before its bytes are stored."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graders.sandbox.protocol import Failure, FrameBuffer, FrameError, Read, encode_frame


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 50))
def test_frames_are_reassembled_from_any_pieces(payloads: list[bytes], step: int) -> None:
    stream = b"".join(encode_frame(payload) for payload in payloads)
    buffer = FrameBuffer(300)
    found = [frame for k in range(0, len(stream), step) for frame in buffer.feed(stream[k : k + step])]
    assert found == payloads


def test_announced_size_is_checked_before_the_bytes_arrive() -> None:
    with pytest.raises(FrameError, match="expected a frame of at most 10 bytes, got one of 4294967295"):
        list(FrameBuffer(10).feed(b"\xff\xff\xff\xff"))


@pytest.mark.parametrize("status", ["correct", "incorrect", "no_answer", "unparsable"])
def test_reader_cannot_report_a_verdict(status: str) -> None:
    forged = msgspec.msgpack.encode(["failure", status, "", "", 0.0])
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value"):
        msgspec.msgpack.decode(forged, type=Read | Failure)


@pytest.mark.parametrize("duration_s", [-1.0, 1e9, float("inf")])
def test_reader_cannot_report_an_invalid_duration(duration_s: float) -> None:
    forged = msgspec.msgpack.encode(["read", b"", duration_s])
    with pytest.raises(msgspec.ValidationError, match="Expected `float`"):
        msgspec.msgpack.decode(forged, type=Read | Failure)
