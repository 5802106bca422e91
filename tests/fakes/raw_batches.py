"""Batches of one record that no producer makes, written by hand."""

from typing import NamedTuple

from dlog.batch.header import BATCH_STRUCT, HEADER_BYTES, LOG_APPEND_TIME_BIT
from dlog.batch.records import _append_bytes, _append_varint
from dlogctl.records.json_lines import TIMESTAMP_MS_MAX


class Raw(NamedTuple):
    """A record as its bytes stand in a batch."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]
    timestamp_ms: int
    is_append_time: bool = False

    @property
    def changed_field(self) -> str | None:
        """What of it cannot be kept."""
        for number, (name, _) in enumerate(self.headers, 1):
            if "\ufffd" in name.decode(errors="replace"):
                return f"header {number}:"
        return None if -1 <= self.timestamp_ms <= TIMESTAMP_MS_MAX else "timestamp_ms"


def batch_of(raw: Raw) -> bytes:
    """Return a batch with this record, by hand: no producer makes all of them."""
    content = bytearray(1)
    _append_varint(content, 0)  # the timestamp is that of the batch
    _append_varint(content, 0)
    _append_bytes(content, raw.key)
    _append_bytes(content, raw.value)
    _append_varint(content, len(raw.headers))
    for name, value in raw.headers:
        _append_bytes(content, name)
        _append_bytes(content, value)
    body = bytearray()
    _append_varint(body, len(content))
    body += content
    attributes = LOG_APPEND_TIME_BIT if raw.is_append_time else 0
    head = (0, HEADER_BYTES - 12 + len(body), 0, 2, 0, attributes, 0)
    # A leader that stamps records writes its time into the largest timestamp only.
    base_ms = 5 if raw.is_append_time else raw.timestamp_ms
    return BATCH_STRUCT.pack(*head, base_ms, raw.timestamp_ms, -1, -1, -1, 1) + bytes(body)
