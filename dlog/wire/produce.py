"""Produce, versions 3 to 13, coded by hand because it runs once per request.

This is the server's half: positions out of a request, whole frames of responses; the client's half
is `dlog.wire.produce_client` (docs/formats/produce.md). Record sets stay where they are, and
nothing here looks into them. A request for one partition, which is what librdkafka sends, takes one
precompiled struct; everything else goes through loops. The parser raises ProtocolError and nothing
else, and never reads beyond the end that it is given.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dlog.errors import ProtocolError
from dlog.wire import topics as topic_keys
from dlog.wire.leaders import (
    CurrentLeader,
    NodeEndpoint,
    append_leader,
    endpoints_tags,
)
from dlog.wire.primitives import append_count, append_uvarint, read_uvarint, skip_tags
from dlog.wire.topics import TopicKey

FLEXIBLE_VERSION = 9
TOPIC_ID_VERSION = 13
LEADER_VERSION = 10
"""First version whose response may say who leads instead (KIP-951)."""

LEADER_TAG = 0
_MESSAGE_CHARACTERS_MAX = 1000

ENTRIES_MAX = 100_000
"""Topics and partitions in one message; more are refused, for each costs memory of ours."""
REQUEST_ENTRIES_MAX = 20_000
"""The same in a request: ten thousand partitions, each in a topic of its own, are as many."""

PartitionData = tuple[int, int, int]
"""(partition, start, end): where its record set stands in the buffer; empty when it is null."""

ProducedPartition = tuple[int, int, int, int, int, str | None]
"""(partition, error code, base offset, log append time in ms or -1, log start offset, message)."""


class ProduceRequest(NamedTuple):
    """A parsed request; positions point into the buffer that was parsed."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicKey, list[PartitionData]]]


_FRAME_HEAD = struct.Struct(">ii")  # length, correlation id
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_ACKS_TIMEOUT_COUNT = struct.Struct(">hii")
_PARTITION = struct.Struct(">ii")  # partition, size of the record set

# Whole requests for one partition up to the records, by length of the name. Versions 3..8: length
# of the transactional id, acks, timeout, topics, length of the name, name, partitions, partition,
# size. From 9 on lengths are varints, here of one byte; the size comes after the struct.
_SINGLE = [
    struct.Struct(f">hhiih{n}siii").unpack_from for n in range(topic_keys.NAME_BYTES_MAX + 1)
]
_SINGLE_FLEXIBLE = [struct.Struct(f">BhiBB{n}sBi").unpack_from for n in range(127)]
_SINGLE_ID = struct.Struct(">BhiB16sBi").unpack_from
_NAME_MAX = len(_SINGLE)
_FLEXIBLE_NAME_MAX = len(_SINGLE_FLEXIBLE)

# One partition of a response: partition, error code, base offset, log append time, log start.
_PRODUCED_3 = struct.Struct(">ihqq")
_PRODUCED_5 = struct.Struct(">ihqqq")

_names = topic_keys.names
_ids = topic_keys.ids
_new_tuple = tuple.__new__
_NOWHERE = 1 << 40
_NO_LEADERS: Mapping[tuple[TopicKey, int], CurrentLeader] = {}


def parse_request(buffer: memoryview, position: int, end: int, version: int) -> ProduceRequest:
    """Read the body of a request, which is all of [position, end)."""
    try:
        if version < FLEXIBLE_VERSION:
            request = _parse_single(buffer, position, end)
        else:
            request = _parse_single_flexible(buffer, position, end, version)
    except (struct.error, IndexError):
        request = None
    except UnicodeDecodeError:
        raise ProtocolError("a topic's name is not UTF-8") from None
    if request is not None:
        return request
    try:
        # In a view of its own an offset beyond the end is an exception instead of a wrong read.
        if version < FLEXIBLE_VERSION:
            return _parse_many(buffer[position:end], position)
        return _parse_many_flexible(buffer[position:end], position, version)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"malformed produce request: {error}") from None


def _parse_single(buffer: memoryview, position: int, end: int) -> ProduceRequest | None:
    """Read versions 3..8 with one partition and no transaction; None when it is anything else.

    The size that leads exactly to `end` proves that nothing was read beyond it.
    """
    name_bytes = buffer[position + 12] << 8 | buffer[position + 13]
    if name_bytes >= _NAME_MAX:
        return None
    transactional, acks, timeout_ms, topics, _, raw, partitions, partition, size = _SINGLE[
        name_bytes
    ](buffer, position)
    start = position + name_bytes + 26
    if start + size != end or transactional != -1 or topics != 1 or partitions != 1 or size < 0:
        return None
    name = _names.get(raw) or topic_keys.decode_name(raw)
    return _new_tuple(ProduceRequest, (None, acks, timeout_ms, [(name, [(partition, start, end)])]))


