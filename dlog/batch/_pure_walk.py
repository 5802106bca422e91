"""`walk_records` in Python: the twin of csrc/walk_records.c, with the same refusals in words."""

from dlog.checksum import Buffer
from dlog.errors import CorruptMessageError

_NO_TIMESTAMP = -1
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_CUT = "a record is cut"


def walk_records(
    buffer: Buffer, start: int, end: int, record_count: int, base_timestamp_ms: int, /
) -> tuple[int, int, int]:
    """Walk the records of a plain batch in `buffer[start:end]`; return what their times are.

    Returns the largest timestamp, the offset delta of the first record with it, and the smallest
    timestamp other than -1 (-1: no record has one). Raises CorruptMessageError with the cause.
    Refused beyond what `decode_records` refuses: offset deltas other than 0, 1, 2, ..., and lengths
    and counts of more than 32 bits, which Kafka's Java reader does not read.
    """
    with memoryview(buffer) as view:
        if not 0 <= start <= end <= view.nbytes:
            raise ValueError("the records are not inside the buffer")
        data = bytes(view.cast("B")[start:end])
    at = 0
    max_timestamp_ms, max_at, min_timestamp_ms = _NO_TIMESTAMP, -1, _NO_TIMESTAMP
    for offset_delta in range(record_count):
        try:
            timestamp_delta, at = _walk_record(data, at, offset_delta)
        except IndexError:
            raise CorruptMessageError(f"record {offset_delta}: {_CUT}") from None
        except CorruptMessageError as error:
            raise CorruptMessageError(f"record {offset_delta}: {error}") from None
        timestamp_ms = base_timestamp_ms + timestamp_delta
        if not _INT64_MIN <= timestamp_ms <= _INT64_MAX:
            raise CorruptMessageError(f"record {offset_delta}: its timestamp has more than 64 bits")
        if timestamp_ms > max_timestamp_ms or max_at < 0:
            max_timestamp_ms, max_at = timestamp_ms, offset_delta
        if timestamp_ms != _NO_TIMESTAMP and (
            timestamp_ms < min_timestamp_ms or min_timestamp_ms == _NO_TIMESTAMP
        ):
            min_timestamp_ms = timestamp_ms
    if at != len(data):
        raise CorruptMessageError("bytes after the last record")
    return max_timestamp_ms, max_at, min_timestamp_ms


def _walk_record(data: bytes, at: int, offset_delta: int) -> tuple[int, int]:
    """Return the timestamp delta of the record at `at`, and where the record ends."""
    length, at = _read_int32(data, at)
    end = at + length
    if length < 1 or end > len(data):
        raise CorruptMessageError(_CUT)
    record = data[at:end]
    timestamp_delta, at = _read_varint(record, 1, 64)  # behind the attributes
    found, at = _read_int32(record, at)
    if found != offset_delta:
        raise CorruptMessageError("its offset delta is not its place in the batch")
    at = _skip_span(record, at)
    at = _skip_span(record, at)
    count, at = _read_int32(record, at)
    if count < 0:
        raise CorruptMessageError("a negative number of headers")
    for _ in range(count):
        at = _skip_span(record, at, is_header_key=True)
        at = _skip_span(record, at)
    if at != length:
        raise CorruptMessageError("a record is longer or shorter than it says")
    return timestamp_delta, end


def _skip_span(record: bytes, at: int, *, is_header_key: bool = False) -> int:
    size, at = _read_int32(record, at)
    if size < -1:
        raise CorruptMessageError("a negative length")
    if size == -1:
        if is_header_key:
            raise CorruptMessageError("a header's key is null")
        return at
    if size > len(record) - at:
        raise CorruptMessageError(_CUT)
    return at + size


def _read_int32(data: bytes, at: int) -> tuple[int, int]:
    return _read_varint(data, at, 32)


def _read_varint(data: bytes, at: int, bits: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        if byte >> min(bits - shift, 8):
            raise CorruptMessageError(f"a number has more than {bits} bits")
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), at
        shift += 7
