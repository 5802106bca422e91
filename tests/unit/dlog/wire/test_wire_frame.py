"""Frames and headers: cutting, copying, limits, malformed input."""

import struct

import pytest

from dlog.errors import ProtocolError
from dlog.wire.apis import ApiKey
from dlog.wire.frame import (
    FrameReceiver,
    FrameSplitter,
    RequestHeader,
    encode_frame,
    encode_request_header,
    encode_response,
    parse_request_header,
    parse_response_header,
)
from dlog.wire.primitives import iter_tags, read_uvarint, skip_tags, uvarint

FRAMES = [b"", b"a", b"hello", bytes(300), b"x" * 70_000]
STREAM = b"".join(encode_frame(f) for f in FRAMES)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 64, 311, 4096, len(STREAM)])
def test_cuts_a_stream_at_any_chunk_size(chunk: int) -> None:
    splitter = FrameSplitter()
    found = []
    for start in range(0, len(STREAM), chunk):
        found += [bytes(f) for f in splitter.feed(memoryview(STREAM)[start : start + chunk])]
    assert found == FRAMES
    assert splitter.pending_bytes == splitter.missing_bytes == 0


def test_whole_frames_are_views_of_the_callers_bytes() -> None:
    buffer = bytearray(encode_frame(b"one") + encode_frame(b"two"))
    one, two = FrameSplitter().feed(memoryview(buffer))
    buffer[4:7] = b"ONE"
    assert (bytes(one), bytes(two)) == (b"ONE", b"two")


def test_a_cut_frame_does_not_keep_the_callers_bytes() -> None:
    splitter = FrameSplitter()
    buffer = bytearray(encode_frame(b"gathered"))
    assert splitter.feed(memoryview(buffer)[:7]) == []
    assert (splitter.pending_bytes, splitter.missing_bytes) == (7, 5)
    rest = bytes(buffer[7:])
    buffer[:] = bytes(len(buffer))
    (frame,) = splitter.feed(memoryview(rest))
    assert bytes(frame) == b"gathered"


def test_memory_follows_what_arrived_not_what_is_claimed() -> None:
    splitter = FrameSplitter()
    assert splitter.feed(memoryview(struct.pack(">i", 90 * 1024 * 1024) + b"ab")) == []
    assert splitter.pending_bytes == 6


def test_a_large_frame_is_received_into_its_own_memory_which_grows() -> None:
    receiver = FrameReceiver(receive_bytes=10, grow_bytes=20)
    stream = encode_frame(bytes(range(100)))
    sizes = []
    frames: list[memoryview] = []
    while stream:
        buffer = receiver.buffer()
        sizes.append(len(buffer))
        buffer[:] = stream[: len(buffer)]
        stream = stream[len(buffer) :]
        frames += receiver.received(len(buffer))
    assert sizes == [10, 20, 30, 44]
    assert [bytes(frame) for frame in frames] == [bytes(range(100))]
    assert len(receiver.buffer()) == 10


def test_a_receiver_may_keep_its_frames() -> None:
    receiver = FrameReceiver()
    kept = []
    for body in (b"one", b"two"):
        frame = encode_frame(body)
        receiver.buffer()[: len(frame)] = frame
        kept += receiver.received(len(frame))
    assert [bytes(frame) for frame in kept] == [b"one", b"two"]


def test_a_receiver_refuses_a_length_beyond_the_limit() -> None:
    receiver = FrameReceiver(100)
    receiver.buffer()[:4] = struct.pack(">i", 101)
    with pytest.raises(ProtocolError, match="101 bytes"):
        receiver.received(4)


@pytest.mark.parametrize("length", [-1, -(2**31), 101, 2**31 - 1])
def test_refuses_a_length_beyond_the_limit(length: int) -> None:
    raw = memoryview(struct.pack(">i", length))
    with pytest.raises(ProtocolError):
        FrameSplitter(100).feed(raw)
    splitter = FrameSplitter(100)
    splitter.feed(raw[:1])
    with pytest.raises(ProtocolError):
        splitter.feed(raw[1:])


@pytest.mark.parametrize("head", [b"\x15\x03\x03\x00\x02\x02\x46", b"\x16\x03\x01\x02\x00\x01\x00"])
@pytest.mark.parametrize("cut", [2, 7])
def test_who_speaks_tls_is_told_so(head: bytes, cut: int) -> None:
    """An alert, as a server answers plain requests, and the first words of a client."""
    splitter = FrameSplitter()
    with pytest.raises(ProtocolError, match=r"^a frame of \d+ bytes: this is TLS$"):
        for piece in (head[:cut], head[cut:]):
            splitter.feed(memoryview(piece))


