"""Reader of a batch query: options become ranges of offsets, each range a task.

Made in the planner on the driver's host; `read` runs where the tasks run, on a pickled copy.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from dlog.spark.options.options import ReadOptions
from dlog.spark.reading.range_reads import read_partition
from dlog.spark.reading.ranges import OffsetRange, split_ranges

if TYPE_CHECKING:
    import pyarrow

    from dlog.spark.reading.lookup import Lookup


class DlogBatchReader(DataSourceReader):
    """Reads what there is between two bounds. Owner: whichever process unpickled it."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[OffsetRange]:
        """Ask the cluster where the read begins and ends; return one range per task."""
        # Spark makes a reader in several processes for each query; only this one needs a client.
        from dlog.spark.reading.batch_planner import plan_batch  # noqa: PLC0415
        from dlog.spark.reading.lookup import Lookup  # noqa: PLC0415

        with Lookup(self.options.settings) as lookup:
            ranges = self.narrow(lookup, plan_batch(lookup, self.options))
        return split_ranges(
            ranges,
            min_partitions=self.options.min_partitions,
            max_records=self.options.max_records_per_partition,
        )

    def narrow(self, lookup: "Lookup", ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Return what the query's filters leave of the ranges; all of it where there are none."""
        return ranges

    def read(self, partition: InputPartition) -> Iterator["pyarrow.RecordBatch"]:
        """Yield the records of a range; none for what Spark passes when there are no ranges."""
        if isinstance(partition, OffsetRange):
            yield from read_partition(self.options, self.schema, partition)
