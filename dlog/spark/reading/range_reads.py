"""Read of one range by a task; the same for batches and streams.

Runs where the tasks run: pyarrow and the client's threads are loaded only here.
"""

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from dlog.spark.errors import DataLossError
from dlog.spark.options.options import ReadOptions
from dlog.spark.reading.ranges import OffsetRange
from dlog.types import PartitionId, TopicPartition

if TYPE_CHECKING:
    import pyarrow


def read_partition(
    options: ReadOptions, schema: StructType, wanted: OffsetRange
) -> Generator["pyarrow.RecordBatch"]:
    """Yield the records of a range, in order."""
    from dlog.spark.reading.task import read_range  # noqa: PLC0415
    from dlog.spark.schema import arrow_schema  # noqa: PLC0415

    read = partial(
        read_range,
        options.settings,
        schema=arrow_schema(schema),
        fail_on_data_loss=options.fail_on_data_loss,
        clip_timestamps=options.clip_timestamps,
    )
    has_begun = False
    try:
        for batch in read(wanted):
            has_begun = True
            yield batch
        return
    except DataLossError:
        if has_begun or not wanted.is_from_earliest:
            raise
    yield from read(_from_where_it_begins(options, wanted))


def _from_where_it_begins(options: ReadOptions, wanted: OffsetRange) -> OffsetRange:
    """Return what retention has left of a range since it was planned."""
    from dlog.spark.reading.lookup import Lookup  # noqa: PLC0415

    key = TopicPartition(wanted.topic, PartitionId(wanted.partition))
    with Lookup(options.settings) as lookup:
        earliest = lookup.earliest([key]).get(key, wanted.start_offset)
    start = min(max(earliest, wanted.start_offset), wanted.end_offset)
    return replace(wanted, start_offset=start, is_from_earliest=False)
