"""`RecordBuffer` in Python: the twin of csrc/record_buffer.c, with the same bytes and refusals."""

import operator
from collections.abc import Sequence

from dlog.batch._pure_rows import BinaryData, BinaryRows, HeaderData, HeaderRows, RawHeader, int64s
from dlog.batch.header import HEADER_BYTES
from dlog.batch.records import Header
from dlog.checksum import Buffer

_INT32_MAX = 2**31 - 1
_TIMESTAMP_MS_MAX = 2**62  # so that no difference of two needs more than 64 bits


class RecordBuffer:
    """Encoded records of one batch, with room for its head in front.

    Invariant: `size_bytes` <= `bytes_max`, the 61 bytes of the head included.
    """

    __slots__ = (
        "_data",
        "base_timestamp_ms",
        "bytes_max",
        "max_timestamp_ms",
        "record_count",
        "size_bytes",
    )

    def __init__(self, bytes_max: int) -> None:
        if not HEADER_BYTES <= bytes_max <= _INT32_MAX:
            raise ValueError(f"a batch cannot be bounded by {bytes_max} bytes")
        self.bytes_max = bytes_max
        self.size_bytes = HEADER_BYTES
        self.record_count = 0
        self.base_timestamp_ms = -1
        self.max_timestamp_ms = -1
        self._data: bytearray | None = bytearray(HEADER_BYTES)

    @property
    def is_empty(self) -> bool:
        """Whether no record was appended."""
        return self.record_count == 0

    def append(
        self,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        /,
    ) -> bool:
        """Append one record; False, and nothing changed, when it does not fit.

        Raises ValueError for a time below -1, TypeError for what is not bytes-like.
        """
        _check_timestamp(timestamp_ms)
        return self._push(key, value, _encode_headers(headers), timestamp_ms)

    def append_many(
        self,
        keys: Sequence[Buffer | None] | None,
        values: Sequence[Buffer | None],
        timestamp_ms: int,
        start: int = 0,
        /,
    ) -> int:
        """Append from the item `start` until one does not fit; return how many were appended.

        Without `keys` all keys are null. After an error those before the bad item stay appended.
        """
        _check_timestamp(timestamp_ms)
        if start < 0:
            raise ValueError("a negative start")
        at = start
        while at < len(values):
            if keys is not None and at >= len(keys):
                raise ValueError("fewer keys than values")
            if not self._push(None if keys is None else keys[at], values[at], b"\0", timestamp_ms):
                break
            at += 1
        return at - start

    def append_columns(
        self,
        keys: BinaryData | None,
        values: BinaryData,
        timestamps: Buffer | int,
        headers: HeaderData | None,
        start: int,
        stop: int,
        /,
    ) -> int:
        """Append the rows from `start` until one does not fit; return how many were appended.

        `timestamps` are int64 in native order, or one for all. Raises ValueError for buffers that
        do not hold the rows; those before the bad one stay appended.
        """
        key_rows = None if keys is None else BinaryRows(keys)
        value_rows = BinaryRows(values)
        header_rows = None if headers is None else HeaderRows(headers)
        times = _timestamps(timestamps, stop)
        columns = (key_rows, value_rows, header_rows)
        if start < 0 or any(c is not None and stop > c.rows for c in columns):
            raise ValueError("a column has fewer rows")
        for row in range(start, stop):
            _check_timestamp(times[row])
            key = None if key_rows is None else key_rows.at(row)
            value = value_rows.at(row)
            encoded = b"\0" if header_rows is None else _encode_raw(header_rows.at(row))
            if not self._push(key, value, encoded, times[row]):
                return row - start
        return max(stop - start, 0)

    def take(self) -> bytearray:
        """Give the bytes away, the head still zero; nothing fits afterwards."""
        data = self._data
        if data is None:
            raise ValueError("the records were taken before")
        self._data = None
        return data

    def _push(
        self, key: Buffer | None, value: Buffer | None, headers: bytes, timestamp_ms: int
    ) -> bool:
        delta = timestamp_ms - self.base_timestamp_ms if self.record_count else 0
        content = bytearray(1)  # the attributes; none are defined
        _push_varint(content, delta)
        _push_varint(content, self.record_count)
        _push_bytes(content, key)
        _push_bytes(content, value)
        content += headers
        length = bytearray()
        _push_varint(length, len(content))
        size_bytes = self.size_bytes + len(length) + len(content)
        if self._data is None or size_bytes > self.bytes_max:
            return False
        self._data += length
        self._data += content
        self.size_bytes = size_bytes
        if not self.record_count:
            self.base_timestamp_ms = self.max_timestamp_ms = timestamp_ms
        elif timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
        self.record_count += 1
        return True


def _check_timestamp(timestamp_ms: int) -> None:
    if not -1 <= operator.index(timestamp_ms) <= _TIMESTAMP_MS_MAX:
        raise ValueError(f"{timestamp_ms} is not a timestamp in ms")


def _timestamps(timestamps: Buffer | int, stop: int) -> Sequence[int]:
    if isinstance(timestamps, int):
        _check_timestamp(timestamps)
        return (timestamps,) * stop
    times = int64s(timestamps)
    if stop > len(times):
        raise ValueError("a column has fewer rows")
    return times


def _encode_raw(headers: Sequence[RawHeader]) -> bytes:
    output = bytearray()
    _push_varint(output, len(headers))
    for key, value in headers:
        _push_bytes(output, key)
        _push_bytes(output, value)
    return bytes(output)


def _encode_headers(headers: Sequence[Header]) -> bytes:
    # What can be gone over only once is empty when the record needs a second attempt.
    if not isinstance(headers, Sequence):
        raise TypeError("headers must be a sequence")
    items = tuple(headers)
    for header in items:
        if not (isinstance(header, tuple) and len(header) == 2 and isinstance(header[0], str)):
            raise TypeError("a header must be a tuple of key and value, the key a str")
    return _encode_raw([(key.encode(), value) for key, value in items])


def _push_varint(output: bytearray, number: int) -> None:
    number = number << 1 ^ number >> 63
    while number > 0x7F:
        output.append(number & 0x7F | 0x80)
        number >>= 7
    output.append(number)


def _push_bytes(output: bytearray, data: Buffer | None) -> None:
    if data is None:
        output.append(1)  # zigzag of -1
        return
    with memoryview(data) as view:
        _push_varint(output, view.nbytes)
        output += view
