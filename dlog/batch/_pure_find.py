"""The twin in Python of csrc/find_record.c: one record of a batch, found by time."""

from dlog.batch._pure import _INT64_MAX, _INT64_MIN, _TOO_LONG, _read_record
from dlog.checksum import Buffer
from dlog.errors import CorruptMessageError

FoundRecord = tuple[int, int, bool]
"""Timestamp, offset delta, and whether the record is at or after the wanted time."""


def find_record(
    data: Buffer,
    record_count: int,
    base_timestamp_ms: int,
    timestamp_ms: int,
    offset_delta_min: int,
) -> FoundRecord | None:
    """Return the first record at or after `timestamp_ms`; without one, the first newest record.

    `data` holds the records, decompressed. Only records with an offset delta of at least
    `offset_delta_min` count; None: there is none. What lies behind a match is not looked at. Raises
    CorruptMessageError for other bytes than records.
    """
    content = bytes(data)
    at = 0
    newest: FoundRecord | None = None
    for _ in range(record_count):
        try:
            raw = _read_record(content, at)
        except IndexError:
            raise CorruptMessageError("a record is cut") from None
        at = raw.end
        found_ms = base_timestamp_ms + raw.timestamp_delta
        if not _INT64_MIN <= found_ms <= _INT64_MAX:
            raise CorruptMessageError(_TOO_LONG)
        if raw.offset_delta < max(0, offset_delta_min):
            continue
        if found_ms >= timestamp_ms:
            return found_ms, raw.offset_delta, True
        if newest is None or found_ms > newest[0]:
            newest = found_ms, raw.offset_delta, False
    if at != len(content):
        raise CorruptMessageError("bytes after the last record")
    return newest
