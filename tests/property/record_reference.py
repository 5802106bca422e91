"""Random records, and what the reference `dlog.batch.records` makes of the bytes of a batch."""

from functools import partial
from typing import Any

from hypothesis import strategies as st

from dlog.batch.header import HEADER_BYTES
from dlog.batch.open_batch import OpenBatch
from dlog.batch.records import Record, decode, encode
from dlog.checksum import crc32c
from dlog.errors import CorruptMessageError


def record_of(*, bytes_max: int, name_max: int, headers_max: int) -> st.SearchStrategy[Record]:
    """Draw a record: keys, values and header values, names, and headers are bounded."""
    some_bytes = st.none() | st.binary(max_size=bytes_max)
    header = st.tuples(st.text(max_size=name_max), some_bytes)
    return st.builds(
        Record,
        key=some_bytes,
        value=some_bytes,
        headers=st.lists(header, max_size=headers_max).map(tuple),
        timestamp_ms=st.integers(min_value=-1, max_value=2**53),
    )


optional_bytes = st.none() | st.binary(max_size=300)
records = record_of(bytes_max=300, name_max=20, headers_max=4)
record_lists = st.lists(records, min_size=1, max_size=20)


int64s = st.integers(-(2**63), 2**63 - 1)


def outcome(function: Any, *arguments: Any) -> Any:
    """Return what the function gives, or the error that it ends with."""
    try:
        return function(*arguments)
    except CorruptMessageError:
        return CorruptMessageError


def reference(batch: OpenBatch) -> Any:
    """Return what `dlog.batch.records` makes of the same bytes and head."""
    whole = encode([Record()])
    append_time = batch.append_time_ms is not None
    head = whole[:HEADER_BYTES] + bytes(batch.data)
    for position, size, number in (
        (0, 8, batch.base_offset),
        (8, 4, len(head) - 12),
        (21, 2, 8 if append_time else 0),
        (23, 4, max(batch.record_count - 1, 0)),
        (27, 8, batch.base_timestamp_ms),
        (35, 8, batch.append_time_ms or 0),
        (57, 4, batch.record_count),
    ):
        head[position : position + size] = number.to_bytes(size, "big", signed=True)
    head[17:21] = crc32c(bytes(head[21:])).to_bytes(4, "big")
    return outcome(partial(decode, name_errors="replace"), head)
