"""Streaming queries against a node: each record once, over restarts and changes of the topic."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.log import Log
from tests.spark.streams import Stream


def values(first: int, count: int) -> list[bytes]:
    """Return numbered values."""
    return [b"%d" % number for number in range(first, first + count)]


def test_a_query_goes_on_where_its_checkpoint_says(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create(2)
    log.write(0, values(0, 100))
    log.write(1, values(0, 40))
    stream = Stream(spark, log, tmp_path, startingOffsets="earliest")
    assert [each["numInputRows"] for each in stream.run()] == [140]
    assert stream.rows() == sorted(log.rows)
    assert stream.run() == []
    log.write(1, values(40, 7))
    assert [each["numInputRows"] for each in stream.run()] == [7]
    assert stream.rows() == sorted(log.rows)


def test_available_now_is_cut_into_batches_and_ends(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create(2)
    log.write(0, values(0, 90))
    log.write(1, values(0, 30))
    stream = Stream(spark, log, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    assert [each["numInputRows"] for each in stream.run()] == [40, 40, 40]
    assert stream.rows() == sorted(log.rows)
