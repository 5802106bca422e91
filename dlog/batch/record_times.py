"""Timestamps of a batch, computed from its records and not from its head.

Clients may write any `max_timestamp` into a head; Kafka computes the value from the records. True
by definition are only `base_timestamp`, which the deltas count from, and `max_timestamp` under the
bit of LogAppendTime. Memory: one batch, decompressed to at most `RECORDS_BYTES_MAX`.
"""

from typing import NamedTuple

from dlog.batch import native
from dlog.batch.header import (
    ATTRIBUTES,
    BASE_TIME,
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    MAX_TIME,
    RECORD_COUNT,
    BatchHeader,
    decode_header,
)
from dlog.batch.records import RECORDS_BYTES_MAX
from dlog.checksum import Buffer
from dlog.compression import Codec, decompress
from dlog.errors import CorruptMessageError, UnsupportedCompressionTypeError

NO_TIMESTAMP = -1
_NEVER_MS = 2**63 - 1

CLAIMS_MASK = CODEC_MASK | LOG_APPEND_TIME_BIT
"""Attributes of a batch, masked, from 1 to 7: compressed, with a head as the client wrote it."""

Fields = tuple[int, ...]


class Unpacked:
    """How many bytes were decompressed; a batch that is refused counts with RECORDS_BYTES_MAX."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class RecordTime(NamedTuple):
    """The timestamp and the offset of one record."""

    timestamp_ms: int
    offset: int


def age_of(fields: Fields) -> int:
    """Return a timestamp that is true of a batch, by its head: of its first record."""
    return fields[MAX_TIME] if fields[ATTRIBUTES] & LOG_APPEND_TIME_BIT else fields[BASE_TIME]


def head_limit(fields: Fields) -> int:
    """Return what counts as the largest timestamp of a batch that nobody can decode."""
    return max(age_of(fields), fields[MAX_TIME], NO_TIMESTAMP)


def newest_of(batch: memoryview, fields: Fields, unpacked: Unpacked | None = None) -> int | None:
    """Return the largest timestamp of the records of a whole batch, at least NO_TIMESTAMP.

    `fields` are the head of the batch by BATCH_STRUCT. None: the records cannot be decoded.
    """
    if fields[ATTRIBUTES] & LOG_APPEND_TIME_BIT:
        return max(fields[MAX_TIME], NO_TIMESTAMP)
    if not fields[RECORD_COUNT]:
        return NO_TIMESTAMP
    try:
        header = decode_header(batch)
        found = native.find_record(
            _records_of(batch, header, unpacked),
            header.record_count,
            header.base_timestamp_ms,
            _NEVER_MS,
            0,
        )
    except (CorruptMessageError, UnsupportedCompressionTypeError):
        return None
    return NO_TIMESTAMP if found is None else max(found[0], NO_TIMESTAMP)


def first_record(
    batch: Buffer, timestamp_ms: int, start_offset: int, unpacked: Unpacked | None = None
) -> RecordTime | None:
    """Return the first record at or after `timestamp_ms`, from `start_offset` on."""
    found = _find(batch, timestamp_ms, start_offset, unpacked)
    return None if found is None or found.timestamp_ms < timestamp_ms else found


def newest_record(
    batch: Buffer, start_offset: int, unpacked: Unpacked | None = None
) -> RecordTime | None:
    """Return the first of the newest records of a batch, from `start_offset` on."""
    return _find(batch, _NEVER_MS, start_offset, unpacked)


def _find(
    batch: Buffer, timestamp_ms: int, start_offset: int, unpacked: Unpacked | None
) -> RecordTime | None:
    """Return the first such record, else the newest. A batch that cannot be decoded is found as a
    whole, by its head: the reader of it is told what is wrong.
    """
    view = memoryview(batch)
    header = decode_header(view)
    base_offset = header.base_offset
    first = max(base_offset, start_offset)
    if first >= header.next_offset or not header.record_count:
        return None
    if header.is_log_append_time:
        return RecordTime(header.max_timestamp_ms, first)
    try:
        found = native.find_record(
            _records_of(view, header, unpacked),
            header.record_count,
            header.base_timestamp_ms,
            timestamp_ms,
            start_offset - base_offset,
        )
    except (CorruptMessageError, UnsupportedCompressionTypeError):
        return RecordTime(max(header.base_timestamp_ms, header.max_timestamp_ms), first)
    return None if found is None else RecordTime(found[0], base_offset + found[1])


def _records_of(view: memoryview, header: BatchHeader, unpacked: Unpacked | None) -> Buffer:
    packed = view[HEADER_BYTES : header.batch_bytes]
    if header.codec is Codec.NONE:
        return packed
    size = RECORDS_BYTES_MAX
    try:
        records = decompress(header.codec, packed, RECORDS_BYTES_MAX)
        size = len(records)
        return records
    finally:
        if unpacked is not None:
            unpacked.bytes += size