def _parse_single_flexible(
    buffer: memoryview, position: int, end: int, version: int
) -> ProduceRequest | None:
    """Read versions 9..13 with one partition and no transaction; None when it is anything else."""
    if version < TOPIC_ID_VERSION:
        name_bytes = buffer[position + 8] - 1
        if not 0 <= name_bytes < _FLEXIBLE_NAME_MAX:
            return None
        transactional, acks, timeout_ms, topics, _, raw, partitions, partition = _SINGLE_FLEXIBLE[
            name_bytes
        ](buffer, position)
        start = position + name_bytes + 14
    else:
        transactional, acks, timeout_ms, topics, raw, partitions, partition = _SINGLE_ID(
            buffer, position
        )
        start = position + 29
    # The size is a varint and one too high.
    size = buffer[start]
    start += 1
    if size > 0x7F:
        size, start = _read_size(buffer, start, size)
    records_end = start + size - 1
    if (
        # What follows is three times "no tagged fields": of the partition, the topic, the request.
        records_end + 3 != end
        or transactional
        or topics != 2
        or partitions != 2
        or size == 0
        or buffer[records_end]
        or buffer[records_end + 1]
        or buffer[records_end + 2]
    ):
        return None
    topic: TopicKey
    if version < TOPIC_ID_VERSION:
        topic = _names.get(raw) or topic_keys.decode_name(raw)
    else:
        topic = _ids.get(raw) or topic_keys.decode_id(raw)
    return _new_tuple(
        ProduceRequest, (None, acks, timeout_ms, [(topic, [(partition, start, records_end)])])
    )


def _read_size(buffer: memoryview, position: int, first: int) -> tuple[int, int]:
    """Read the rest of a varint of up to four bytes; a longer one gives a size that never fits."""
    byte = buffer[position]
    value = first & 0x7F | (byte & 0x7F) << 7
    if byte < 0x80:
        return value, position + 1
    byte = buffer[position + 1]
    value |= (byte & 0x7F) << 14
    if byte < 0x80:
        return value, position + 2
    byte = buffer[position + 2]
    return (value | byte << 21) if byte < 0x80 else _NOWHERE, position + 3


def _check_entries(entries: int, count: int) -> int:
    """Return the number of entries so far; an array's count must not be negative or too high."""
    if count < 0 or entries + count > REQUEST_ENTRIES_MAX:
        raise ProtocolError(f"{count} topics or partitions after {entries}")
    return entries + count


def _parse_many(view: memoryview, base: int) -> ProduceRequest:
    """Read versions 3..8; `base` is where the view stands in the caller's buffer."""
    transactional_id = None
    (length,) = _INT16.unpack_from(view, 0)
    position = 2
    if length >= 0:
        position += length
        transactional_id = str(view[2:position], "utf-8")
    elif length != -1:
        raise ProtocolError("a negative length")
    acks, timeout_ms, count = _ACKS_TIMEOUT_COUNT.unpack_from(view, position)
    position += 10
    entries = _check_entries(0, count)
    topics: list[tuple[TopicKey, list[PartitionData]]] = []
    for _ in range(count):
        (length,) = _INT16.unpack_from(view, position)
        if length < 0:
            raise ProtocolError("a negative length")
        start = position + 2
        position = start + length
        name = topic_keys.decode_name(bytes(view[start:position]))
        (partition_count,) = _INT32.unpack_from(view, position)
        position += 4
        entries = _check_entries(entries, partition_count)
        partitions: list[PartitionData] = []
        for _ in range(partition_count):
            partition, size = _PARTITION.unpack_from(view, position)
            position += 8
            if size < 0:
                if size != -1:
                    raise ProtocolError("a negative length")
                size = 0
            partitions.append((partition, base + position, base + position + size))
            position += size
        topics.append((name, partitions))
    if position != len(view):
        raise ProtocolError(f"a produce request ends at {position} of {len(view)} bytes")
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _parse_many_flexible(view: memoryview, base: int, version: int) -> ProduceRequest:
    """Read versions 9..13; `base` is where the view stands in the caller's buffer."""
    end = len(view)
    transactional_id = None
    length, position = read_uvarint(view, 0, end)
    if length:
        start = position
        position += length - 1
        transactional_id = str(view[start:position], "utf-8")
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, position)
    count, position = read_uvarint(view, position + 6, end)
    entries = _check_entries(0, count - 1)
    topics: list[tuple[TopicKey, list[PartitionData]]] = []
    for _ in range(count - 1):
        topic, position = topic_keys.read_key(view, position, end, version >= TOPIC_ID_VERSION)
        partition_count, position = read_uvarint(view, position, end)
        entries = _check_entries(entries, partition_count - 1)
        partitions: list[PartitionData] = []
        for _ in range(partition_count - 1):
            (partition,) = _INT32.unpack_from(view, position)
            size, position = read_uvarint(view, position + 4, end)
            start = position
            if size:
                position += size - 1
            partitions.append((partition, base + start, base + position))
            if view[position]:
                position = skip_tags(view, position, end)
            else:
                position += 1
        position = skip_tags(view, position, end)
        topics.append((topic, partitions))
    position = skip_tags(view, position, end)
    if position != end:
        raise ProtocolError(f"a produce request ends at {position} of {end} bytes")
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


