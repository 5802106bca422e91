"""Fetch, versions 4 to 18, coded by hand because it runs once per request.

This is the server's half: numbers out of a request, and a response in pieces between which the
caller streams record sets from memory or files; the client's half is `dlog.wire.fetch_client`
(docs/formats/fetch.md). A list of many partitions is unpacked at once. The parser raises
ProtocolError and nothing else, and never reads beyond the end that it is given.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from dlog.errors import ProtocolError
from dlog.rows import unpack_rows
from dlog.wire import topics as topic_keys
from dlog.wire.leaders import CurrentLeader, NodeEndpoint, append_leader, endpoints_tags
from dlog.wire.primitives import append_count, append_uvarint, iter_tags
from dlog.wire.reader import Reader
from dlog.wire.topics import TopicKey, append_key

FLEXIBLE_VERSION = 12
TOPIC_ID_VERSION = 13
REPLICA_STATE_VERSION = 15
"""First version with the replica's id and epoch in a tagged field (KIP-903)."""
ENDPOINTS_VERSION = 16
"""First version whose response may name the endpoints of leaders (KIP-951)."""

REPLICA_STATE_TAG = 1
DIVERGING_EPOCH_TAG = 0
CURRENT_LEADER_TAG = 1

ENTRIES_MAX = 100_000
"""Topics and partitions in one message; more are refused, for each costs memory of ours."""
REQUEST_ENTRIES_MAX = 20_000
"""The same in a request: ten thousand partitions, each in a topic of its own, take 0.1 s."""

COMPARING_REPLICA_ID = -2
"""Of who looks at one replica, and not at the log: Kafka's DEBUGGING_CONSUMER_ID."""

FetchPartition = tuple[int, int, int, int, int, int]
"""(partition, current leader epoch, fetch offset, last fetched epoch, log start offset of the
follower, bytes at most); -1 for what a version does not have."""


