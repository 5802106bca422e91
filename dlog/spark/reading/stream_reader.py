"""Reader of a streaming query: offsets of checkpoints in, offsets and tasks out.

Spark keeps one in a process of the driver's host, which plans; copies are pickled to the tasks,
which read. Spark calls neither `stop` nor the last `commit` reliably: nothing depends on them.
"""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from dlog.spark.options.offsets import JsonOffsets, from_json, to_json
from dlog.spark.options.options import ReadOptions
from dlog.spark.reading.range_reads import read_partition
from dlog.spark.reading.ranges import OffsetRange
from dlog.spark.reading.small_batches import SmallBatch, read_small

if TYPE_CHECKING:
    import pyarrow

    from dlog.spark.reading.stream_planner import StreamPlanner


class DlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the micro-batches of one query. Owner: one process of Spark."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._planner: StreamPlanner | None = None
        self._records: Sequence[pyarrow.RecordBatch] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Leave connections behind: tasks need only the options."""
        return {**self.__dict__, "_planner": None, "_records": ()}

    @property
    def planner(self) -> "StreamPlanner":
        """What plans, in the process that does; connected when it is first asked."""
        if self._planner is None:
            # Spark makes a reader in several processes for each query; only this one plans.
            from dlog.spark.reading.lookup import Lookup  # noqa: PLC0415
            from dlog.spark.reading.stream_planner import StreamPlanner  # noqa: PLC0415

            lookup = Lookup(self.options.settings)
            self._planner = StreamPlanner(self.options, lookup, time.monotonic)
        return self._planner

    # What the planning process is asked

    def initialOffset(self) -> JsonOffsets:  # noqa: N802
        """Return where a new query begins."""
        return to_json(self.planner.initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return what limits a batch; there is no limit made of several, see `latestOffset`."""
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802
        self, start: JsonOffsets, limit: ReadLimit
    ) -> JsonOffsets:
        """Return where the next batch ends: by all limits of the options, or none when told so."""
        is_limited = not isinstance(limit, ReadAllAvailable)
        return to_json(self.planner.next_end(from_json(start), is_limited=is_limited))

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802
        """Return where the logs end, for the query's progress: the rest is its lag."""
        latest = self.planner.latest
        return None if latest is None else to_json(latest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop at the end that the logs have when the query begins."""
        self.planner.freeze()

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> Sequence[InputPartition]:
        """Return the tasks of a batch; asked again after a restart, for the same batch."""
        self._be(DlogStreamReader)
        ranges = self.planner.ranges(from_json(start), from_json(end))
        records = read_small(self.options, self.schema, ranges)
        if records is None:
            return ranges
        self._be(ReaderWithRecords, records)
        return [SmallBatch(ranges=tuple(ranges))]

    def _be(
        self, kind: type["DlogStreamReader"], records: Sequence["pyarrow.RecordBatch"] = ()
    ) -> None:
        """Have records to hand over, or none: Spark sees it by the class."""
        self.__class__ = kind
        self._records = records

    def commit(self, end: JsonOffsets) -> None:
        """Do nothing: the checkpoint is the query's progress."""

    def stop(self) -> None:
        """Close what was opened."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    # What a task does

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        """Yield the records of a task."""
        ranges: tuple[OffsetRange, ...] = ()
        if isinstance(partition, OffsetRange):
            ranges = (partition,)
        elif isinstance(partition, SmallBatch):
            ranges = partition.ranges
        for each in ranges:
            yield from read_partition(self.options, self.schema, each)


class ReaderWithRecords(DlogStreamReader, _SimpleStreamReaderWrapper):
    """A reader that has the records of the batch that it has just planned, until it is asked.

    Spark asks right after `partitions`, and only readers of this private class. What else it asks
    readers of that class otherwise (the lag, say) is not meant for this one: so it is one for that
    moment only.
    """

    def getCache(  # noqa: N802
        self, _start: JsonOffsets, _end: JsonOffsets
    ) -> Iterator["pyarrow.RecordBatch"]:
        """Return the records of the batch, once."""
        records = self._records
        self._be(DlogStreamReader)
        return iter(records)
