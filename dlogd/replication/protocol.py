"""The frames of a replication stream between a follower and one leader.

Pure. A follower names each partition once, by a handle of its own choice; from then on only what
moves is on the wire. A handle is never used twice on a connection, so nothing that was said about a
partition in one leader epoch can count in another.

docs/formats/replication.md describes each byte:

    i32 size | u8 kind, 3 zero bytes, u32 count | rows, the same size each | records (DATA only)

Follower to leader: SUBSCRIBE, UNSUBSCRIBE, PROGRESS (its rows follow a u64: DATA frames taken so
far). Leader to follower: DATA, REFUSED. A frame without rows says that its sender is alive.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from dlog.errors import ProtocolError
from dlog.rows import unpack_rows

SUBSCRIBE, UNSUBSCRIBE, PROGRESS, DATA, REFUSED = range(1, 6)

ROWS_MAX = 200_000
"""More in one frame are refused: each costs memory of ours."""

FRAME_BYTES = 512 << 10
"""A DATA frame has at most so many bytes of records, or one batch."""

MORE = 1
"""Flag of a DATA row: the leader goes on when it hears how far the follower has come."""

_HEAD = struct.Struct(">IB3xI")
_KIND = struct.Struct(">B3xI")
_TAKEN = struct.Struct(">Q")
_HANDLE = struct.Struct(">I")
_SUBSCRIBE = struct.Struct(">I16siiqiqq")
_PROGRESS = struct.Struct(">Iqqq")
_DATA = struct.Struct(">IqqqiB")
_REFUSED = struct.Struct(">Ihiqqq")

Progress = tuple[int, int, int, int]
"""Handle, promised offset, log end offset, log start offset of the follower."""

DataRow = tuple[int, int, int, int, int, int]
"""Handle, high watermark, log start offset, base offset of the records, their bytes, flags."""


class Subscription(NamedTuple):
    """What a follower says of itself when it begins to follow a partition."""

    handle: int
    topic_id: UUID
    partition: int
    leader_epoch: int
    fetch_offset: int  # its log end offset
    last_epoch: int  # of its last batch; -1: it has none
    log_start_offset: int
    promised_offset: int


class Refusal(NamedTuple):
    """Why a leader does not serve a subscription, or no more.

    Without an error the logs differ: `epoch` and `end_offset` say where the leader's largest epoch
    not above the follower's ends.
    """

    handle: int
    error_code: int
    epoch: int
    end_offset: int
    log_start_offset: int
    log_end_offset: int


def parse_kind(buffer: memoryview, start: int, end: int) -> tuple[int, int, int]:
    """Return kind, count of rows and the position behind the head; raise ProtocolError."""
    if end - start < _KIND.size:
        raise ProtocolError("a frame of a replication stream without a head")
    kind, count = _KIND.unpack_from(buffer, start)
    if count > ROWS_MAX:
        raise ProtocolError(f"{count} rows in a frame of a replication stream")
    return kind, count, start + _KIND.size


def _rows(
    row: struct.Struct, buffer: memoryview, position: int, end: int, count: int
) -> Iterator[tuple[int, ...]]:
    if end - position != count * row.size:
        raise ProtocolError(f"{count} rows do not take {end - position} bytes")
    return unpack_rows(row, buffer[position:end])


def _frame(kind: int, row: struct.Struct, rows: Sequence[tuple[int, ...]]) -> bytes:
    head = _HEAD.pack(_KIND.size + row.size * len(rows), kind, len(rows))
    return head + b"".join([row.pack(*each) for each in rows])


def encode_subscribe(subscriptions: Iterable[Subscription]) -> bytes:
    """Return a whole frame."""
    rows = [_SUBSCRIBE.pack(each.handle, each.topic_id.bytes, *each[2:]) for each in subscriptions]
    return _HEAD.pack(_KIND.size + _SUBSCRIBE.size * len(rows), SUBSCRIBE, len(rows)) + b"".join(
        rows
    )


def parse_subscribe(buffer: memoryview, position: int, end: int, count: int) -> list[Subscription]:
    """Read the rows; raise ProtocolError."""
    if end - position != count * _SUBSCRIBE.size:
        raise ProtocolError(f"{count} subscriptions do not take {end - position} bytes")
    return [
        Subscription(row[0], UUID(bytes=row[1]), *row[2:])
        for row in unpack_rows(_SUBSCRIBE, buffer[position:end])
    ]


def encode_unsubscribe(handles: Sequence[int]) -> bytes:
    """Return a whole frame."""
    return _frame(UNSUBSCRIBE, _HANDLE, [(handle,) for handle in handles])


def parse_unsubscribe(buffer: memoryview, position: int, end: int, count: int) -> list[int]:
    """Read the rows; raise ProtocolError."""
    return [row[0] for row in _rows(_HANDLE, buffer, position, end, count)]


def encode_progress(frames_taken: int, rows: Sequence[Progress]) -> bytes:
    """Return a whole frame."""
    size = _KIND.size + _TAKEN.size + _PROGRESS.size * len(rows)
    pack = _PROGRESS.pack
    parts = [_HEAD.pack(size, PROGRESS, len(rows)), _TAKEN.pack(frames_taken)]
    return b"".join(parts + [pack(*each) for each in rows])


def parse_progress(
    buffer: memoryview, position: int, end: int, count: int
) -> tuple[int, Iterator[tuple[int, ...]]]:
    """Read how many DATA frames were taken, and the rows (`Progress`); raise ProtocolError."""
    if end - position < _TAKEN.size:
        raise ProtocolError("a progress frame that is too short")
    (taken,) = _TAKEN.unpack_from(buffer, position)
    return taken, _rows(_PROGRESS, buffer, position + _TAKEN.size, end, count)


def encode_data(rows: Sequence[DataRow], records_bytes: int) -> bytes:
    """Return a frame up to its records, of which `records_bytes` follow in the order of `rows`."""
    size = _KIND.size + _DATA.size * len(rows) + records_bytes
    pack = _DATA.pack
    return b"".join([_HEAD.pack(size, DATA, len(rows)), *[pack(*each) for each in rows]])


def parse_data(
    buffer: memoryview, position: int, end: int, count: int
) -> tuple[list[tuple[int, ...]], int]:
    """Return the rows (`DataRow`) and where their records begin; raise ProtocolError."""
    records = position + count * _DATA.size
    if records > end:
        raise ProtocolError("a data frame that is too short")
    rows = list(unpack_rows(_DATA, buffer[position:records]))
    sizes = [row[4] for row in rows]
    if any(size < 0 for size in sizes) or records + sum(sizes) != end:
        raise ProtocolError("a data frame whose sizes do not fit")
    return rows, records


def encode_refused(refusals: Sequence[Refusal]) -> bytes:
    """Return a whole frame."""
    return _frame(REFUSED, _REFUSED, refusals)


def parse_refused(buffer: memoryview, position: int, end: int, count: int) -> list[Refusal]:
    """Read the rows; raise ProtocolError."""
    return [Refusal(*row) for row in _rows(_REFUSED, buffer, position, end, count)]
