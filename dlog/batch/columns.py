"""Batches to columns in Arrow's layout, and from there to numpy and pyarrow without a copy.

No Python object is made per record. numpy and pyarrow are imported when they are first asked for;
everything else here works without them. The readers of whole record sets use this: `poll_arrow` of
the consumer, and pipelines.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from dlog.batch import native
from dlog.batch._pure_rows import BinaryData, HeaderData, int32s
from dlog.batch.decoding import Bounds, Opening, bounds, open_batches
from dlog.batch.open_batch import ColumnSet, OpenBatch
from dlog.checksum import Buffer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """Byte strings and nulls: row `i` is `data[bounds[i]:bounds[i + 1]]`.

    `bounds` are int32 in native order, one more than rows, the first 0. `validity` has a bit per
    row, lowest first, 1 for what is not null; None when nothing is.
    """

    bounds: Buffer
    data: Buffer
    validity: Buffer | None
    null_count: int

    def __len__(self) -> int:
        return memoryview(self.bounds).nbytes // 4 - 1

    @property
    def parts(self) -> BinaryData:
        """The column as the inner loops take it."""
        return self.bounds, self.data, self.validity, self.null_count

    def __getitem__(self, row: int) -> bytes | None:
        """Return one row; for a few of them, not for all."""
        if not 0 <= row < len(self):
            raise IndexError(row)
        if self.validity is not None and not self.validity[row >> 3] >> (row & 7) & 1:
            return None
        bounds = int32s(self.bounds)
        return bytes(memoryview(self.data)[bounds[row] : bounds[row + 1]])

    def to_arrow(self, arrow_type: Any = None) -> Any:
        """Return a `pyarrow.Array` over the same memory: binary, or `arrow_type`."""
        arrow = library("pyarrow")
        return arrow.Array.from_buffers(
            arrow.binary() if arrow_type is None else arrow_type,
            len(self),
            [
                self.validity and arrow.py_buffer(self.validity),
                *map(arrow.py_buffer, (self.bounds, self.data)),
            ],
            self.null_count,
        )


@dataclass(frozen=True, slots=True)
class HeaderColumn:
    """Lists of headers: row `i` has those from `bounds[i]` up to `bounds[i + 1]`, exclusive."""

    bounds: Buffer
    keys: BinaryColumn  # UTF-8, never null
    values: BinaryColumn

    @property
    def parts(self) -> HeaderData:
        """The headers as the inner loops take them."""
        return self.bounds, self.keys.parts, self.values.parts


@dataclass(frozen=True, slots=True)
class Columns:
    """Records side by side, in the order of their offsets; equal lengths."""

    offset_data: Buffer  # int64, native order
    timestamp_data: Buffer  # int64, native order, ms since 1970; -1 for none
    keys: BinaryColumn
    values: BinaryColumn
    headers: HeaderColumn | None  # None: no record has any
    next_offset: int
    """Where to read on: behind the last record, and behind what holds no record of a user's."""

    def __len__(self) -> int:
        return memoryview(self.offset_data).nbytes // 8

    @property
    def offsets(self) -> "npt.NDArray[np.int64]":
        """The offsets as a read-only numpy array over the same memory."""
        return _int64_array(self.offset_data)

    @property
    def timestamps_ms(self) -> "npt.NDArray[np.int64]":
        """The timestamps in ms as a read-only numpy array over the same memory."""
        return _int64_array(self.timestamp_data)

    def to_arrow(self) -> Any:
        """Return a `pyarrow.RecordBatch` of `arrow_schema()` over the same memory."""
        arrow = library("pyarrow")
        schema = arrow_schema()
        offsets, timestamps = (
            arrow.Array.from_buffers(kind, len(self), [None, arrow.py_buffer(data)], 0)
            for kind, data in (
                (schema.field("offset").type, self.offset_data),
                (schema.field("timestamp").type, self.timestamp_data),
            )
        )
        headers = _header_array(self.headers, len(self), schema.field("headers").type)
        arrays = [offsets, timestamps, self.keys.to_arrow(), self.values.to_arrow(), headers]
        return arrow.RecordBatch.from_arrays(arrays, schema=schema)


@cache
def arrow_schema() -> Any:
    """Return the schema of `Columns.to_arrow`: offset, timestamp, key, value, headers."""
    arrow = library("pyarrow")
    header = arrow.struct([("key", arrow.string()), ("value", arrow.binary())])
    return arrow.schema(
        [
            arrow.field("offset", arrow.int64(), nullable=False),
            arrow.field("timestamp", arrow.timestamp("ms", tz="UTC"), nullable=False),
            ("key", arrow.binary()),
            ("value", arrow.binary()),
            arrow.field("headers", arrow.list_(header), nullable=False),
        ]
    )


def decode_columns(
    buffers: Sequence[Buffer],
    *,
    start_offset: int = 0,
    end_offset: int | None = None,
    max_records: int | None = None,
    max_bytes: int | None = None,
    opening: Opening | None = None,
    verify_crc: bool = True,
) -> Columns:
    """Return the records of the whole batches in `buffers` as columns, as far as the bounds allow.

    `end_offset` is exclusive; `max_bytes` counts whole uncompressed records, at most 2 GiB, and
    the first is given whatever its size. Raises CorruptMessageError that names offset and cause.
    """
    wanted = bounds(start_offset, end_offset, max_records, max_bytes)
    batches, next_offset = open_batches(buffers, wanted, opening=opening, verify_crc=verify_crc)
    return decode_run(batches, wanted, next_offset)


def decode_run(
    batches: list[OpenBatch],
    wanted: Bounds,
    next_offset: int,
    columns: ColumnSet = ColumnSet.EVERY,
) -> Columns:
    """Return the wanted records of batches that are open already.

    `next_offset` is where to read on, if all of them are wanted. Columns that are left out of
    `columns` have no rows.
    """
    is_complete, offsets, timestamps, keys, values, headers = native.decode_columns(
        batches, *wanted, columns
    )
    if not is_complete:
        last = memoryview(offsets).cast("q")[-1:]
        next_offset = last[0] + 1 if last else wanted.start_offset
    return Columns(
        offsets,
        timestamps,
        BinaryColumn(*keys),
        BinaryColumn(*values),
        headers and HeaderColumn(headers[0], BinaryColumn(*headers[1]), BinaryColumn(*headers[2])),
        next_offset,
    )


@cache
def library(name: str) -> Any:
    """Import numpy or pyarrow, or say how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"columns need {name}: pip install 'dlog[arrow]'") from error


def _int64_array(data: Buffer) -> "npt.NDArray[np.int64]":
    numpy = library("numpy")
    array: npt.NDArray[np.int64] = numpy.frombuffer(data, numpy.int64)
    return array


def _header_array(headers: HeaderColumn | None, rows: int, list_type: Any) -> Any:
    arrow = library("pyarrow")
    pair_type = list_type.value_type
    if headers is None:
        pairs = arrow.array([], pair_type)
    else:
        children = [headers.keys.to_arrow(arrow.string()), headers.values.to_arrow()]
        pairs = arrow.Array.from_buffers(pair_type, len(headers.keys), [None], 0, children=children)
    row_bounds = bytes(4 * (rows + 1)) if headers is None else headers.bounds
    buffers = [None, arrow.py_buffer(row_bounds)]
    return arrow.Array.from_buffers(list_type, rows, buffers, 0, children=[pairs])
