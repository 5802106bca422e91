"""Inner loops of the record codec in Python: the twin of those in C (`csrc`).

Same names, same bytes, same values, same refusals (tests/property/test_codec.py holds the two and
the clear reference `dlog.batch.records` together). Columns come in Arrow's layout: a binary column
is `rows + 1` int32 bounds, the bytes in a row, a bitmap of what is not null (None: no null), and
the number of nulls.

Both decoders take the same bounds: offsets in [start_offset, end_offset), at most
`record_count_max` records, and at most `bytes_max` bytes of whole records, the first always. They
return whether every batch was read to its end. What lies behind a bound is not looked at.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from dlog.batch._pure_rows import BinaryData, BinaryRows, HeaderData, RawHeader
from dlog.batch.open_batch import ColumnSet, OpenBatch
from dlog.batch.records import Record
from dlog.checksum import Buffer
from dlog.errors import CorruptMessageError

ColumnData = tuple[bool, bytes, bytes, BinaryData, BinaryData, HeaderData | None]

_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1
_VARINT_BITS_MAX = 63
_TOO_LONG = "a number has more than 64 bits"
_MURMUR_SEED = 0x9747B28C
_MURMUR_FACTOR = 0x5BD1E995
_TIMESTAMPS, _KEYS = int(ColumnSet.TIMESTAMPS), int(ColumnSet.KEYS)
_VALUES, _HEADERS = int(ColumnSet.VALUES), int(ColumnSet.HEADERS)
_UINT32 = struct.Struct("<I")
_UINT32_MAX = 0xFFFFFFFF


class _Raw(NamedTuple):
    """One record as it stands in the batch."""

    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[RawHeader]
    end: int


class _Taken(NamedTuple):
    """One wanted record."""

    offset: int
    timestamp_ms: int
    raw: _Raw


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), at
    number = byte & 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        if shift == _VARINT_BITS_MAX and byte > 1:
            raise CorruptMessageError(_TOO_LONG)
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), at
        shift += 7


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _read_varint(data, at)
    if size < 0:
        if size != -1:
            raise CorruptMessageError("a negative length")
        return None, at
    end = at + size
    if end > len(data):
        raise CorruptMessageError("a record is cut")
    return data[at:end], end


def _name(key: bytes) -> str:
    """Return a header's name; what is not UTF-8 becomes U+FFFD, as in Kafka's Java client."""
    return key.decode(errors="replace")


def _read_headers(data: bytes, at: int, count: int) -> tuple[Sequence[RawHeader], int]:
    if count < 0:
        raise CorruptMessageError("a negative number of headers")
    headers: list[RawHeader] = []
    for _ in range(count):
        key, at = _read_bytes(data, at)
        value, at = _read_bytes(data, at)
        if key is None:
            raise CorruptMessageError("a header's key is null")
        headers.append((key, value))
    return headers, at


def _read_record(data: bytes, at: int) -> _Raw:
    length, at = _read_varint(data, at)
    end = at + length
    if length < 1 or end > len(data):
        raise CorruptMessageError("a record is cut")
    timestamp_delta, at = _read_varint(data, at + 1)  # behind the attributes
    offset_delta, at = _read_varint(data, at)
    key, at = _read_bytes(data, at)
    value, at = _read_bytes(data, at)
    count, at = _read_varint(data, at)
    headers: Sequence[RawHeader] = ()
    if count:
        headers, at = _read_headers(data, at, count)
    if at != end:
        raise CorruptMessageError("a record is longer or shorter than it says")
    return _Raw(timestamp_delta, offset_delta, key, value, headers, end)


def _resolve(batch: OpenBatch, raw: _Raw) -> _Taken:
    if not 0 <= raw.offset_delta <= batch.last_offset_delta and batch.last_offset_delta >= 0:
        raise CorruptMessageError("a record lies outside its batch")
    offset = batch.base_offset + raw.offset_delta
    timestamp_ms = batch.append_time_ms
    if timestamp_ms is None:
        timestamp_ms = batch.base_timestamp_ms + raw.timestamp_delta
    if offset > _INT64_MAX or not _INT64_MIN <= timestamp_ms <= _INT64_MAX:
        raise CorruptMessageError(_TOO_LONG)
    return _Taken(offset, timestamp_ms, raw)


class _Selection:
    """Which records are wanted, and how much room is left for them."""

    def __init__(
        self, start_offset: int, end_offset: int, record_count_max: int, bytes_max: int
    ) -> None:
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.records_left = record_count_max
        self.bytes_left = bytes_max
        self.is_first = True
        self.is_complete = True

    def walk(self, batch: OpenBatch) -> Iterator[_Taken]:
        """Yield the wanted records of one batch."""
        data = bytes(batch.data)
        at = 0
        for _ in range(batch.record_count):
            raw = _read_record(data, at)
            whole_bytes = raw.end - at
            at = raw.end
            taken = _resolve(batch, raw)
            if not self.start_offset <= taken.offset < self.end_offset:
                continue
            if not self._has_room(whole_bytes):
                self.is_complete = False
                return
            yield taken
        if at != len(data):
            raise CorruptMessageError("bytes after the last record")

    def _has_room(self, whole_bytes: int) -> bool:
        if self.records_left <= 0 or (whole_bytes > self.bytes_left and not self.is_first):
            return False
        self.records_left -= 1
        self.bytes_left -= whole_bytes
        self.is_first = False
        return True


@contextmanager
def _naming(batch: OpenBatch) -> Iterator[None]:
    """Let what is wrong inside name the batch."""
    try:
        yield
    except IndexError:
        cause = "a record is cut"
    except CorruptMessageError as error:
        cause = str(error)
    else:
        return
    raise CorruptMessageError(f"batch at offset {batch.base_offset}: {cause}")


def decode_records(
    batches: list[OpenBatch],
    start_offset: int,
    end_offset: int,
    record_count_max: int,
    bytes_max: int,
    shape: tuple[Any, ...] = (Record,),
    /,
) -> tuple[list[Any], bool]:
    """Return the wanted records, and whether every batch was read to its end.

    `shape` is the named tuple to make of each, and what its fields behind those of `Record` are.
    """
    selection = _Selection(start_offset, end_offset, record_count_max, bytes_max)
    record_type, *more = shape
    records: list[Any] = []
    for batch in batches:
        with _naming(batch):
            for offset, timestamp_ms, raw in selection.walk(batch):
                headers = tuple((_name(key), value) for key, value in raw.headers)
                fields = (raw.key, raw.value, headers, timestamp_ms, offset)
                records.append(tuple.__new__(record_type, (*fields, *more)))
        if not selection.is_complete:
            break
    return records, selection.is_complete


class _Column:
    """A binary column while it grows."""

    def __init__(self) -> None:
        self.bounds = array("i", [0])
        self.data = bytearray()
        self.nulls: list[int] = []

    def append(self, value: bytes | None) -> None:
        """Add one row."""
        if value is None:
            self.nulls.append(len(self.bounds) - 1)
        else:
            self.data += value
        self.bounds.append(len(self.data))

    def finish(self) -> BinaryData:
        """Return the column in Arrow's layout."""
        validity = None
        if self.nulls:
            rows = len(self.bounds) - 1
            bitmap = (1 << rows) - 1
            for row in self.nulls:
                bitmap ^= 1 << row
            validity = bitmap.to_bytes(rows + 7 >> 3, "little")
        return self.bounds.tobytes(), bytes(self.data), validity, len(self.nulls)


