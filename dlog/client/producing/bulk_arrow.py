"""Bulk append of Arrow columns, without a Python object per record.

A `pyarrow.RecordBatch` or `Table` has `value` and may have `key`, `timestamp` and `headers`, so
that what `Consumer.poll_arrow` gave can be sent on as it is; an array of values may have another
one of keys beside it. A column of partitions may say where each row goes. Imported by
`dlog.client.producing.bulk_append` when somebody comes with pyarrow's objects.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dlog.batch.arrow import columns_from_arrow
from dlog.batch.build import batch_bytes_max
from dlog.batch.columns import BinaryColumn, Columns, library
from dlog.batch.header import HEADER_BYTES
from dlog.batch.native import murmur2_rows
from dlog.checksum import Buffer
from dlog.client.futures import BatchDelivery, UnsendableRowError
from dlog.client.producing.accumulator import Accumulator
from dlog.client.producing.bulk_steps import Step, check_same
from dlog.client.producing.topic_queues import TopicQueues

_POSITIVE = 0x7FFF_FFFF
_KEYLESS = -1
_EMPTY_RECORD_BYTES = batch_bytes_max(None, None) - HEADER_BYTES
# Lengths of a header's key and value; see `dlog.batch.build.batch_bytes_max`.
_HEADER_BYTES = 5 + 5


class _Run(NamedTuple):
    """Rows that go to one partition; `partition` None: wherever keyless records go."""

    partition: int | None
    columns: Columns
    indexes: Sequence[int]


class ArrowAppend:
    """Rows of Arrow on their way into the batches of a topic."""

    def __init__(
        self,
        accumulator: Accumulator,
        topic_name: str,
        records: Any,
        keys: Any,
        *,
        timestamp_ms: int,
        partition: Any,
        delivery: BatchDelivery,
    ) -> None:
        """Raise ValueError, KeyError or pyarrow.ArrowInvalid for what are no records.

        `partition` is one for all, or an array with one for each row: null where the key decides.
        """
        self._accumulator = accumulator
        self._topic_name = topic_name
        self._topic = accumulator.topic(topic_name)
        assert self._topic is not None
        self._delivery = delivery
        self._position = 0
        self._runs: list[_Run] = []
        first = 0
        wanted = None if partition is None or isinstance(partition, int) else partition
        if wanted is not None and len(wanted) != len(records):
            raise ValueError(f"{len(wanted)} partitions for {len(records)} records")
        for batch in _record_batches(records, keys):
            columns = columns_from_arrow(batch, timestamp_ms=timestamp_ms)
            rows = range(first, first + len(columns))
            if wanted is None and (
                partition is not None or columns.keys.null_count == len(columns)
            ):
                self._runs.append(_Run(partition, columns, rows))
            else:
                chosen = _partitions(columns.keys, len(self._topic.queues))
                if wanted is not None:
                    said = wanted.slice(rows.start, len(rows))
                    chosen = _overridden(chosen, said, self._topic, first)
                self._runs += _by_partition(batch, chosen, first, timestamp_ms)
            first = rows.stop

    def advance(self, now_s: float) -> Step:
        """Append to one batch as many rows as it takes."""
        while self._runs and self._position == len(self._runs[0].columns):
            del self._runs[0]
            self._position = 0
        if not self._runs:
            return Step.DONE
        accumulator = self._accumulator
        check_same(accumulator, self._topic_name, self._topic)
        run, at = self._runs[0], self._position
        batch = accumulator.batch_for(
            now_s,
            self._topic_name,
            None,
            run.partition,
            _bytes_bound(run.columns, at, at + 1),
            _bytes_bound(run.columns, at, len(run.columns)),
        )
        if batch is None:
            return Step.SHORT
        builder = batch.builder
        first = builder.record_count
        try:
            builder.append_rows(run.columns, at)
        except ValueError as error:
            row = run.indexes[at + builder.record_count - first]
            raise UnsendableRowError(str(error), row) from error
        finally:
            # An error in the middle leaves those before it appended.
            count = builder.record_count - first
            accumulator.discard_if_empty(batch)
        self._delivery.add(batch.result, first, run.indexes[at : at + count])
        self._position = at + count
        return Step.MORE


def _record_batches(records: Any, keys: Any) -> list[Any]:
    """Return record batches over the same memory; chunks stay apart."""
    arrow = library("pyarrow")
    if isinstance(records, arrow.RecordBatch | arrow.Table):
        if keys is not None:
            raise ValueError("a record batch has keys of its own")
        table = isinstance(records, arrow.Table)
        return records.to_batches() if table else [records]
    if not isinstance(records, arrow.Array | arrow.ChunkedArray):
        raise TypeError(f"a {type(records).__name__} holds no records")
    if keys is None:
        chunks = getattr(records, "chunks", [records])
        return [arrow.RecordBatch.from_arrays([each], ["value"]) for each in chunks]
    if len(keys) != len(records):
        raise ValueError(f"{len(keys)} keys for {len(records)} values")
    if not isinstance(keys, arrow.Array | arrow.ChunkedArray):
        keys = arrow.array(keys, arrow.binary())
    batches: list[Any] = arrow.Table.from_arrays([keys, records], ["key", "value"]).to_batches()
    return batches


def _partitions(keys: BinaryColumn, partition_count: int) -> Any:
    """Return the partition of each key, `_KEYLESS` for none, as numpy's array."""
    numpy = library("numpy")
    if keys.null_count == len(keys):
        return numpy.full(len(keys), _KEYLESS, numpy.int32)
    hashes = numpy.frombuffer(murmur2_rows(keys.parts), numpy.int32)
    partitions = (hashes & _POSITIVE) % partition_count
    if keys.null_count:
        bits = numpy.frombuffer(keys.validity, numpy.uint8)
        there = numpy.unpackbits(bits, count=len(keys), bitorder="little")
        partitions = numpy.where(there, partitions, _KEYLESS)
    return partitions


