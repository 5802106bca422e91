"""Task of a replay: writes the records that the target does not have yet.

The rows of one partition come in an order that is always the same. How many of them the partition
has is told by its end; they are passed over, after a look whether the last one is the same.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow

from dlog.batch.arrow import columns_from_arrow
from dlog.batch.columns import library
from dlog.batch.native import murmur2_rows
from dlog.client.blocking import Consumer, Producer
from dlog.client.consumed import ConsumedRecord
from dlog.client.retry import RetryPolicy
from dlog.errors import DlogError
from dlog.spark.errors import SparkSourceError
from dlog.spark.pipelines.origins import find_stamped
from dlog.spark.pipelines.replay_state import DisturbedReplayError
from dlog.spark.pipelines.settling import SettledEnds
from dlog.spark.reading.lookup import Lookup
from dlog.spark.settings import ClientSettings
from dlog.spark.writing.sink_errors import replay_failed
from dlog.types import PartitionId, TopicPartition

WINDOW = 4
"""Deliveries that are waited for at once."""
RESULT = pyarrow.schema([("target", pyarrow.int32()), ("rows", pyarrow.int64()),
                         ("written", pyarrow.int64())])  # fmt: skip
_POSITIVE = 0x7FFF_FFFF
_US_PER_MS = 1000
_SENT = ("key", "value", "timestamp", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTask:
    """What each task of a batch is told; pickled. `bases`: where partitions ended before it.

    A task has the partitions whose number leaves the same rest when divided by `task_count`.
    """

    settings: ClientSettings
    topic: str
    bases: Mapping[int, int]
    compression: str = "none"
    delivery_timeout_ms: int = 120_000
    task_count: int = 1

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Write what is missing; yield of each partition its rows and how many were written.

        Raises SparkSourceError.
        """
        try:
            result = self._replay(batches)
        except SparkSourceError:
            raise
        except (DlogError, ValueError) as error:
            raise replay_failed(f"replaying into {self.topic}", error) from error
        yield result

    def _replay(self, batches: Iterable[pyarrow.RecordBatch]) -> pyarrow.RecordBatch:
        found: dict[int, _Target] = {}
        with _Writer(self) as writer:
            for batch in batches:
                for target, rows in _by_target(batch):
                    if target not in found:
                        found[target] = writer.open(target)
                    writer.write(found[target], rows)
            writer.flush()
        for each in found.values():
            each.check()
        columns = [
            [each.partition for each in found.values()],
            [each.rows for each in found.values()],
            [each.rows - each.there for each in found.values()],
        ]
        return pyarrow.RecordBatch.from_arrays(
            [
                pyarrow.array(column, field.type)
                for column, field in zip(columns, RESULT, strict=True)
            ],
            schema=RESULT,
        )


def _by_target(batch: pyarrow.RecordBatch) -> Iterator[tuple[int, pyarrow.RecordBatch]]:
    """Cut a batch that is sorted by `target` where that changes."""
    numpy = library("numpy")
    if not batch.num_rows:
        return
    targets = batch.column("target").to_numpy(zero_copy_only=False)
    cuts = [0, *(numpy.flatnonzero(numpy.diff(targets)) + 1).tolist(), batch.num_rows]
    for start, end in itertools.pairwise(cuts):
        yield int(targets[start]), batch.slice(start, end - start)


