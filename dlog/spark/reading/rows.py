"""Whole batches of one partition to Arrow batches with the columns of Spark's Kafka source.

Pure: bytes in, `pyarrow.RecordBatch` out, no Python object per record. Any subset of the columns in
any order is made, and only what is asked for. `dlog.spark.reading.task` reads what goes in.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import numpy as np
import pyarrow as pa

from dlog.batch.columns import Columns, HeaderColumn, decode_run
from dlog.batch.decoding import Bounds, Opening, bounds, open_in_runs
from dlog.batch.open_batch import ColumnSet, OpenBatch
from dlog.batch.records import RECORDS_BYTES_MAX
from dlog.checksum import Buffer
from dlog.errors import CorruptMessageError
from dlog.spark.errors import OptionError, SparkSourceError

BATCH_BYTES_ENOUGH = 1024 * 1024
"""A record batch has about that: fewer cost more per record, more are slower to hand to the JVM."""

CREATE_TIME, LOG_APPEND_TIME = 0, 1
_US_PER_MS = 1000
_TIMESTAMP_MS_MAX = (2**63 - 1) // _US_PER_MS  # more microseconds are no timestamp of Spark

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
COLUMN_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _HEADER)),
}
"""The columns in the order of Spark's Kafka source, with the only types that Spark takes."""

_NONE = ColumnSet(0)
_TAKEN = {
    "key": ColumnSet.KEYS,
    "value": ColumnSet.VALUES,
    "timestamp": ColumnSet.TIMESTAMPS,
    "headers": ColumnSet.HEADERS,
}