class _Table:
    """The columns while they grow."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.offsets = array("q")
        self.timestamps = array("q")
        self.keys = _Column()
        self.values = _Column()
        self.header_bounds = array("i", [0])
        self.header_keys = _Column()
        self.header_values = _Column()

    def append(self, taken: _Taken) -> None:
        """Add one record."""
        offset, timestamp_ms, raw = taken
        self.offsets.append(offset)
        if self.columns & _TIMESTAMPS:
            self.timestamps.append(timestamp_ms)
        if self.columns & _KEYS:
            self.keys.append(raw.key)
        if self.columns & _VALUES:
            self.values.append(raw.value)
        if self.columns & _HEADERS:
            self._append_headers(raw.headers)

    def _append_headers(self, headers: Sequence[RawHeader]) -> None:
        for key, value in headers:
            self.header_keys.append(_name(key).encode())
            self.header_values.append(value)
        self.header_bounds.append(len(self.header_keys.bounds) - 1)

    def finish(self, is_complete: bool) -> ColumnData:
        """Return all columns in Arrow's layout."""
        headers = None
        if self.header_bounds[-1]:
            keys, values = self.header_keys.finish(), self.header_values.finish()
            headers = self.header_bounds.tobytes(), keys, values
        return (
            is_complete,
            self.offsets.tobytes(),
            self.timestamps.tobytes(),
            self.keys.finish(),
            self.values.finish(),
            headers,
        )


def decode_columns(
    batches: list[OpenBatch],
    start_offset: int,
    end_offset: int,
    record_count_max: int,
    bytes_max: int,
    columns: int = ColumnSet.EVERY,
    /,
) -> ColumnData:
    """Return the wanted records as columns, and whether every batch was read to its end.

    Columns that `columns` leaves out come without rows.
    """
    selection = _Selection(start_offset, end_offset, record_count_max, bytes_max)
    table = _Table(int(columns))
    for batch in batches:
        with _naming(batch):
            for taken in selection.walk(batch):
                table.append(taken)
        if not selection.is_complete:
            break
    return table.finish(selection.is_complete)


def murmur2(data: Buffer, /) -> int:
    """Return Kafka's 32-bit murmur2 of `data`, signed as in Java (Utils.murmur2)."""
    with memoryview(data) as view:
        octets = view.tobytes()
    whole = len(octets) & ~3
    h = _MURMUR_SEED ^ len(octets)
    for (k,) in _UINT32.iter_unpack(octets[:whole]):
        k = k * _MURMUR_FACTOR & _UINT32_MAX
        k ^= k >> 24
        h = (h * _MURMUR_FACTOR ^ k * _MURMUR_FACTOR) & _UINT32_MAX
    if whole < len(octets):
        h ^= int.from_bytes(octets[whole:], "little")
        h = h * _MURMUR_FACTOR & _UINT32_MAX
    h = (h ^ h >> 13) * _MURMUR_FACTOR & _UINT32_MAX
    h ^= h >> 15
    return h - (h >> 31 << 32)


def murmur2_rows(keys: BinaryData, /) -> bytes:
    """Return the murmur2 of each row as int32 in native order, 0 for null."""
    column = BinaryRows(keys)
    hashes = array("i")
    for row in range(column.rows):
        key = column.at(row)
        hashes.append(0 if key is None else murmur2(key))
    return hashes.tobytes()