_Single = tuple[struct.Struct, int, bytes, bytes]
_singles: list[dict[TopicKey, _Single]] = [{} for _ in range(TOPIC_ID_VERSION + 1)]
_SINGLES_MAX = 16_384


def encode_single(
    version: int,
    correlation_id: int,
    topic: TopicKey,
    partition: int,
    error_code: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
) -> bytes:
    """Return the whole response frame for one partition, without message, throttling or leader.

    What stands around the numbers is the same for each topic and version, and remembered.
    """
    try:
        layout, length, head, tail = _singles[version][topic]
    except KeyError:
        layout, length, head, tail = _remember_single(version, topic)
    if version < 5:
        return layout.pack(
            length, correlation_id, head, partition, error_code, base_offset, log_append_time_ms,
            tail,
        )  # fmt: skip
    return layout.pack(
        length, correlation_id, head, partition, error_code, base_offset, log_append_time_ms,
        log_start_offset, tail,
    )  # fmt: skip


def _remember_single(version: int, topic: TopicKey) -> _Single:
    flexible = version >= FLEXIBLE_VERSION
    head = bytearray(b"\x00\x02" if flexible else b"\x00\x00\x00\x01")
    topic_keys.append_key(head, topic, flexible)
    head += b"\x02" if flexible else b"\x00\x00\x00\x01"
    tail = _partition_tail(version, None, None) + _topic_tail(version) + _INT32.pack(0)
    if flexible:
        tail += b"\x00"
    numbers = "ihqq" if version < 5 else "ihqqq"
    layout = struct.Struct(f">ii{len(head)}s{numbers}{len(tail)}s")
    single = (layout, layout.size - 4, bytes(head), tail)
    remembered = _singles[version]
    if len(remembered) >= _SINGLES_MAX:
        remembered.clear()
    remembered[topic] = single
    return single


def _partition_tail(version: int, message: str | None, leader: CurrentLeader | None) -> bytes:
    """Return what follows the log start offset: record errors (none), message, tagged fields."""
    if version < 8:
        return b""
    raw = None if message is None else message[:_MESSAGE_CHARACTERS_MAX].encode()
    if version < FLEXIBLE_VERSION:
        if raw is None:
            return b"\x00\x00\x00\x00\xff\xff"
        return b"\x00\x00\x00\x00" + _INT16.pack(len(raw)) + raw
    output = bytearray(b"\x01")
    if raw is None:
        output += b"\x00"
    else:
        append_uvarint(output, len(raw) + 1)
        output += raw
    if leader is None or version < LEADER_VERSION:
        output += b"\x00"
    else:
        output += b"\x01"
        append_leader(output, LEADER_TAG, leader)
    return bytes(output)


def _topic_tail(version: int) -> bytes:
    return b"\x00" if version >= FLEXIBLE_VERSION else b""


def encode_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[ProducedPartition]]],
    throttle_ms: int = 0,
    leaders: Mapping[tuple[TopicKey, int], CurrentLeader] = _NO_LEADERS,
    endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """Return the whole response frame: length, header and body.

    `leaders` and `endpoints` are left out below version 10. A message is cut to what fits.
    """
    if len(topics) == 1 and len(topics[0][1]) == 1 and not (throttle_ms or leaders or endpoints):
        topic, ((partition, error, base_offset, time_ms, log_start, message),) = topics[0]
        if message is None:
            return encode_single(
                version, correlation_id, topic, partition, error, base_offset, time_ms, log_start
            )
    flexible = version >= FLEXIBLE_VERSION
    body = bytearray(8)
    if flexible:
        body += b"\x00"
    append_count(body, len(topics), flexible)
    for topic, partitions in topics:
        topic_keys.append_key(body, topic, flexible)
        append_count(body, len(partitions), flexible)
        for partition, error, base_offset, time_ms, log_start, message in partitions:
            if version < 5:
                body += _PRODUCED_3.pack(partition, error, base_offset, time_ms)
            else:
                body += _PRODUCED_5.pack(partition, error, base_offset, time_ms, log_start)
            body += _partition_tail(version, message, leaders.get((topic, partition)))
        body += _topic_tail(version)
    body += _INT32.pack(throttle_ms)
    if flexible:
        body += endpoints_tags(endpoints) if version >= LEADER_VERSION else b"\x00"
    _FRAME_HEAD.pack_into(body, 0, len(body) - 4, correlation_id)
    return bytes(body)
