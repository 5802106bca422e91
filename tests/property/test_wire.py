"""The hand-made codecs, frames and messages under random values and random damage.

Damaged input may be understood as something else; it must never raise anything but ProtocolError,
point outside the frame, or make more entries than the bytes hold.
"""

import struct
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import ProtocolError
from dlog.wire import fetch, fetch_client, messages, produce, produce_client
from dlog.wire.apis import VERSIONS, ApiKey
from dlog.wire.fetch import FetchedPartition, FetchRequest
from dlog.wire.frame import (
    FrameReceiver,
    FrameSplitter,
    encode_frame,
    parse_request_header,
    parse_response_header,
)
from dlog.wire.primitives import read_uvarint, uvarint

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=140)
ids = st.integers(0, 2**128 - 1).map(lambda n: UUID(int=n))
client_ids = st.none() | st.text(max_size=20)

AROUND = 7


def keys(version: int) -> st.SearchStrategy[Any]:
    """Return topic keys of that version, of Produce or Fetch."""
    return ids if version >= 13 else names


def placed(raw: bytes) -> memoryview:
    """Return the bytes between others, as they stand in a receive buffer."""
    return memoryview(b"\x01" * AROUND + raw + b"\x01" * 100)


def damage(data: st.DataObject, raw: bytes) -> bytes:
    """Change, insert, drop or cut some bytes."""
    changed = bytearray(raw)
    byte = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]) | st.integers(0, 255)
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["set", "insert", "drop", "cut"]))
        position = data.draw(st.integers(0, max(len(changed) - 1, 0)))
        if kind == "set" and changed:
            changed[position] = data.draw(byte)
        elif kind == "insert":
            changed.insert(position, data.draw(byte))
        elif kind == "drop":
            del changed[position : position + data.draw(st.integers(1, 8))]
        else:
            del changed[position:]
    return bytes(changed)


@given(st.data(), st.integers(3, 13), client_ids)
def test_produce_request(data: st.DataObject, version: int, client_id: str | None) -> None:
    partitions = st.lists(st.tuples(int32, st.binary(max_size=200)), max_size=4)
    topics = data.draw(st.lists(st.tuples(keys(version), partitions), max_size=3))
    acks, timeout_ms = data.draw(int16), data.draw(int32)
    transactional_id = data.draw(st.none() | st.text(max_size=10))
    frame = produce_client.encode_request(
        version, 1, client_id, acks, timeout_ms, topics, transactional_id
    )
    view = placed(frame[4:])
    end = AROUND + len(frame) - 4
    header = parse_request_header(view, AROUND, end)
    assert header.client_id == client_id
    found = produce.parse_request(view, header.body_position, end, version)
    assert (found.transactional_id, found.acks, found.timeout_ms) == (
        transactional_id, acks, timeout_ms,
    )  # fmt: skip
    assert [
        (topic, [(p, bytes(view[a:b])) for p, a, b in partitions])
        for topic, partitions in found.topics
    ] == topics
    damaged = damage(data, frame[header.body_position - AROUND + 4 :])
    check_produce(damaged, version)


def check_produce(raw: bytes, version: int) -> None:
    view = placed(raw)
    end = AROUND + len(raw)
    try:
        request = produce.parse_request(view, AROUND, end, version)
    except ProtocolError:
        return
    entries = 0
    for _, partitions in request.topics:
        entries += 1 + len(partitions)
        for _, start, after in partitions:
            assert AROUND <= start <= after <= end
    assert entries <= len(raw)


@given(st.data(), st.integers(4, 18))
def test_fetch_request(data: st.DataObject, version: int) -> None:
    row = st.tuples(
        int32, int32 if version >= 9 else st.just(-1), int64,
        int32 if version >= 12 else st.just(-1), int64 if version >= 5 else st.just(-1), int32,
    )  # fmt: skip
    topics = st.lists(st.tuples(keys(version), st.lists(row, max_size=4)), max_size=3)
    forgotten = st.lists(st.tuples(keys(version), st.lists(int32, max_size=4)), max_size=2)
    has_state = version >= 15
    replica_id = data.draw(st.integers(0, 2**31 - 1) if has_state else int32)
    request = FetchRequest(
        replica_id,
        data.draw(int32),
        data.draw(int32),
        data.draw(int32),
        data.draw(st.integers(-128, 127)),
        data.draw(int32) if version >= 7 else 0,
        data.draw(int32) if version >= 7 else -1,
        data.draw(topics),
        data.draw(forgotten) if version >= 7 else [],
        data.draw(st.text(max_size=10)) if version >= 11 else "",
        data.draw(int64) if has_state else -1,
    )
    frame = fetch_client.encode_request(version, 1, None, request)
    view = placed(frame[4:])
    end = AROUND + len(frame) - 4
    position = parse_request_header(view, AROUND, end).body_position
    assert fetch.parse_request(view, position, end, version) == request
    damaged = placed(damage(data, frame[position - AROUND + 4 :]))
    try:
        found = fetch.parse_request(damaged, AROUND, len(damaged) - 100, version)
    except ProtocolError:
        return
    assert sum(1 + len(rows) for _, rows in found.topics) <= len(damaged)