@dataclass(slots=True)
class _Target:
    """One partition of the target, in this task."""

    topic: str
    partition: int
    there: int
    """So many rows it had before."""
    last: ConsumedRecord | None
    """The last of those; None where there is none to look at."""
    is_stamped: bool = False
    """The target has its leader's times, not those of the archive."""
    rows: int = 0

    def take(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """Return the rows that are to be written."""
        skipped = min(max(0, self.there - self.rows), batch.num_rows)
        is_last = skipped > 0 and self.rows + skipped == self.there
        if is_last and self.last and not self._is(batch.slice(skipped - 1, 1), self.last):
            raise DisturbedReplayError(
                f"{self.topic}-{self.partition} has {self.there} records since the last batch, "
                "but the last of them is another one than the archive has there."
            )
        self.rows += batch.num_rows
        return batch.slice(skipped)

    def _is(self, row: pyarrow.RecordBatch, found: ConsumedRecord) -> bool:
        """Return whether a record is that of the row, in everything that was sent."""
        key, value, timestamp, headers = (row.column(name)[0] for name in _SENT)
        pairs = tuple((each["key"], each["value"]) for each in headers.as_py() or ())
        return (key.as_py(), value.as_py(), pairs) == (found.key, found.value, found.headers) and (
            self.is_stamped or timestamp.value // _US_PER_MS == found.timestamp_ms
        )

    def check(self) -> None:
        """Raise when the partition had more records than there are."""
        if self.there > self.rows:
            raise DisturbedReplayError(
                f"{self.topic}-{self.partition} has {self.there} records since the last batch, "
                f"the archive has {self.rows} for it."
            )


@dataclass(slots=True)
class _Writer:
    """The clients of one task. Life: a `with` block."""

    task: ReplayTask
    _producer: Producer = field(init=False)
    _lookup: Lookup = field(init=False)
    _ends: SettledEnds = field(init=False)
    _consumer: Consumer | None = None
    """Only where a partition has records already, which happens after a repetition."""
    _waiting: deque[Any] = field(default_factory=deque)

    def __enter__(self) -> "_Writer":
        settings = self.task.settings
        self._producer = Producer(
            settings.bootstrap,
            acks="all",
            idempotent=True,
            gapless=True,  # the next attempt takes what is there for the beginning of the rows
            compression=self.task.compression,
            delivery_timeout_ms=self.task.delivery_timeout_ms,
            connection=settings.connection(),
            policy=RetryPolicy(deadline_s=settings.deadline_s),
        )
        self._producer.start()
        # Like the producer, for as long as nodes may come and go.
        self._lookup = Lookup(replace(settings, lookup_deadline_s=settings.deadline_s))
        self._ends = SettledEnds(self._lookup, settings.deadline_s)
        return self

    def __exit__(self, *_error: object) -> None:
        self._producer.close()
        self._lookup.close()
        if self._consumer is not None:
            self._consumer.close()

    def open(self, partition: int) -> _Target:
        """Ask what a partition has already."""
        topic, bases, count = self.task.topic, self.task.bases, self.task.task_count
        base = bases[partition]
        key = TopicPartition(topic, PartitionId(partition))
        self._ends.watch(
            TopicPartition(topic, PartitionId(each))
            for each in bases
            if each % count == partition % count
        )
        end = self._ends.wait(key)
        if end < base:
            raise DisturbedReplayError(f"{topic}-{partition} ends at {end}, before {base}.")
        target = _Target(topic, partition, end - base, None)
        if end > base and end > self._lookup.earliest([key]).get(key, end):
            settings = self.task.settings
            target.last = _record_at(self._reader(), key, end - 1, settings.deadline_s)
            target.is_stamped = find_stamped(settings, topic)
        return target

    def _reader(self) -> Consumer:
        if self._consumer is None:
            settings = self.task.settings
            self._consumer = Consumer(
                settings.bootstrap,
                connection=settings.connection(),
                policy=RetryPolicy(deadline_s=settings.deadline_s),
            )
            self._consumer.start()
        return self._consumer

    def write(self, target: _Target, batch: pyarrow.RecordBatch) -> None:
        """Send the rows that the partition does not have."""
        rows = target.take(batch)
        if rows.num_rows:
            sent = rows.select(_SENT)
            partition = target.partition
            self._waiting.append(
                self._producer.send_many(self.task.topic, sent, partition=partition)
            )
        if len(self._waiting) > WINDOW:
            self._waiting.popleft().result()

    def flush(self) -> None:
        """Wait for everything that was sent; raises the first error."""
        while self._waiting:
            self._waiting.popleft().result()


def _record_at(
    consumer: Consumer, key: TopicPartition, offset: int, deadline_s: float
) -> ConsumedRecord:
    """Return the last record that is there; raises SparkSourceError in time."""
    consumer.assign([key], offset)
    records = consumer.poll(max_records=1, timeout_ms=deadline_s * 1000)
    if not records:
        raise SparkSourceError(
            "DLOG_READ_TIMEOUT",
            f"{key.topic}-{key.partition} ends behind offset {offset}, but no record came from "
            f"there within {deadline_s:g} s.",
            "See whether the partition has a leader (dlogctl status), then start the replay again."
            " If a transaction of another producer ended at that offset, start again with a new"
            " topic.",
        )
    if records[0].offset != offset:
        raise DisturbedReplayError(f"{key.topic}-{key.partition} has no record at {offset}.")
    return records[0]


@dataclass(frozen=True, slots=True)
class Placing:
    """Adds to each row the partition that it goes to; pickled. Runs where the task does."""

    partition_count: int
    by_key: bool
    schema: pyarrow.Schema

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Yield the batches with a column `target`."""
        for batch in batches:
            target = batch.column("partition")
            if self.by_key:
                target = self._of_keys(batch)
            named = {name: batch.column(name) for name in batch.schema.names} | {"target": target}
            yield pyarrow.RecordBatch.from_arrays(
                [named[field.name].cast(field.type) for field in self.schema], schema=self.schema
            )

    def _of_keys(self, batch: pyarrow.RecordBatch) -> Any:
        """Return the partition of each key as Kafka's clients choose it; without, a fixed one."""
        numpy = library("numpy")
        count = self.partition_count
        own = batch.column("partition").to_numpy(zero_copy_only=False) % count
        keys = columns_from_arrow(batch.select(["key", "value"])).keys
        if keys.null_count == batch.num_rows:
            return pyarrow.array(own, pyarrow.int32())
        hashed = (numpy.frombuffer(murmur2_rows(keys.parts), numpy.int32) & _POSITIVE) % count
        there = batch.column("key").is_valid().to_numpy(zero_copy_only=False)
        return pyarrow.array(numpy.where(there, hashed, own).astype(numpy.int32))
