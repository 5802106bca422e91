"""pyarrow's record batches to columns, for a producer; the way back is `Columns.to_arrow`.

Binary columns are taken over without a copy, slices too. Other types that Arrow can cast to them
(strings, large binary, timestamps of another unit) are cast first.
"""

from array import array
from typing import Any

from dlog.batch.columns import BinaryColumn, Columns, HeaderColumn, library
from dlog.checksum import Buffer


def columns_from_arrow(batch: Any, *, timestamp_ms: int = -1) -> Columns:
    """Return the records of a `pyarrow.RecordBatch` as columns, its memory shared.

    `value` must be there; `key`, `timestamp` and `headers` (a list of structs of `key` and
    `value`) may be; what else is there is not looked at. `timestamp_ms` is for records without
    one. All offsets are 0. Raises KeyError without `value`, pyarrow.ArrowInvalid for what cannot
    be cast.
    """
    rows = batch.num_rows
    there = frozenset(batch.schema.names)
    return Columns(
        bytes(8 * rows),
        _timestamps(batch.column("timestamp"), timestamp_ms)
        if "timestamp" in there
        else array("q", [timestamp_ms]).tobytes() * rows,
        _binary(batch.column("key")) if "key" in there else _nulls(rows),
        _binary(batch.column("value")),
        _headers(batch.column("headers")) if "headers" in there else None,
        0,
    )


def _nulls(rows: int) -> BinaryColumn:
    return BinaryColumn(bytes(4 * (rows + 1)), b"", bytes(rows + 7 >> 3), rows)


def _binary(column: Any) -> BinaryColumn:
    arrow = library("pyarrow")
    if column.type != arrow.binary():
        column = column.cast(arrow.binary())
    rows, first = len(column), column.offset
    if not rows:
        return BinaryColumn(bytes(4), b"", None, 0)
    validity, bounds, data = column.buffers()
    return BinaryColumn(
        memoryview(bounds)[4 * first : 4 * (first + rows + 1)],
        b"" if data is None else memoryview(data),
        _bitmap(memoryview(validity), first, rows) if column.null_count else None,
        column.null_count,
    )


def _bitmap(validity: memoryview, first: int, rows: int) -> Buffer:
    """Return the bits from `first` on, as a bitmap of its own where they do not begin a byte."""
    octets = validity[first >> 3 : first + rows + 7 >> 3]
    if not first & 7:
        return octets
    bits = int.from_bytes(octets, "little") >> (first & 7)
    return (bits & (1 << rows) - 1).to_bytes(rows + 7 >> 3, "little")


def _timestamps(column: Any, timestamp_ms: int) -> Buffer:
    arrow = library("pyarrow")
    if arrow.types.is_timestamp(column.type):
        column = column.cast(arrow.timestamp("ms", column.type.tz), safe=False)
    column = column.cast(arrow.int64())
    if column.null_count:
        column = column.fill_null(timestamp_ms)
    data = column.buffers()[1]
    if data is None:
        return b""
    return memoryview(data)[8 * column.offset : 8 * (column.offset + len(column))]


def _headers(column: Any) -> HeaderColumn | None:
    pairs = column.flatten()
    if not len(pairs):
        return None
    names = [pairs.type.field(i).name for i in range(pairs.type.num_fields)]
    fields = dict(zip(names, pairs.flatten(), strict=True))
    return HeaderColumn(_bounds(column), _binary(fields["key"]), _binary(fields["value"]))


def _bounds(lists: Any) -> Buffer:
    """Return where each list begins and ends in what `flatten` gives, which skips null ones.

    Arrow's own bounds are others in slices, and where a null list has something behind it.
    """
    arrow = library("pyarrow")
    counts = lists.value_lengths().cast(arrow.int32())
    if counts.null_count:
        counts = counts.fill_null(0)
    ends = library("pyarrow.compute").cumulative_sum_checked(counts)
    data = memoryview(ends.buffers()[1])
    return bytes(4) + data[4 * ends.offset : 4 * (ends.offset + len(ends))]
