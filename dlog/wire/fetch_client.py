"""Fetch, versions 4 to 18, the client's half: requests out, responses in.

The reverse of `dlog.wire.fetch`, for dlog's own clients, followers and the simulation; the layout
is in docs/formats/fetch.md. Records stay where they are in the caller's buffer.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from dlog.wire.apis import ApiKey
from dlog.wire.fetch import (
    CURRENT_LEADER_TAG,
    DIVERGING_EPOCH_TAG,
    ENDPOINTS_VERSION,
    ENTRIES_MAX,
    FLEXIBLE_VERSION,
    REPLICA_STATE_TAG,
    REPLICA_STATE_VERSION,
    TOPIC_ID_VERSION,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
)
from dlog.wire.frame import encode_frame, encode_request_header
from dlog.wire.leaders import NodeEndpoint, parse_endpoints_tags, parse_leader
from dlog.wire.primitives import append_count, append_string, iter_tags
from dlog.wire.reader import Reader
from dlog.wire.topics import TopicKey, append_key

_INT32 = struct.Struct(">i")
_ERROR_SESSION = struct.Struct(">hi")
_HEAD = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION = struct.Struct(">ii")
_REPLICA_STATE = struct.Struct(">iqB")
_PARTITION_4 = struct.Struct(">iqi")
_PARTITION_5 = struct.Struct(">iqqi")
_PARTITION_9 = struct.Struct(">iiqqi")
_PARTITION_12 = struct.Struct(">iiqiqiB")
_FETCHED_4 = struct.Struct(">ihqq")
_FETCHED_5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_DIVERGING = struct.Struct(">iq")


class FetchResponse(NamedTuple):
    """A parsed response; each partition with the position of its records in the buffer.

    The records end at that position + `records_bytes`; the last batch may be cut.
    """

    throttle_ms: int
    error_code: int
    session_id: int
    topics: list[tuple[TopicKey, list[tuple[FetchedPartition, int]]]]
    endpoints: list[NodeEndpoint]


def encode_request(
    version: int, correlation_id: int, client_id: str | None, request: FetchRequest
) -> bytes:
    """Return a whole request frame; what the version does not have is left out."""
    flexible = version >= FLEXIBLE_VERSION
    body = bytearray(encode_request_header(ApiKey.FETCH, version, correlation_id, client_id))
    if version < REPLICA_STATE_VERSION:
        body += _INT32.pack(request.replica_id)
    body += _HEAD.pack(
        request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level
    )
    if version >= 7:
        body += _SESSION.pack(request.session_id, request.session_epoch)
    append_count(body, len(request.topics), flexible)
    for topic, partitions in request.topics:
        append_key(body, topic, flexible)
        append_count(body, len(partitions), flexible)
        for partition in partitions:
            _append_partition(body, version, partition)
        if flexible:
            body += b"\x00"
    if version >= 7:
        _append_forgotten(body, request.forgotten, flexible)
    if version >= 11:
        append_string(body, request.rack_id, flexible)
    if flexible:
        if version < REPLICA_STATE_VERSION or request.replica_id == -1:
            body += b"\x00"
        else:
            body += bytes((1, REPLICA_STATE_TAG, _REPLICA_STATE.size))
            body += _REPLICA_STATE.pack(request.replica_id, request.replica_epoch, 0)
    return encode_frame(body)


def _append_partition(body: bytearray, version: int, fetch_partition: FetchPartition) -> None:
    partition, leader_epoch, offset, last_epoch, log_start, size = fetch_partition
    if version >= FLEXIBLE_VERSION:
        body += _PARTITION_12.pack(partition, leader_epoch, offset, last_epoch, log_start, size, 0)
    elif version >= 9:
        body += _PARTITION_9.pack(partition, leader_epoch, offset, log_start, size)
    elif version >= 5:
        body += _PARTITION_5.pack(partition, offset, log_start, size)
    else:
        body += _PARTITION_4.pack(partition, offset, size)


def _append_forgotten(
    body: bytearray, forgotten: Sequence[tuple[TopicKey, Sequence[int]]], flexible: bool
) -> None:
    append_count(body, len(forgotten), flexible)
    for topic, partitions in forgotten:
        append_key(body, topic, flexible)
        append_count(body, len(partitions), flexible)
        body += struct.pack(f">{len(partitions)}i", *partitions)
        if flexible:
            body += b"\x00"


def parse_response(buffer: memoryview, position: int, end: int, version: int) -> FetchResponse:
    """Read the body of a response, which is all of [position, end)."""
    reader = Reader(buffer, position, end, flexible=version >= FLEXIBLE_VERSION)
    (throttle_ms,) = reader.numbers(_INT32)
    error_code, session_id = reader.numbers(_ERROR_SESSION) if version >= 7 else (0, 0)
    entries = reader.count(ENTRIES_MAX)
    topics: list[tuple[TopicKey, list[tuple[FetchedPartition, int]]]] = []
    for _ in range(entries):
        topic = reader.topic_key(version >= TOPIC_ID_VERSION)
        count = reader.count(ENTRIES_MAX - entries)
        entries += count
        topics.append((topic, [_parse_partition(reader, version) for _ in range(count)]))
        reader.tags()
    endpoints: list[NodeEndpoint] = []
    if version >= ENDPOINTS_VERSION:
        endpoints, reader.position = parse_endpoints_tags(buffer, reader.position, reader.end)
    else:
        reader.tags()
    reader.finish()
    return FetchResponse(throttle_ms, error_code, session_id, topics, endpoints)


def _parse_partition(reader: Reader, version: int) -> tuple[FetchedPartition, int]:
    log_start = -1
    if version < 5:
        partition, error, high_watermark, stable = reader.numbers(_FETCHED_4)
    else:
        partition, error, high_watermark, stable, log_start = reader.numbers(_FETCHED_5)
    aborted: list[tuple[int, int]] = []
    for _ in range(reader.count(ENTRIES_MAX)):
        producer_id, first_offset = reader.numbers(_ABORTED)
        reader.tags()
        aborted.append((producer_id, first_offset))
    preferred = reader.numbers(_INT32)[0] if version >= 11 else -1
    start, after = reader.span()
    diverging = leader = None
    if version >= FLEXIBLE_VERSION:
        for tag, tag_start, tag_end in iter_tags(reader.buffer, after, reader.end):
            if tag == DIVERGING_EPOCH_TAG:
                epoch, end_offset = Reader(
                    reader.buffer, tag_start, tag_end, flexible=True
                ).numbers(_DIVERGING)
                diverging = (epoch, end_offset)
            elif tag == CURRENT_LEADER_TAG:
                leader = parse_leader(reader.buffer, tag_start, tag_end)
            reader.position = tag_end
    fetched = FetchedPartition(
        partition, error, high_watermark, stable, log_start, after - start, diverging, leader,
        preferred, aborted or None,
    )  # fmt: skip
    return fetched, start