class FetchRequest(NamedTuple):
    """A parsed request; `replica_id` is -1 for a consumer, COMPARING_REPLICA_ID."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicKey, list[FetchPartition]]]
    forgotten: list[tuple[TopicKey, list[int]]]
    rack_id: str
    replica_epoch: int = -1


class FetchedPartition(NamedTuple):
    """One partition of a response, its records by their size; absent things are -1 or None."""

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records_bytes: int
    diverging_epoch: tuple[int, int] | None = None
    """(epoch, its end offset): the follower's log differs from there on; version 12."""
    current_leader: CurrentLeader | None = None
    """Version 12."""
    preferred_read_replica: int = -1
    """Version 11."""
    aborted: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset) of aborted transactions among the records."""


_INT32 = struct.Struct(">i")
_FRAME_HEAD = struct.Struct(">ii")  # length, correlation id
_ERROR_SESSION = struct.Struct(">hi")
_DIVERGING_TAG = struct.Struct(">BBiqB")  # tag, size, epoch, end offset, tagged fields
_REPLICA_STATE = struct.Struct(">iq")  # id, epoch
_ABORTED = struct.Struct(">qq")
_new_tuple = tuple.__new__

# Before the topics: replica id (to 14), max wait, min bytes, max bytes, isolation level, and the
# session's id and epoch (from 7).
_HEAD_4 = struct.Struct(">iiiib")
_HEAD_7 = struct.Struct(">iiiibii")
_HEAD_15 = struct.Struct(">iiibii")

# One partition of a request: partition, current leader epoch (from 9), fetch offset, last fetched
# epoch (from 12), log start offset (from 5), max bytes, count of tagged fields (from 12).
_PARTITION_4 = struct.Struct(">iqi")
_PARTITION_5 = struct.Struct(">iqqi")
_PARTITION_9 = struct.Struct(">iiqqi")
_PARTITION_12 = struct.Struct(">iiqiqiB")

# One partition of a response: partition, error, high watermark, last stable offset, log start
# offset (from 5), count of aborted transactions, preferred read replica (from 11), size of the
# records. From 12 on the count is a varint (here of one byte); so is the size, not in here.
_FETCHED_4 = struct.Struct(">ihqqii").pack
_FETCHED_5 = struct.Struct(">ihqqqii").pack
_FETCHED_11 = struct.Struct(">ihqqqiii").pack
_FETCHED_12 = struct.Struct(">ihqqqBi").pack
_UP_TO_ABORTED_4 = struct.Struct(">ihqq").pack
_UP_TO_ABORTED_5 = struct.Struct(">ihqqq").pack


# Whole requests of a consumer for one partition, without forgotten topics and rack. Version 11:
# head, topics, length of the name, name, partitions, partition, forgotten, length of the rack. From
# 12 on with one-byte lengths, and five bytes that must be `_SINGLE_TAIL`: no tagged fields of
# partition and topic, nothing forgotten, no rack, no tagged fields of the body.
_SINGLE_11 = [struct.Struct(f">iiiibiiih{n}siiiqqiih").unpack_from for n in range(250)]
_SINGLE_12 = [struct.Struct(f">iiiibiiBB{n}sBiiqiqi5s").unpack_from for n in range(127)]
_SINGLE_13 = struct.Struct(">iiiibiiB16sBiiqiqi5s").unpack_from
_SINGLE_15 = struct.Struct(">iiibiiB16sBiiqiqi5s").unpack_from
_SINGLE_TAIL = b"\x00\x00\x01\x01\x00"


def parse_request(buffer: memoryview, position: int, end: int, version: int) -> FetchRequest:
    """Read the body of a request, which is all of [position, end)."""
    try:
        if version >= 12:
            request = _parse_single_flexible(buffer, position, end, version)
        else:
            request = _parse_single(buffer, position, end) if version == 11 else None
    except (struct.error, IndexError):
        request = None
    except UnicodeDecodeError:
        raise ProtocolError("a topic's name is not UTF-8") from None
    if request is not None:
        return request
    # In a view of its own an offset beyond the end is an exception instead of a wrong read.
    view = buffer[position:end]
    try:
        if version < FLEXIBLE_VERSION:
            return _parse_legacy(view, version)
        return _parse_flexible(view, version)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"malformed fetch request: {error}") from None


def _parse_single(buffer: memoryview, position: int, end: int) -> FetchRequest | None:
    """Read version 11 with one partition; None when it is anything else.

    The size that leads exactly to `end` proves that nothing was read beyond it.
    """
    name_bytes = buffer[position + 29] << 8 | buffer[position + 30]
    if position + name_bytes + 69 != end:
        return None
    (
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch,
        topics, _, raw, partitions, partition, leader_epoch, offset, log_start, size, forgotten,
        rack_bytes,
    ) = _SINGLE_11[name_bytes](buffer, position)  # fmt: skip
    if topics != 1 or partitions != 1 or forgotten or rack_bytes:
        return None
    name = topic_keys.names.get(raw) or topic_keys.decode_name(raw)
    return _new_tuple(
        FetchRequest,
        (
            replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id,
            session_epoch, [(name, [(partition, leader_epoch, offset, -1, log_start, size)])], [],
            "", -1,
        ),
    )  # fmt: skip


def _parse_single_flexible(
    buffer: memoryview, position: int, end: int, version: int
) -> FetchRequest | None:
    """Read versions 12..18 with one partition; None when it is anything else."""
    if version >= REPLICA_STATE_VERSION:
        if position + 76 != end:
            return None
        fields = (-1, *_SINGLE_15(buffer, position))
    elif version >= TOPIC_ID_VERSION:
        if position + 80 != end:
            return None
        fields = _SINGLE_13(buffer, position)
    else:
        name_bytes = buffer[position + 26] - 1
        if position + name_bytes + 65 != end or name_bytes < 0:
            return None
        fields = _SINGLE_12[name_bytes](buffer, position)
        fields = fields[:8] + fields[9:]  # without the length of the name
    raw = fields[8]
    if fields[7] != 2 or fields[9] != 2 or fields[16] != _SINGLE_TAIL:
        return None
    topic: TopicKey
    if version >= TOPIC_ID_VERSION:
        topic = topic_keys.ids.get(raw) or topic_keys.decode_id(raw)
    else:
        topic = topic_keys.names.get(raw) or topic_keys.decode_name(raw)
    return _new_tuple(FetchRequest, (*fields[:7], [(topic, [fields[10:16]])], [], "", -1))


def _parse_legacy(view: memoryview, version: int) -> FetchRequest:
    if version >= 7:
        head = _HEAD_7.unpack_from(view)
        position = _HEAD_7.size
    else:
        head = (*_HEAD_4.unpack_from(view), 0, -1)
        position = _HEAD_4.size
    reader = Reader(view, position, len(view), flexible=False)
    entries = reader.count(REQUEST_ENTRIES_MAX)
    topics: list[tuple[TopicKey, list[FetchPartition]]] = []
    for _ in range(entries):
        topic = reader.topic_key(False)
        count = reader.count(REQUEST_ENTRIES_MAX - entries)
        entries += count
        topics.append((topic, _read_partitions_legacy(reader, count, version)))
    forgotten = _read_forgotten(reader, False) if version >= 7 else []
    rack_id = reader.string() if version >= 11 else ""
    reader.finish()
    return _new_tuple(FetchRequest, (*head, topics, forgotten, rack_id, -1))


def _read_partitions_legacy(reader: Reader, count: int, version: int) -> list[FetchPartition]:
    if version >= 9:
        return [
            (partition, leader_epoch, offset, -1, log_start, size)
            for partition, leader_epoch, offset, log_start, size in reader.rows(_PARTITION_9, count)
        ]
    if version >= 5:
        return [
            (partition, -1, offset, -1, log_start, size)
            for partition, offset, log_start, size in reader.rows(_PARTITION_5, count)
        ]
    return [
        (partition, -1, offset, -1, -1, size)
        for partition, offset, size in reader.rows(_PARTITION_4, count)
    ]


def _read_forgotten(reader: Reader, by_id: bool) -> list[tuple[TopicKey, list[int]]]:
    """Read the partitions that leave the session."""
    entries = reader.count(REQUEST_ENTRIES_MAX)
    forgotten: list[tuple[TopicKey, list[int]]] = []
    for _ in range(entries):
        topic = reader.topic_key(by_id)
        count = reader.count(REQUEST_ENTRIES_MAX - entries)
        entries += count
        forgotten.append((topic, [row[0] for row in reader.rows(_INT32, count)]))
        reader.tags()
    return forgotten


def _parse_flexible(view: memoryview, version: int) -> FetchRequest:
    if version < REPLICA_STATE_VERSION:
        head = _HEAD_7.unpack_from(view)
        position = _HEAD_7.size
    else:
        head = (-1, *_HEAD_15.unpack_from(view))
        position = _HEAD_15.size
    reader = Reader(view, position, len(view), flexible=True)
    by_id = version >= TOPIC_ID_VERSION
    entries = reader.count(REQUEST_ENTRIES_MAX)
    topics: list[tuple[TopicKey, list[FetchPartition]]] = []
    for _ in range(entries):
        topic = reader.topic_key(by_id)
        count = reader.count(REQUEST_ENTRIES_MAX - entries)
        entries += count
        topics.append((topic, _read_partitions_flexible(reader, count)))
        reader.tags()
    forgotten = _read_forgotten(reader, by_id)
    rack_id = reader.string()
    replica_id, replica_epoch = head[0], -1
    for tag, start, after in iter_tags(view, reader.position, reader.end):
        if tag == REPLICA_STATE_TAG and version >= REPLICA_STATE_VERSION:
            state = Reader(view, start, after, flexible=True)
            replica_id, replica_epoch = state.numbers(_REPLICA_STATE)
        reader.position = after
    reader.finish()
    return _new_tuple(
        FetchRequest, (replica_id, *head[1:], topics, forgotten, rack_id, replica_epoch)
    )


def _read_partitions_flexible(reader: Reader, count: int) -> list[FetchPartition]:
    """Read partitions: all at once when none has a tagged field, else one by one."""
    position = reader.position
    end = position + count * _PARTITION_12.size
    if end <= reader.end:
        rows = list(unpack_rows(_PARTITION_12, reader.buffer[position:end]))
        if not any(row[6] for row in rows):
            reader.position = end
            return [row[:6] for row in rows]
    partitions: list[FetchPartition] = []
    for _ in range(count):
        row = reader.numbers(_PARTITION_12)
        if row[6]:
            reader.position -= 1
            reader.tags()
        partitions.append(row[:6])
    return partitions


def encode_response_parts(
    version: int,
    correlation_id: int,
    throttle_ms: int,
    error_code: int,
    session_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[FetchedPartition]]],
    endpoints: Sequence[NodeEndpoint] = (),
) -> list[bytes | int]:
    """Return the response frame without its record sets: bytes, and sizes where those belong.

    Each number stands for the records of the next partition whose `records_bytes` is not 0, in the
    order of `topics`: send the bytes, that many bytes of records, the next bytes, and so on. The
    frame's length counts them all. Never two numbers in a row; first and last are bytes.
    """
    flexible = version >= FLEXIBLE_VERSION
    body = bytearray(9 if flexible else 8)  # length, correlation id, tagged fields of the header
    body += _INT32.pack(throttle_ms)
    if version >= 7:
        body += _ERROR_SESSION.pack(error_code, session_id)
    append_count(body, len(topics), flexible)
    chunks = [body]
    sizes: list[int] = []
    append_partition = _append_flexible if flexible else _append_legacy
    for topic, partitions in topics:
        append_key(body, topic, flexible)
        append_count(body, len(partitions), flexible)
        for partition in partitions:
            append_partition(body, version, partition)
            if partition[5]:
                sizes.append(partition[5])
                body = bytearray()
                chunks.append(body)
            if flexible:
                _append_partition_tags(body, partition)
        if flexible:
            body += b"\x00"
    if flexible:
        body += endpoints_tags(endpoints) if version >= ENDPOINTS_VERSION else b"\x00"
    length = sum(map(len, chunks)) + sum(sizes) - 4
    _FRAME_HEAD.pack_into(chunks[0], 0, length, correlation_id)
    pieces: list[bytes | int] = [bytes(chunks[0])]
    for size, chunk in zip(sizes, chunks[1:], strict=True):
        pieces += (size, bytes(chunk))
    return pieces


def _append_legacy(body: bytearray, version: int, fetched: FetchedPartition) -> None:
    """Append a partition of versions 4..11 up to its records."""
    partition, error, high_watermark, stable, log_start, size, _, _, preferred, aborted = fetched
    if aborted:
        if version >= 5:
            body += _UP_TO_ABORTED_5(partition, error, high_watermark, stable, log_start)
        else:
            body += _UP_TO_ABORTED_4(partition, error, high_watermark, stable)
        body += _INT32.pack(len(aborted))
        for transaction in aborted:
            body += _ABORTED.pack(*transaction)
        if version >= 11:
            body += _INT32.pack(preferred)
        body += _INT32.pack(size)
        return
    count = -1 if aborted is None else 0
    if version >= 11:
        body += _FETCHED_11(
            partition, error, high_watermark, stable, log_start, count, preferred, size
        )
    elif version >= 5:
        body += _FETCHED_5(partition, error, high_watermark, stable, log_start, count, size)
    else:
        body += _FETCHED_4(partition, error, high_watermark, stable, count, size)


def _append_flexible(body: bytearray, version: int, fetched: FetchedPartition) -> None:
    """Append a partition of versions 12..18 up to its records."""
    partition, error, high_watermark, stable, log_start, size, _, _, preferred, aborted = fetched
    if aborted:
        body += _UP_TO_ABORTED_5(partition, error, high_watermark, stable, log_start)
        append_uvarint(body, len(aborted) + 1)
        for transaction in aborted:
            body += _ABORTED.pack(*transaction)
            body += b"\x00"
        body += _INT32.pack(preferred)
    else:
        count = 0 if aborted is None else 1
        body += _FETCHED_12(partition, error, high_watermark, stable, log_start, count, preferred)
    append_uvarint(body, size + 1)


def _append_partition_tags(body: bytearray, fetched: FetchedPartition) -> None:
    diverging, leader = fetched[6], fetched[7]
    body.append((diverging is not None) + (leader is not None))
    if diverging is not None:
        body += _DIVERGING_TAG.pack(DIVERGING_EPOCH_TAG, 13, *diverging, 0)
    if leader is not None:
        append_leader(body, CURRENT_LEADER_TAG, leader)
