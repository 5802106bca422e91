"""Bulk append: many records in runs per partition, without work per record where possible.

Pure: `BulkAppend` is advanced by the producer, which waits for memory between two steps.
"""

import importlib
from collections.abc import Sequence
from typing import cast

from dlog.batch.native import murmur2
from dlog.batch.records import Record
from dlog.checksum import Buffer
from dlog.client.futures import BatchDelivery
from dlog.client.producing.accumulator import Accumulator, record_bytes_bound
from dlog.client.producing.bulk_steps import Append, Arrow, Step, check_same, is_arrow

_POSITIVE = 0x7FFF_FFFF

Many = Sequence[Buffer | None] | Sequence[Record] | Arrow
"""Values, whole records, or Arrow: a RecordBatch, a Table or an array; see `bulk_arrow`."""
Keys = Sequence[Buffer | None] | Arrow | None
"""Keys beside values; Arrow's array for Arrow's."""
Partitions = int | Arrow | None
"""One for all records; with Arrow's records, an array of one for each, null: as the key says."""


def bulk_append(
    accumulator: Accumulator,
    topic_name: str,
    records: Many,
    keys: Keys,
    *,
    timestamp_ms: int,
    partition: Partitions,
    delivery: BatchDelivery,
) -> Append:
    """Return the steps for values, with or without keys, or for `Record`s: the first one tells."""
    if is_arrow(records):
        append: Append = importlib.import_module("dlog.client.producing.bulk_arrow").ArrowAppend(
            accumulator,
            topic_name,
            records,
            keys,
            timestamp_ms=timestamp_ms,
            partition=partition,
            delivery=delivery,
        )
        return append
    if partition is not None and not isinstance(partition, int):
        raise TypeError("partitions of their own are for Arrow's records")
    records = cast(Sequence[Buffer | None] | Sequence[Record], records)
    keys = cast(Sequence[Buffer | None] | None, keys)
    if len(records) and isinstance(records[0], Record):
        if keys is not None:
            raise ValueError("a Record has a key of its own")
        return RecordsAppend(
            accumulator,
            topic_name,
            cast(Sequence[Record], records),
            timestamp_ms=timestamp_ms,
            partition=partition,
            delivery=delivery,
        )
    return BulkAppend(
        accumulator,
        topic_name,
        cast(Sequence[Buffer | None], records),
        keys,
        timestamp_ms=timestamp_ms,
        partition=partition,
        delivery=delivery,
    )


class _Run:
    """Records that go to one partition; `partition` None: wherever keyless records go."""

    __slots__ = ("indexes", "keys", "partition", "position", "values")

    def __init__(
        self,
        partition: int | None,
        values: Sequence[Buffer | None],
        keys: Sequence[Buffer | None] | None,
        indexes: Sequence[int],
    ) -> None:
        self.partition = partition
        self.values = values
        self.keys = keys
        self.indexes = indexes
        self.position = 0


class BulkAppend:
    """Values, and keys if there are any, on their way into the batches of a topic."""

    def __init__(
        self,
        accumulator: Accumulator,
        topic_name: str,
        values: Sequence[Buffer | None],
        keys: Sequence[Buffer | None] | None,
        *,
        timestamp_ms: int,
        partition: int | None,
        delivery: BatchDelivery,
    ) -> None:
        if keys is not None and len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys for {len(values)} values")
        self._delivery = delivery
        self._accumulator = accumulator
        self._topic_name = topic_name
        self._timestamp_ms = timestamp_ms
        self._topic = accumulator.topic(topic_name)
        if keys is None or partition is not None:
            self._runs = [_Run(partition, values, keys, range(len(values)))]
        else:
            assert self._topic is not None
            self._runs = _by_partition(values, keys, len(self._topic.queues))

    def advance(self, now_s: float) -> Step:
        """Append to one batch as many records as it takes."""
        while self._runs and self._runs[0].position == len(self._runs[0].values):
            del self._runs[0]
        if not self._runs:
            return Step.DONE
        check_same(self._accumulator, self._topic_name, self._topic)
        run = self._runs[0]
        at = run.position
        key = None if run.keys is None else run.keys[at]
        bound = record_bytes_bound(key, run.values[at])
        # As if all were like the first; what is not needed is given back when the batch is sealed.
        wanted = bound * (len(run.values) - at)
        accumulator = self._accumulator
        batch = accumulator.batch_for(now_s, self._topic_name, None, run.partition, bound, wanted)
        if batch is None:
            return Step.SHORT
        builder = batch.builder
        first = builder.record_count
        try:
            builder.append_many(run.keys, run.values, self._timestamp_ms, at)
        finally:
            # An error in the middle leaves those before it appended.
            count = builder.record_count - first
            accumulator.discard_if_empty(batch)
        self._delivery.add(batch.result, first, run.indexes[at : at + count])
        run.position = at + count
        return Step.MORE


class RecordsAppend:
    """Whole records, with headers and timestamps of their own, on their way; one by one."""

    _STEP_RECORDS = 512

    def __init__(
        self,
        accumulator: Accumulator,
        topic_name: str,
        records: Sequence[Record],
        *,
        timestamp_ms: int,
        partition: int | None,
        delivery: BatchDelivery,
    ) -> None:
        self._delivery = delivery
        self._accumulator = accumulator
        self._topic_name = topic_name
        self._records = records
        self._timestamp_ms = timestamp_ms
        self._partition = partition
        self._position = 0

    def advance(self, now_s: float) -> Step:
        """Append some of the records; those without a timestamp get the call's."""
        accumulator = self._accumulator
        for at in range(
            self._position, min(len(self._records), self._position + self._STEP_RECORDS)
        ):
            record = self._records[at]
            time_ms = self._timestamp_ms if record.timestamp_ms < 0 else record.timestamp_ms
            where = (self._topic_name, record.key, record.value, record.headers, time_ms)
            delivery = accumulator.append(*where, self._partition)
            if delivery is None:
                delivery = accumulator.append_slowly(now_s, *where, self._partition)
            if delivery is None:
                return Step.SHORT
            self._delivery.add_record(delivery, at)
            self._position = at + 1
        return Step.DONE if self._position == len(self._records) else Step.MORE


def _by_partition(
    values: Sequence[Buffer | None], keys: Sequence[Buffer | None], partition_count: int
) -> list[_Run]:
    """Sort records by the partition of their keys; the order within a partition stays."""
    chosen: list[tuple[list[Buffer | None], list[Buffer | None], list[int]]]
    chosen = [([], [], []) for _ in range(partition_count)]
    keyless: list[int] = []
    for index, key in enumerate(keys):
        if key is None:
            keyless.append(index)
            continue
        some_values, some_keys, indexes = chosen[(murmur2(key) & _POSITIVE) % partition_count]
        some_values.append(values[index])
        some_keys.append(key)
        indexes.append(index)
    runs = [
        _Run(partition, some_values, some_keys, indexes)
        for partition, (some_values, some_keys, indexes) in enumerate(chosen)
        if indexes
    ]
    if keyless:
        runs.append(_Run(None, [values[index] for index in keyless], None, keyless))
    return runs