def _overridden(chosen: Any, said: Any, topic: TopicQueues, first: int) -> Any:
    """Return the partitions that were said, and `chosen` where none was.

    `first` is the number of their first row; raises UnsendableRowError.
    """
    numpy, arrow = library("numpy"), library("pyarrow")
    if isinstance(said, arrow.ChunkedArray):
        said = said.combine_chunks()
    said = said.cast(arrow.int64())
    numbers = said.fill_null(0).to_numpy(zero_copy_only=False)
    count = len(topic.queues)
    wrong = numpy.flatnonzero((numbers < 0) | (numbers >= count))
    if len(wrong):
        row = int(wrong[0])
        text = f"{topic.name} has partitions 0 to {count - 1}, and no {numbers[row]}"
        raise UnsendableRowError(text, first + row)
    if not said.null_count:
        return numbers
    return numpy.where(said.is_valid().to_numpy(zero_copy_only=False), numbers, chosen)


def _by_partition(batch: Any, partitions: Any, first: int, timestamp_ms: int) -> list[_Run]:
    """Sort rows by their partitions; the order within a partition stays."""
    numpy = library("numpy")
    order = numpy.argsort(partitions, kind="stable")
    counts = numpy.bincount(partitions + 1).tolist()
    names = ["key", "value", "timestamp", "headers"]
    wanted = batch.select([name for name in names if name in batch.schema.names])
    runs = []
    start = 0
    for partition, count in enumerate(counts, _KEYLESS):
        rows = order[start : start + count]
        start += count
        if count:
            columns = columns_from_arrow(wanted.take(rows), timestamp_ms=timestamp_ms)
            indexes = memoryview(numpy.ascontiguousarray(rows + first, numpy.int64))
            runs.append(_Run(None if partition == _KEYLESS else partition, columns, indexes))
    return runs


def _bytes_bound(columns: Columns, start: int, stop: int) -> int:
    """Return how many bytes these rows have in a batch, at most."""
    size = (stop - start) * _EMPTY_RECORD_BYTES
    size += _span(columns.keys, start, stop) + _span(columns.values, start, stop)
    if columns.headers is not None:
        first, last = _bound(columns.headers.bounds, start), _bound(columns.headers.bounds, stop)
        size += (last - first) * _HEADER_BYTES
        for column in (columns.headers.keys, columns.headers.values):
            size += _span(column, first, last)
    return size


def _span(column: BinaryColumn, start: int, stop: int) -> int:
    return _bound(column.bounds, stop) - _bound(column.bounds, start)


def _bound(bounds: Buffer, row: int) -> int:
    return int(memoryview(bounds).cast("B").cast("i")[row])