@given(st.data(), st.integers(3, 13))
def test_produce_response(data: st.DataObject, version: int) -> None:
    partition = st.tuples(
        int32, int16, int64, int64, int64 if version >= 5 else st.just(-1),
        st.none() | st.text(max_size=30) if version >= 8 else st.none(),
    )  # fmt: skip
    topics = data.draw(
        st.lists(st.tuples(keys(version), st.lists(partition, max_size=3)), max_size=3)
    )
    throttle_ms = data.draw(st.integers(0, 2**31 - 1))
    frame = produce.encode_response(version, 9, topics, throttle_ms)
    view = memoryview(frame)
    _, position = parse_response_header(view, 4, len(view), ApiKey.PRODUCE, version)
    found = produce_client.parse_response(view, position, len(view), version)
    assert (found.topics, found.throttle_ms) == (topics, throttle_ms)
    damaged = placed(damage(data, frame[position:]))
    try:
        produce_client.parse_response(damaged, AROUND, len(damaged) - 100, version)
    except ProtocolError:
        pass


@given(st.data(), st.integers(4, 18))
def test_fetch_response(data: st.DataObject, version: int) -> None:
    has_tags = version >= 12
    partition = st.builds(
        FetchedPartition,
        partition=int32,
        error_code=int16,
        high_watermark=int64,
        last_stable_offset=int64,
        log_start_offset=int64 if version >= 5 else st.just(-1),
        records_bytes=st.integers(0, 300),
        diverging_epoch=st.none() | st.tuples(int32, int64) if has_tags else st.none(),
        current_leader=st.none() | st.tuples(int32, int32) if has_tags else st.none(),
        preferred_read_replica=int32 if version >= 11 else st.just(-1),
        aborted=st.none() | st.lists(st.tuples(int64, int64), min_size=1, max_size=3),
    )
    topics = data.draw(
        st.lists(st.tuples(keys(version), st.lists(partition, max_size=3)), max_size=3)
    )
    pieces = fetch.encode_response_parts(version, 9, 5, 0, 0, topics)
    frame = b"".join(b"\xab" * p if isinstance(p, int) else p for p in pieces)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    view = memoryview(frame)
    _, position = parse_response_header(view, 4, len(view), ApiKey.FETCH, version)
    found = fetch_client.parse_response(view, position, len(view), version)
    assert [(topic, [p for p, _ in partitions]) for topic, partitions in found.topics] == topics
    for _, partitions in found.topics:
        for fetched, start in partitions:
            end = start + fetched.records_bytes
            assert view[start:end] == b"\xab" * fetched.records_bytes
    damaged = placed(damage(data, frame[position:]))
    try:
        fetch_client.parse_response(damaged, AROUND, len(damaged) - 100, version)
    except ProtocolError:
        pass


@settings(max_examples=300)
@given(st.binary(max_size=400), st.integers(3, 18))
def test_random_bytes_in_every_parser(raw: bytes, version: int) -> None:
    check_produce(raw, min(version, 13))
    view = placed(raw)
    end = AROUND + len(raw)
    parsers: list[Any] = [
        lambda: fetch.parse_request(view, AROUND, end, max(version, 4)),
        lambda: fetch_client.parse_response(view, AROUND, end, max(version, 4)),
        lambda: produce_client.parse_response(view, AROUND, end, min(version, 13)),
        lambda: parse_request_header(view, AROUND, end),
        lambda: read_uvarint(view, AROUND, end),
    ]
    for parse in parsers:
        try:
            parse()
        except ProtocolError:
            pass


every_message = st.sampled_from([(k, v) for k, (a, b) in VERSIONS.items() for v in range(a, b + 1)])


@settings(max_examples=500)
@given(every_message, st.binary(max_size=300), st.booleans())
def test_random_bytes_in_every_message(
    message: tuple[ApiKey, int], raw: bytes, is_request: bool
) -> None:
    key, version = message
    view = memoryview(raw)
    try:
        if is_request:
            messages.parse_request(key, version, view, 0)
        else:
            messages.parse_response(key, version, view)
    except ProtocolError:
        pass


