"""One task of the sink: Arrow batches in, a message with what was written out.

Runs in a worker process. Memory is bounded by the producer's and by `_Pending`, which holds batches
until their records are acknowledged, so that an error can name the record: a task that is ahead of
the cluster waits, and with it the JVM that feeds it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pyarrow

from dlog.client.blocking import Producer
from dlog.client.futures import BatchDelivery, BufferFullError, DeliveryError, WrittenSpan
from dlog.errors import DlogError
from dlog.spark.errors import UNREACHABLE, SparkSourceError
from dlog.spark.options.write_options import WriteOptions
from dlog.spark.settings import ClientSettings
from dlog.spark.writing.promises import Promise, told
from dlog.spark.writing.sink_errors import FailedRows, unsendable, write_failed
from dlog.spark.writing.sink_rows import TopicRows, rows_by_topic
from dlog.spark.writing.tokens import Attempt, PartitionWritten, TaskWritten

# Made at run time, so nobody knows its types.
_compute: Any = import_module("pyarrow.compute")


def write_task(
    attempt: Attempt,
    batches: Iterator[pyarrow.RecordBatch],
    settings: ClientSettings,
    options: WriteOptions,
    promise: Promise,
) -> TaskWritten:
    """Write all rows and return when they are acknowledged; raises SparkSourceError else."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return told(attempt, ())
    try:
        producer, has_rested = promise.begin(attempt)
    except SparkSourceError:
        raise
    except (DlogError, ValueError, OSError) as error:
        raise SparkSourceError(
            UNREACHABLE,
            f"No producer for {settings.bootstrap}: {type(error).__name__}: {error}.",
            "See that the executors reach these addresses, what the nodes advertise, and whether"
            " both sides speak TLS, or none (dlog.tls).",
        ) from error
    written: tuple[PartitionWritten, ...] | None = None
    try:
        sink = _Sink(attempt, producer, options, has_rested=has_rested)
        sink.write(first)
        del first
        for batch in batches:
            sink.write(batch)
        written = sink.finish().partitions()
    finally:
        if written is None:
            promise.drop(attempt, producer)
    return promise.seal(attempt, producer, written)


class Tally:
    """What was written, by topic and partition."""

    def __init__(self) -> None:
        self.record_count = 0
        # (topic, partition) -> count, first offset, last offset
        self._found: dict[tuple[str, int], tuple[int, int, int]] = {}

    def add(self, topic: str, span: WrittenSpan) -> None:
        """Count records that were acknowledged."""
        count = len(span.indexes)
        self.record_count += count
        have, first, last = self._found.get((topic, span.partition), (0, -1, -1))
        if span.base_offset >= 0:
            first = span.base_offset if first < 0 else min(first, span.base_offset)
            last = max(last, span.base_offset + count - 1)
        self._found[topic, span.partition] = have + count, first, last

    def partitions(self) -> tuple[PartitionWritten, ...]:
        """Return what was written to each partition, sorted."""
        return tuple(PartitionWritten(*where, *what) for where, what in sorted(self._found.items()))


@dataclass(slots=True)
class _Pending:
    """Rows on their way; `first_row` is the number of their batch's first row in the task."""

    delivery: Any  # a BlockingBatchDelivery
    rows: TopicRows
    first_row: int
    size_bytes: int


class _Sink:
    """Gives batches to a producer and looks after what becomes of them. Owner: one task."""

    def __init__(
        self, attempt: Attempt, producer: Producer, options: WriteOptions, *, has_rested: bool
    ) -> None:
        self._has_rested = has_rested
        # Topics that are known as they are now.
        self._looked_up: set[str] = set()
        self._attempt = attempt
        self._producer = producer
        self._options = options
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        self._row = 0
        self._tally = Tally()

    def write(self, batch: pyarrow.RecordBatch) -> None:
        """Take a batch over; waits while memory is full."""
        for rows in rows_by_topic(batch, self._options, self._row):
            size_bytes = rows.rows.nbytes
            while self._pending and self._pending_bytes + size_bytes > self._options.memory_bytes:
                self._settle(self._pending[0])
            delivery = self._send(rows)
            self._pending.append(_Pending(delivery, rows, self._row, size_bytes))
            self._pending_bytes += size_bytes
        self._row += batch.num_rows
        while self._pending and self._pending[0].delivery.done():
            self._settle(self._pending[0])

    def finish(self) -> Tally:
        """Wait until everything is acknowledged."""
        self._producer.flush()
        while self._pending:
            self._settle(self._pending[0])
        return self._tally

    def _send(self, rows: TopicRows) -> BatchDelivery:
        try:
            is_old = self._has_rested and rows.topic not in self._looked_up
            if is_old or self._names_unknown_partition(rows):
                self._producer.refresh(rows.topic)
                self._looked_up.add(rows.topic)
            return self._producer.send_many(rows.topic, rows.rows, partition=rows.partitions)
        except BufferFullError as error:
            # The cluster takes nothing; why is known of what is on its way.
            self._raise_failed(lambda pending: pending.delivery.done())
            raise unsendable(rows, self._row, self._place(), error) from error
        except (DlogError, ValueError, pyarrow.ArrowException) as error:
            raise unsendable(rows, self._row, self._place(), error) from error

    def _names_unknown_partition(self, rows: TopicRows) -> bool:
        """Return whether a row names one that may have been added since anybody asked.

        Kafka's producers ask then, too, before they refuse it.
        """
        if rows.partitions is None:
            return False
        highest = _compute.max(rows.partitions).as_py()
        return highest is not None and highest >= self._producer.partition_count(rows.topic)

    def _settle(self, pending: _Pending) -> None:
        """Count what a batch became, waiting for it, or raise about it."""
        try:
            spans = pending.delivery.result()
        except DeliveryError:
            self._raise_failed(lambda other: other is pending)
            raise
        self._pending.popleft()
        self._pending_bytes -= pending.size_bytes
        for span in spans:
            self._tally.add(pending.rows.topic, span)

    def _raise_failed(self, concerns: Callable[[_Pending], bool]) -> None:
        """Raise about the first rows among these that were not acknowledged, if there are any."""
        for pending in self._pending:
            if not concerns(pending):
                continue
            for outcome in pending.delivery.outcomes():
                if outcome is not None and not isinstance(outcome, WrittenSpan):
                    error, indexes = outcome
                    failed = FailedRows(pending.rows, pending.first_row, indexes)
                    raise write_failed(failed, self._place(), error) from error

    def _place(self) -> str:
        return f"task {self._attempt.task} of {self._attempt.token}"
