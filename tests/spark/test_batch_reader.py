"""Batch queries against a node: all rows, once, from where to where the options say."""

import json

from pyspark.sql import SparkSession

from dlog.compression import Codec
from tests.spark.log import Log, rows_of


def test_all_records_of_a_topic_come_with_all_columns(spark: SparkSession, log: Log) -> None:
    log.create(2)
    log.write(0, [b"a", b"b"])
    log.write(0, [b"c" * 300] * 100, codec=Codec.ZSTD)
    log.write(1, [b"d"] * 3)
    frame = log.read(spark, includeHeaders="true")
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert frame.columns == [*names, "headers"]
    assert rows_of(frame) == sorted(log.rows)
    row = frame.where("partition = 0 and offset = 1").collect()[0]
    assert (bytes(row["key"]), row["topic"], row["timestampType"]) == (b"k1", log.topic, 0)
    assert row["timestamp"].isoformat() == "2024-10-04T00:00:00.001000"
    assert [(each["key"], each["value"]) for each in row["headers"]] == [
        ("h", b"1"),
        ("none", None),
    ]


def test_offsets_of_a_batch_bound_it(spark: SparkSession, log: Log) -> None:
    log.create(2)
    log.write(0, [b"%d" % number for number in range(50)])
    log.write(1, [b"%d" % number for number in range(50)])
    frame = log.read(
        spark,
        startingOffsets=json.dumps({log.topic: {"0": 7, "1": -2}}),
        endingOffsets=json.dumps({log.topic: {"0": 9, "1": -1}}),
    )
    wanted = [row for row in log.rows if row[0] == 1 or 7 <= row[1] < 9]
    assert rows_of(frame) == sorted(wanted)
