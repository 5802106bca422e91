"""Produce, versions 3 to 13, the client's half: requests out, responses in.

The reverse of `dlog.wire.produce`, for dlog's own clients and the simulation's; the layout is in
docs/formats/produce.md.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from dlog.checksum import Buffer
from dlog.wire import topics as topic_keys
from dlog.wire.apis import ApiKey
from dlog.wire.frame import encode_frame, encode_request_header
from dlog.wire.leaders import CurrentLeader, NodeEndpoint, parse_endpoints_tags, parse_leader
from dlog.wire.primitives import append_count, append_string, append_uvarint, iter_tags
from dlog.wire.produce import (
    ENTRIES_MAX,
    FLEXIBLE_VERSION,
    LEADER_TAG,
    LEADER_VERSION,
    TOPIC_ID_VERSION,
    ProducedPartition,
)
from dlog.wire.reader import Reader
from dlog.wire.topics import TopicKey

_INT32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_PRODUCED_3 = struct.Struct(">ihqq")
_PRODUCED_5 = struct.Struct(">ihqqq")


class ProduceResponse(NamedTuple):
    """A parsed response; `leaders` and `endpoints` say where to go instead (version 10)."""

    topics: list[tuple[TopicKey, list[ProducedPartition]]]
    throttle_ms: int
    leaders: dict[tuple[TopicKey, int], CurrentLeader]
    endpoints: list[NodeEndpoint]


def encode_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: Sequence[tuple[TopicKey, Sequence[tuple[int, Buffer]]]],
    transactional_id: str | None = None,
) -> bytes:
    """Return a whole request frame; each partition comes with its record set."""
    flexible = version >= FLEXIBLE_VERSION
    head = bytearray(encode_request_header(ApiKey.PRODUCE, version, correlation_id, client_id))
    append_string(head, transactional_id, flexible)
    head += _ACKS_TIMEOUT.pack(acks, timeout_ms)
    append_count(head, len(topics), flexible)
    pieces: list[Buffer] = [head]
    for topic, partitions in topics:
        topic_head = bytearray()
        topic_keys.append_key(topic_head, topic, flexible)
        append_count(topic_head, len(partitions), flexible)
        pieces.append(topic_head)
        for partition, records in partitions:
            partition_head = bytearray(_INT32.pack(partition))
            size = memoryview(records).nbytes
            if flexible:
                append_uvarint(partition_head, size + 1)
                pieces += (partition_head, records, b"\x00")
            else:
                partition_head += _INT32.pack(size)
                pieces += (partition_head, records)
        if flexible:
            pieces.append(b"\x00")
    if flexible:
        pieces.append(b"\x00")
    return encode_frame(*pieces)


def parse_response(buffer: memoryview, position: int, end: int, version: int) -> ProduceResponse:
    """Read the body of a response, which is all of [position, end)."""
    reader = Reader(buffer, position, end, flexible=version >= FLEXIBLE_VERSION)
    response = ProduceResponse([], 0, {}, [])
    entries = 0
    for _ in range(reader.count(ENTRIES_MAX)):
        topic = reader.topic_key(version >= TOPIC_ID_VERSION)
        partitions: list[ProducedPartition] = []
        count = reader.count(ENTRIES_MAX - entries)
        entries += count + 1
        for _ in range(count):
            partition, leader = _parse_partition(reader, version)
            partitions.append(partition)
            if leader is not None:
                response.leaders[topic, partition[0]] = leader
        reader.tags()
        response.topics.append((topic, partitions))
    (throttle_ms,) = reader.numbers(_INT32)
    endpoints: list[NodeEndpoint] = []
    if version >= LEADER_VERSION:
        endpoints, reader.position = parse_endpoints_tags(buffer, reader.position, end)
    else:
        reader.tags()
    reader.finish()
    return response._replace(throttle_ms=throttle_ms, endpoints=endpoints)


def _parse_partition(
    reader: Reader, version: int
) -> tuple[ProducedPartition, CurrentLeader | None]:
    log_start = -1
    if version < 5:
        partition, error, base_offset, time_ms = reader.numbers(_PRODUCED_3)
    else:
        partition, error, base_offset, time_ms, log_start = reader.numbers(_PRODUCED_5)
    message = None
    leader = None
    if version >= 8:
        for _ in range(reader.count(ENTRIES_MAX)):
            # One record that is to blame; the message of the batch says enough.
            reader.numbers(_INT32)
            reader.nullable_string()
            reader.tags()
        message = reader.nullable_string()
    if version >= FLEXIBLE_VERSION:
        for tag, start, after in iter_tags(reader.buffer, reader.position, reader.end):
            if tag == LEADER_TAG:
                leader = parse_leader(reader.buffer, start, after)
            reader.position = after
    return (partition, error, base_offset, time_ms, log_start, message), leader