@pytest.mark.parametrize("client_id", [None, "", "c", "größer", "x" * 300])
@pytest.mark.parametrize(
    ("key", "version"), [(ApiKey.PRODUCE, 8), (ApiKey.PRODUCE, 9), (ApiKey.API_VERSIONS, 3)]
)
def test_request_header_round_trip(key: int, version: int, client_id: str | None) -> None:
    raw = encode_request_header(key, version, 77, client_id)
    view = memoryview(b"before" + raw + b"body")
    found = parse_request_header(view, 6, len(view))
    assert found == RequestHeader(key, version, 77, client_id, 6 + len(raw))
    assert parse_request_header(view, 6, len(view)).client_id == client_id  # now from the cache
    for cut in range(len(raw)):
        with pytest.raises(ProtocolError):
            parse_request_header(view[: 6 + cut], 6, 6 + cut)
        with pytest.raises(ProtocolError):
            parse_request_header(view, 6, 6 + cut)  # never reads beyond `end`


def test_request_header_of_an_unknown_type_is_read_as_version_1() -> None:
    raw = memoryview(struct.pack(">hhih", 999, 3, 5, -1) + b"\xff\xff")
    assert parse_request_header(raw, 0, len(raw)) == RequestHeader(999, 3, 5, None, 10)
    raw = memoryview(struct.pack(">hhih", -7, 3, 5, -1))
    assert parse_request_header(raw, 0, len(raw)).body_position == 10


def test_request_header_skips_unknown_tagged_fields() -> None:
    head = struct.pack(">hhih", ApiKey.FETCH, 12, 5, -1)
    tags = uvarint(2) + uvarint(3) + uvarint(2) + b"ab" + uvarint(400) + uvarint(0)
    raw = memoryview(head + tags + b"body")
    assert parse_request_header(raw, 0, len(raw)).body_position == len(head + tags)


def test_request_header_with_a_client_id_that_is_not_utf8() -> None:
    raw = memoryview(struct.pack(">hhih", 3, 1, 5, 2) + b"\xff\xfe")
    assert parse_request_header(raw, 0, len(raw)).client_id == "\ufffd\ufffd"


def test_request_header_with_a_negative_client_id_length() -> None:
    raw = memoryview(struct.pack(">hhih", 3, 1, 5, -2))
    with pytest.raises(ProtocolError):
        parse_request_header(raw, 0, len(raw))


@pytest.mark.parametrize(
    ("key", "version", "header_bytes"),
    [
        (ApiKey.METADATA, 8, 4),
        (ApiKey.METADATA, 9, 5),
        (ApiKey.API_VERSIONS, 0, 4),
        (ApiKey.API_VERSIONS, 4, 4),
    ],
)
def test_response_header(key: int, version: int, header_bytes: int) -> None:
    frame = encode_response(key, version, 9, b"body")
    assert frame == struct.pack(">ii", header_bytes + 4, 9) + bytes(header_bytes - 4) + b"body"
    (payload,) = FrameSplitter().feed(memoryview(frame))
    assert parse_response_header(payload, 0, len(payload), key, version) == (9, header_bytes)
    with pytest.raises(ProtocolError):
        parse_response_header(payload, 0, header_bytes - 1, key, version)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 16_383, 16_384, 2**31 - 1, 2**32 - 1])
def test_uvarint_round_trip(value: int) -> None:
    raw = memoryview(uvarint(value))
    assert read_uvarint(raw, 0, len(raw)) == (value, len(raw))
    with pytest.raises(ProtocolError):
        read_uvarint(raw, 0, len(raw) - 1)


def test_uvarint_of_more_than_32_bits_is_refused() -> None:
    for raw in (b"\xff\xff\xff\xff\x1f", b"\x80\x80\x80\x80\x80\x01", b"\xff" * 20):
        with pytest.raises(ProtocolError):
            read_uvarint(memoryview(raw), 0, len(raw))


def test_tags() -> None:
    raw = memoryview(uvarint(2) + b"\x00\x01x" + b"\x05\x02yz" + b"rest")
    assert list(iter_tags(raw, 0, len(raw))) == [(0, 3, 4), (5, 6, 8), (-1, 8, 8)]
    assert skip_tags(raw, 0, len(raw)) == 8


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x01",
        b"\x01\x00\x05abc",  # reaches beyond the end
        b"\x02\x03\x00\x03\x00",  # the same tag twice
        b"\x02\x03\x00\x02\x00",  # descending
        b"\xff\xff\xff\xff\x0f",  # four thousand million of them
    ],
)
def test_malformed_tags(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        skip_tags(memoryview(raw), 0, len(raw))
