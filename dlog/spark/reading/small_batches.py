"""Small micro-batches, read by the planner and sent with the plan.

A task in Python costs Spark more than a few records do. Spark lets the process that plans a
stream send records along with a plan of one task, keeps them as a block, and runs that task
without Python; where the block is gone, the task reads after all. It is made for
SimpleDataSourceStreamReader (SPARK-47107), and Spark tells by its private wrapper's class, right
after `partitions`, whether there is something to send. So a reader that has records is of such a
class, `ReaderWithRecords` of `dlog.spark.reading.stream_reader`, until Spark has taken them.

All records of such a batch are one task's: a query that spends long on each record loses the
tasks that it would have had. So it is done only for those that ask for it (`smallBatchOffsets`).
"""

import contextlib
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from dlog.spark.errors import SparkSourceError
from dlog.spark.options.options import ReadOptions
from dlog.spark.reading.range_reads import read_partition
from dlog.spark.reading.ranges import OffsetRange

if TYPE_CHECKING:
    import pyarrow

BYTES_MAX = 1024 * 1024
"""What is handed over with a plan, in Arrow's format: more is read by tasks, side by side."""

DEADLINE_S = 2.0
"""Planning waits no longer for records; tasks do (`kafkaConsumer.pollTimeoutMs`)."""

_log = logging.getLogger("dlog.spark")


@dataclass(frozen=True, kw_only=True)
class SmallBatch(InputPartition):
    """The one task of a micro-batch whose records were read with its plan."""

    ranges: tuple[OffsetRange, ...]


def read_small(
    options: ReadOptions, schema: StructType, ranges: Sequence[OffsetRange]
) -> "list[pyarrow.RecordBatch] | None":
    """Return the records of a micro-batch; None where tasks shall read them.

    That is so of large ones, of what takes long, and where anything goes wrong: tasks try for
    longer, elsewhere, side by side, and tell of it in their own way. So nothing is passed over
    here, whatever `failOnDataLoss` says: what seems to be gone may be there again before a task has
    given up.
    """
    most = options.small_batch_offsets
    if most is None or not 0 < sum(map(len, ranges)) <= most:
        return None
    settings = replace(options.settings, deadline_s=DEADLINE_S)
    hurried = replace(options, settings=settings, fail_on_data_loss=True)
    found, size = list["pyarrow.RecordBatch"](), 0
    end_s = math.inf
    try:
        for each in ranges:
            if time.monotonic() >= end_s:
                return None
            with contextlib.closing(read_partition(hurried, schema, each)) as batches:
                for batch in batches:
                    size += batch.nbytes
                    if size > BYTES_MAX:
                        return None
                    found.append(batch)
            # Only now: what reads had to be loaded for the first one.
            end_s = min(end_s, time.monotonic() + DEADLINE_S)
    except SparkSourceError as error:
        _log.info("Left a small batch to its tasks error=%s", error)
        return None
    return found
