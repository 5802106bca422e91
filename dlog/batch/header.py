"""The fixed head of a v2 record batch: read it, check it, patch what the leader may change.

Layout (big-endian, 61 bytes; docs/formats/record-batch.md):

     0  base_offset        int64    patched by the leader; outside the CRC
     8  length             int32    bytes after this field; the whole batch has 12 more
    12  leader_epoch       int32    patched by the leader; outside the CRC
    16  magic              int8     2
    17  crc                uint32   CRC-32C of everything from `attributes` to the end
    21  attributes         int16    bits 0-2 codec, 3 log append time, 4 transactional, 5 control,
                                    6 delete horizon
    23  last_offset_delta  int32
    27  base_timestamp     int64    of the first record, or the delete horizon (bit 6)
    35  max_timestamp      int64
    43  producer_id        int64    -1: not idempotent
    51  producer_epoch     int16
    53  base_sequence      int32
    57  record_count       int32
    61  records

Pure: positions in the caller's buffer, no copies, nothing below the head is decoded.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from dlog.checksum import Buffer, crc32c
from dlog.compression import Codec
from dlog.errors import CorruptMessageError

BATCH_STRUCT = struct.Struct(">qiibIhiqqqhii")
"""All thirteen fields at once, `length` as it stands in the batch; for hot loops."""

BASE_OFFSET, LENGTH, LEADER_EPOCH, FORMAT, CRC, ATTRIBUTES, LAST_DELTA = range(7)
BASE_TIME, MAX_TIME, PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE, RECORD_COUNT = range(7, 13)
"""Places of the fields in what BATCH_STRUCT gives."""

HEADER_BYTES = 61
LENGTH_OVERHEAD_BYTES = 12
"""The two fields before the bytes that `length` counts: a whole batch has `length + 12` bytes."""

CRC_POSITION = 17
CRC_START = 21
"""The CRC covers everything from here to the end of the batch."""

MAGIC = 2
CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

_LENGTH_MIN = HEADER_BYTES - LENGTH_OVERHEAD_BYTES
_CODEC_MAX = max(Codec)
_LENGTH = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_new_tuple = tuple.__new__


def follows_on(fields: tuple[int, ...], offset: int) -> bool:
    """Return whether a batch may come next in a log that ends at `offset`: logs have no gaps."""
    return fields[BASE_OFFSET] == offset


def next_offset_of(fields: tuple[int, ...]) -> int:
    """Return the offset that follows a batch, from its BATCH_STRUCT."""
    return fields[BASE_OFFSET] + fields[LAST_DELTA] + 1


def producer_of(fields: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return producer id, epoch, base sequence and record count, from a BATCH_STRUCT."""
    return fields[PRODUCER_ID], fields[PRODUCER_EPOCH], fields[BASE_SEQUENCE], fields[RECORD_COUNT]


def size_of(fields: tuple[int, ...]) -> int:
    """Return the bytes of a whole batch, from its BATCH_STRUCT."""
    return fields[LENGTH] + LENGTH_OVERHEAD_BYTES


class BatchHeader(NamedTuple):
    """The fields of a batch's head; immutable.

    A named tuple because a frozen dataclass of 13 fields costs 2 us to make, on every append.
    """

    base_offset: int
    batch_bytes: int  # the whole batch: its length field + 12
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record, inclusive; kept when compaction removes that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset that follows the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """Compression of the records."""
        return Codec(self.attributes & CODEC_MASK)

    @property
    def is_log_append_time(self) -> bool:
        """Whether `max_timestamp_ms` is the time of every record, set by the leader."""
        return self.attributes & LOG_APPEND_TIME_BIT != 0

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a marker of the broker instead of a user's records."""
        return self.attributes & CONTROL_BIT != 0


def decode_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read and check the head of the batch at `position`; the rest of the batch may be missing.

    Raises CorruptMessageError: fewer than 61 bytes, a magic other than 2, a length below 49, an
    unknown codec, counts or offsets that no writer can mean. The CRC is not checked.
    """
    try:
        (
            base_offset,
            length,
            leader_epoch,
            magic,
            crc,
            attributes,
            last_offset_delta,
            base_timestamp_ms,
            max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        ) = BATCH_STRUCT.unpack_from(buffer, position)
    except struct.error:
        raise CorruptMessageError("a batch needs at least 61 bytes") from None
    if (
        magic != MAGIC
        or length < _LENGTH_MIN
        or base_offset < 0
        or not 0 <= record_count <= last_offset_delta + 1
        or last_offset_delta < 0
        or attributes & CODEC_MASK > _CODEC_MAX
    ):
        raise CorruptMessageError(
            f"no batch: {magic=} {length=} {base_offset=} {last_offset_delta=} {record_count=}"
            f" {attributes=}"
        )
    return _new_tuple(
        BatchHeader,
        (
            base_offset,
            length + LENGTH_OVERHEAD_BYTES,
            leader_epoch,
            magic,
            crc,
            attributes,
            last_offset_delta,
            base_timestamp_ms,
            max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        ),
    )


def patch(buffer: Buffer, position: int, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch into the batch at `position`; the CRC stays valid."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + 12, leader_epoch)


def patch_log_append_time(
    buffer: Buffer, position: int, batch_bytes: int, timestamp_ms: int
) -> None:
    """Make `timestamp_ms` the time of every record, and write the CRC anew.

    The records keep their deltas; readers see bit 3 and take `max_timestamp` instead.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + 21)
    _ATTRIBUTES.pack_into(buffer, position + 21, attributes | LOG_APPEND_TIME_BIT)
    patch_max_timestamp(buffer, position, batch_bytes, timestamp_ms)


def patch_max_timestamp(buffer: Buffer, position: int, batch_bytes: int, timestamp_ms: int) -> None:
    """Write the largest timestamp into the head, and the CRC again."""
    _MAX_TIMESTAMP.pack_into(buffer, position + 35, timestamp_ms)
    crc = crc32c(memoryview(buffer)[position + CRC_START : position + batch_bytes])
    _CRC.pack_into(buffer, position + CRC_POSITION, crc)


def verify_crc(buffer: Buffer, position: int, batch_bytes: int) -> bool:
    """Return whether the batch at `position` is whole and as its writer checksummed it."""
    view = memoryview(buffer)
    end = position + batch_bytes
    if batch_bytes < HEADER_BYTES or end > len(view):
        return False
    (crc,) = _CRC.unpack_from(view, position + CRC_POSITION)
    return bool(crc32c(view[position + CRC_START : end]) == crc)


def iter_headers(
    buffer: Buffer, position: int = 0, end: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each whole batch in [position, end), in order.

    Stops at the first batch of which not all bytes are there, as at the end of a fetch response.
    Raises CorruptMessageError where a head is there and makes no sense.
    """
    view = memoryview(buffer)
    if end is None:
        end = len(view)
    while end - position >= HEADER_BYTES:
        header = decode_header(view, position)
        if header.batch_bytes > end - position:
            return
        yield position, header
        position += header.batch_bytes