class RowMaker:
    """Makes the rows of one partition. Owner: one task."""

    def __init__(
        self,
        schema: pa.Schema,
        topic: str,
        partition: int,
        *,
        clip_timestamps: bool = False,
        batch_bytes_max: int = RECORDS_BYTES_MAX,
    ) -> None:
        """Raise OptionError for a column that there is not, or one of another type."""
        if not schema.names:
            known = ", ".join(COLUMN_TYPES)
            raise OptionError(
                "DLOG_NO_COLUMN", "The schema names no column.", f"Name some of {known}."
            )
        for field in schema:
            _check(field)
        self._schema = schema
        self._clip_timestamps = clip_timestamps
        self._opening = Opening(batch_bytes_max, BATCH_BYTES_ENOUGH)
        # What has to be taken out of the records; the rest is the same for all of them.
        self._columns = _NONE
        for name in schema.names:
            self._columns |= _TAKEN.get(name, _NONE)
        self._topic = _Constant(topic, pa.string())
        self._partition = _Constant(partition, pa.int32())
        self._types = {kind: _Constant(kind, pa.int32()) for kind in (CREATE_TIME, LOG_APPEND_TIME)}

    def make(
        self, buffers: Sequence[Buffer], start_offset: int, end_offset: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of whole, checked batches with offsets in [start, end).

        Raises CorruptMessageError and UnsupportedCompressionTypeError, which name the offset, after
        the records before that batch, and
        SparkSourceError for a timestamp that Spark cannot have, unless it is to be clipped.
        """
        wanted = bounds(start_offset, end_offset, None, None)
        for run in open_in_runs(buffers, wanted, self._opening, verify_crc=False):
            yield from self._decoded(run, wanted)

    def _decoded(self, run: list[OpenBatch], wanted: Bounds) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a run; if one of its batches is bad, those before it one by one."""
        try:
            columns = decode_run(run, wanted, wanted.end_offset, self._columns)
        except CorruptMessageError:
            if len(run) == 1:
                raise
            for each in run:
                yield from self._decoded([each], wanted)
            return
        is_stamped = run[0].append_time_ms is not None
        if len(columns):
            yield from self._batches(columns, LOG_APPEND_TIME if is_stamped else CREATE_TIME)

    def _batches(self, columns: Columns, timestamp_type: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows, in parts where one compressed batch of the log has made them many.

        What is the same in all rows is made for a part only: a long name in millions of rows has
        more bytes than an array of strings can.
        """
        rows = len(columns)
        make: dict[str, Callable[[], pa.Array]] = {
            "key": columns.keys.to_arrow,
            "value": columns.values.to_arrow,
            "offset": lambda: _int64s(columns.offset_data, rows, pa.int64()),
            "timestamp": lambda: self._microseconds(columns),
            "headers": lambda: _headers(columns.headers, rows),
        }
        same = {
            "topic": self._topic,
            "partition": self._partition,
            "timestampType": self._types[timestamp_type],
        }
        names = self._schema.names
        arrays = {name: make[name]() for name in names if name in make}
        size = sum(each.nbytes for each in arrays.values())
        size += rows * sum(same[name].row_bytes for name in names if name in same)
        parts = max(1, min(size // BATCH_BYTES_ENOUGH // 2, rows))
        step = -(-rows // parts)
        for start in range(0, rows, step):
            count = min(step, rows - start)
            cut = [
                arrays[name].slice(start, count) if name in arrays else same[name].rows(count)
                for name in names
            ]
            yield pa.RecordBatch.from_arrays(cut, schema=self._schema)

    def _microseconds(self, columns: Columns) -> pa.Array:
        times = columns.timestamps_ms
        if times.max() > _TIMESTAMP_MS_MAX or times.min() < -_TIMESTAMP_MS_MAX:
            if not self._clip_timestamps:
                self._raise_impossible(columns)
            times = times.clip(-_TIMESTAMP_MS_MAX, _TIMESTAMP_MS_MAX)
        return _int64s((times * _US_PER_MS).data, len(times), COLUMN_TYPES["timestamp"])

    def _raise_impossible(self, columns: Columns) -> NoReturn:
        """Raise about the first of these timestamps that does not fit, as Kafka's source would."""
        times = columns.timestamps_ms
        outside = (times > _TIMESTAMP_MS_MAX) | (times < -_TIMESTAMP_MS_MAX)
        at = int(np.flatnonzero(outside)[0])
        offset = np.frombuffer(columns.offset_data, np.int64)[at]
        raise SparkSourceError(
            "KAFKA_MALFORMED_RECORD_TIMESTAMP",
            f"The record at offset {offset} of {self._topic.value}-{self._partition.value} has the "
            f"timestamp {times[at]} ms, which is more than Spark's timestamps can hold.",
            "Set the option timestampOverflow to clip to read the nearest that Spark has instead "
            "(of a pipeline: --option timestampOverflow=clip). A query that names its columns in "
            ".schema(...), without timestamp, needs no such option.",
        )


class _Constant:
    """A column of one value: made once for the longest batch, shorter ones are parts of it."""

    def __init__(self, value: object, kind: pa.DataType) -> None:
        self.value = value
        self._scalar = pa.scalar(value, kind)
        self._array = pa.repeat(self._scalar, 0)
        self.row_bytes = pa.repeat(self._scalar, 1).nbytes

    def rows(self, count: int) -> pa.Array:
        """Return so many rows."""
        if count > len(self._array):
            self._array = pa.repeat(self._scalar, count)
        return self._array.slice(0, count)


def _check(field: pa.Field) -> None:
    wanted = COLUMN_TYPES.get(field.name)
    if wanted is None:
        known = ", ".join(COLUMN_TYPES)
        raise OptionError(
            "DLOG_UNKNOWN_COLUMN", f"There is no column {field.name}.", f"Name some of {known}."
        )
    if field.type != wanted:
        raise OptionError(
            "DLOG_COLUMN_TYPE",
            f"The column {field.name} is {wanted}, not {field.type}.",
            "Cast it behind the source.",
        )


def _int64s(data: Buffer, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)], 0)


def _headers(headers: HeaderColumn | None, rows: int) -> pa.Array:
    """Return the headers; as in Spark's Kafka source, a record without any has null."""
    kind = COLUMN_TYPES["headers"]
    if headers is None:
        return pa.nulls(rows, kind)
    keys, values = headers.keys.to_arrow(pa.string()), headers.values.to_arrow()
    pairs = pa.Array.from_buffers(_HEADER, len(keys), [None], 0, children=[keys, values])
    counts = np.diff(np.frombuffer(headers.bounds, np.int32))
    validity = np.packbits(counts > 0, bitorder="little")
    buffers = [pa.py_buffer(validity), pa.py_buffer(headers.bounds)]
    return pa.Array.from_buffers(kind, rows, buffers, -1, children=[pairs])
