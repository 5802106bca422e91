"""The records inside a v2 batch: made by clients and tools, never touched by the broker.

One record (docs/formats/record-batch.md), all lengths zigzag varints, -1 for null:

    length · attributes int8 · timestamp delta · offset delta · key length, key · value length,
    value · header count, then for each header: key length, key · value length, value

Pure. A batch from elsewhere may hold anything: reading it raises CorruptMessageError and nothing
else, and takes memory only for what the bytes hold, decompressed up to a bound.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dlog.batch.header import (
    BATCH_STRUCT,
    CRC_POSITION,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL_BIT,
    decode_header,
    verify_crc,
)
from dlog.checksum import Buffer, crc32c
from dlog.compression import Codec, compress, decompress
from dlog.errors import CorruptMessageError

RECORDS_BYTES_MAX = 128 * 1024 * 1024
"""Default bound of the decompressed records of one batch."""

_CRC = struct.Struct(">I")
_VARINT_BYTES_MAX = 10
_UINT64_MAX = 2**64 - 1
_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1
_TOO_LONG = "a number has more than 64 bits"

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """One record of a partition; `offset` is ignored when a batch is made: there order counts."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int = -1
    offset: int = -1


def encode(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    transactional: bool = False,
) -> bytearray:
    """Return a batch of the records, in order, at `base_offset` and the offsets that follow.

    Raises ValueError without records: an empty batch has no meaning on the wire.
    """
    if not records:
        raise ValueError("a batch needs records")
    base_timestamp_ms = records[0].timestamp_ms
    max_timestamp_ms = max(record.timestamp_ms for record in records)
    body = bytearray()
    for delta, record in enumerate(records):
        content = _encode_record(record, record.timestamp_ms - base_timestamp_ms, delta)
        _append_varint(body, len(content))
        body += content
    batch = bytearray(HEADER_BYTES)
    batch += body if codec is Codec.NONE else compress(codec, body)
    BATCH_STRUCT.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LENGTH_OVERHEAD_BYTES,
        leader_epoch,
        MAGIC,
        0,
        int(codec) | (TRANSACTIONAL_BIT if transactional else 0),
        len(records) - 1,
        base_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    with memoryview(batch) as view:
        _CRC.pack_into(batch, CRC_POSITION, crc32c(view[CRC_START:]))
    return batch


def _encode_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytearray:
    content = bytearray(1)  # attributes: none are defined
    _append_varint(content, timestamp_delta)
    _append_varint(content, offset_delta)
    _append_bytes(content, record.key)
    _append_bytes(content, record.value)
    _append_varint(content, len(record.headers))
    for key, value in record.headers:
        _append_bytes(content, key.encode())
        _append_bytes(content, value)
    return content


def _append_varint(output: bytearray, value: int) -> None:
    value = value << 1 ^ value >> 63
    while value > 0x7F:
        output.append(value & 0x7F | 0x80)
        value >>= 7
    output.append(value)


def _append_bytes(output: bytearray, data: bytes | None) -> None:
    if data is None:
        output.append(1)  # zigzag of -1
    else:
        _append_varint(output, len(data))
        output += data


def decode(
    buffer: Buffer,
    position: int = 0,
    *,
    size_max: int = RECORDS_BYTES_MAX,
    name_errors: str = "strict",
) -> list[Record]:
    """Return the records of the whole batch at `position`, after checking its CRC.

    `name_errors`: what `bytes.decode` does with names of headers that are not UTF-8. Consumers read
    them with "replace"; who encodes the records again must not.

    Raises CorruptMessageError for anything wrong with the batch, records above `size_max` bytes
    included, and UnsupportedCompressionTypeError where the codec is not installed.
    """
    return list(iterate(buffer, position, size_max=size_max, name_errors=name_errors))


def iterate(
    buffer: Buffer,
    position: int = 0,
    *,
    size_max: int = RECORDS_BYTES_MAX,
    name_errors: str = "strict",
) -> Iterator[Record]:
    """Yield the records that `decode` returns, one by one.

    Raises the same, with the first record what is wrong with the batch, later what is with records.
    """
    header = decode_header(buffer, position)
    if not verify_crc(buffer, position, header.batch_bytes):
        raise CorruptMessageError("a batch is cut or fails its CRC")
    with memoryview(buffer) as view:
        packed = view[position + HEADER_BYTES : position + header.batch_bytes]
        data = bytes(decompress(header.codec, packed, size_max))
    try:
        yield from _records_in(
            data,
            header.record_count,
            header.base_offset,
            header.base_timestamp_ms,
            header.max_timestamp_ms if header.is_log_append_time else None,
            name_errors,
        )
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptMessageError(f"a record is malformed: {error}") from None


def _records_in(
    data: bytes,
    count: int,
    base_offset: int,
    base_timestamp_ms: int,
    append_time_ms: int | None,
    name_errors: str,
) -> Iterator[Record]:
    position = 0
    for _ in range(count):
        length, position = _read_varint(data, position)
        end = position + length
        if length < 0 or end > len(data):
            raise CorruptMessageError("a record is cut")
        timestamp_delta, position = _read_varint(data, position + 1)  # after the attributes
        offset_delta, position = _read_varint(data, position)
        key, position = _read_bytes(data, position)
        value, position = _read_bytes(data, position)
        header_count, position = _read_varint(data, position)
        headers: tuple[Header, ...] = ()
        if header_count:
            headers, position = _read_headers(data, position, header_count, name_errors)
        if position != end:
            raise CorruptMessageError("a record is longer or shorter than it says")
        timestamp_ms = append_time_ms
        if timestamp_ms is None:
            timestamp_ms = base_timestamp_ms + timestamp_delta
        offset = base_offset + offset_delta
        if offset > _INT64_MAX or not _INT64_MIN <= timestamp_ms <= _INT64_MAX:
            raise CorruptMessageError(_TOO_LONG)
        yield Record(key, value, headers, timestamp_ms, offset)
    if position != len(data):
        raise CorruptMessageError(f"{len(data) - position} bytes after the last record")


def _read_headers(
    data: bytes, position: int, count: int, name_errors: str
) -> tuple[tuple[Header, ...], int]:
    if count < 0:
        raise CorruptMessageError("a negative number of headers")
    headers: list[Header] = []
    for _ in range(count):
        key, position = _read_bytes(data, position)
        value, position = _read_bytes(data, position)
        if key is None:
            raise CorruptMessageError("a header's key is null")
        headers.append((key.decode(errors=name_errors), value))
    return tuple(headers), position


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _read_varint(data, position)
    if length < 0:
        if length != -1:
            raise CorruptMessageError("a negative length")
        return None, position
    end = position + length
    if end > len(data):
        raise CorruptMessageError("a record is cut")
    return data[position:end], end


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 64 bits; IndexError at the end of the data."""
    byte = data[position]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), position + 1
    value = byte & 0x7F
    for count in range(1, _VARINT_BYTES_MAX):
        byte = data[position + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            if value > _UINT64_MAX:
                break
            return value >> 1 ^ -(value & 1), position + count + 1
    raise CorruptMessageError(_TOO_LONG)