@given(st.lists(st.binary(max_size=60), max_size=8), st.data())
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    bodies: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(encode_frame(body) for body in bodies)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20).map(sorted))
    splitter = FrameSplitter(60)
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        buffer = bytearray(stream[start:end])
        found += [bytes(frame) for frame in splitter.feed(memoryview(buffer))]
    assert found == bodies
    assert splitter.pending_bytes == 0


@given(
    st.lists(st.binary(max_size=200), max_size=8),
    st.integers(1, 12),
    st.integers(1, 40),
    st.data(),
)
def test_frames_come_out_of_a_receiver_as_they_went_in(
    bodies: list[bytes], receive_bytes: int, grow_bytes: int, data: st.DataObject
) -> None:
    stream = b"".join(encode_frame(body) for body in bodies)
    receiver = FrameReceiver(200, receive_bytes=receive_bytes, grow_bytes=grow_bytes)
    found: list[memoryview] = []
    position = 0
    while position < len(stream):
        buffer = receiver.buffer()
        assert len(buffer)
        count = data.draw(st.integers(1, min(len(buffer), len(stream) - position)))
        buffer[:count] = stream[position : position + count]
        found += receiver.received(count)
        position += count
    assert [bytes(frame) for frame in found] == bodies


@given(st.binary(max_size=100), st.lists(st.integers(1, 30), max_size=10))
def test_random_streams_give_bounded_frames(stream: bytes, sizes: list[int]) -> None:
    splitter = FrameSplitter(50)
    position = 0
    for size in sizes:
        try:
            frames = splitter.feed(memoryview(stream)[position : position + size])
        except ProtocolError:
            return
        assert all(len(frame) <= 50 for frame in frames)
        assert splitter.pending_bytes <= 54
        position += size


@given(st.integers(0, 2**32 - 1))
def test_uvarints(value: int) -> None:
    raw = placed(uvarint(value))
    assert read_uvarint(raw, AROUND, len(raw)) == (value, AROUND + len(uvarint(value)))


def both(fast: Any, slow: Any) -> tuple[Any, Any]:
    """Return the results of two parsers; None for a refusal."""
    found = []
    for parse in (fast, slow):
        try:
            found.append(parse())
        except (ProtocolError, struct.error, IndexError, UnicodeDecodeError):
            found.append(None)
    return found[0], found[1]


@settings(max_examples=500)
@given(st.data(), st.integers(3, 13), names, st.binary(max_size=300))
def test_fast_and_slow_produce_parsers_agree(
    data: st.DataObject, version: int, name: str, records: bytes
) -> None:
    topic: Any = UUID(int=5) if version >= 13 else name
    frame = produce_client.encode_request(version, 1, None, 1, 5, [(topic, [(3, records)])])
    view = memoryview(frame)
    body = frame[parse_request_header(view, 4, len(view)).body_position :]
    for raw in (body, damage(data, body)):
        found = placed(raw)
        end = AROUND + len(raw)
        if version < 9:
            fast, slow = both(
                lambda: produce._parse_single(found, AROUND, end),  # noqa: B023
                lambda: produce._parse_many(found[AROUND:end], AROUND),  # noqa: B023
            )
        else:
            fast, slow = both(
                lambda: produce._parse_single_flexible(found, AROUND, end, version),  # noqa: B023
                lambda: produce._parse_many_flexible(found[AROUND:end], AROUND, version),  # noqa: B023
            )
        assert fast is None or fast == slow
        if raw is body and len(name.encode()) <= 126:
            assert fast is not None


@settings(max_examples=500)
@given(st.data(), st.integers(11, 18), names, int32, int64)
def test_fast_and_slow_fetch_parsers_agree(
    data: st.DataObject, version: int, name: str, number: int, offset: int
) -> None:
    topic: Any = UUID(int=5) if version >= 13 else name
    partition = (number, number, offset, -1 if version == 11 else number, offset, number)
    request = FetchRequest(-1, 500, 1, 9, 0, 4, 5, [(topic, [partition])], [], "")
    frame = fetch_client.encode_request(version, 1, None, request)
    view = memoryview(frame)
    body = frame[parse_request_header(view, 4, len(view)).body_position :]
    for raw in (body, damage(data, body)):
        found = placed(raw)
        end = AROUND + len(raw)
        if version == 11:
            fast, slow = both(
                lambda: fetch._parse_single(found, AROUND, end),  # noqa: B023
                lambda: fetch._parse_legacy(found[AROUND:end], version),  # noqa: B023
            )
        else:
            fast, slow = both(
                lambda: fetch._parse_single_flexible(found, AROUND, end, version),  # noqa: B023
                lambda: fetch._parse_flexible(found[AROUND:end], version),  # noqa: B023
            )
        assert fast is None or fast == slow
        if raw is body and len(name.encode()) <= 126:
            assert fast == request
