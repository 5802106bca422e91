"""Batch queries against a node: all rows, once, from where to where the options say."""

import json
from collections.abc import Callable, Iterator

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession

from dlog.client.blocking import Admin
from dlog.compression import Codec
from tests.spark.log import DAY_MS, Log, rows_of


def values(first: int, count: int) -> list[bytes]:
    """Return numbered values."""
    return [b"%d" % number for number in range(first, first + count)]


def on_day(day: int) -> Callable[[int], int]:
    """Return the timestamps of records of a day since 1970, one per millisecond."""
    return lambda number: day * DAY_MS + number


def at_offsets(log: Log, **offsets: int) -> str:
    """Return JSON of offsets of partitions, which are named `p0` and so on."""
    return json.dumps({log.topic: {name[1:]: offset for name, offset in offsets.items()}})


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """Let Spark hand filters down."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_all_records_of_a_topic_come_with_all_columns(spark: SparkSession, log: Log) -> None:
    log.create(2)
    log.write(0, [b"a", b"b"])
    log.write(0, [b"c" * 300] * 100, codec=Codec.ZSTD)
    log.write(1, [b"d"] * 3)
    frame = log.read(spark, includeHeaders="true")
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert frame.columns == [*names, "headers"]
    assert log.read(spark).columns == names
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
    log.write(0, values(0, 50))
    log.write(1, values(0, 50))
    frame = log.read(
        spark,
        startingOffsets=at_offsets(log, p0=7, p1=-2),
        endingOffsets=at_offsets(log, p0=9, p1=-1),
    )
    wanted = [row for row in log.rows if row[0] == 1 or 7 <= row[1] < 9]
    assert rows_of(frame) == sorted(wanted)


def test_times_of_a_batch_bound_it(spark: SparkSession, log: Log) -> None:
    log.create(2)
    for day in (20_000, 20_001, 20_002):
        for partition in (0, 1):
            log.write(partition, values(0, 10), timestamp_ms=on_day(day))
    first, last = str(20_001 * DAY_MS), str(20_002 * DAY_MS + 3)
    frame = log.read(spark, startingTimestamp=first, endingTimestamp=last)
    assert rows_of(frame) == sorted(row for row in log.rows if 10 <= row[1] < 23)
    late = str(20_003 * DAY_MS)
    with pytest.raises(AnalysisException, match="No offset matched from request of"):
        log.read(spark, startingTimestamp=late).count()
    frame = log.read(spark, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest")
    assert frame.count() == 0
    assert log.read(spark, endingTimestamp=late).count() == 60
    by_partition = at_offsets(log, p0=int(first), p1=0)
    frame = log.read(spark, startingOffsetsByTimestamp=by_partition)
    assert rows_of(frame) == sorted(row for row in log.rows if row[0] == 1 or row[1] >= 10)


def test_large_ranges_are_divided_over_tasks(spark: SparkSession, log: Log) -> None:
    log.create(3)
    log.write(0, values(0, 900))
    log.write(1, values(0, 100))
    assert log.read(spark).rdd.getNumPartitions() == 2
    for options, count in (({"minPartitions": "7"}, 7), ({"maxRecordsPerPartition": "300"}, 4)):
        frame = log.read(spark, **options)
        assert frame.rdd.getNumPartitions() == count
        assert rows_of(frame) == sorted(log.rows)


def test_only_columns_that_are_asked_for_are_made(spark: SparkSession, log: Log) -> None:
    log.create(1)
    log.write(0, values(0, 5))
    reader = spark.read.format("dlog").options(**log.options())
    frame = reader.schema("offset bigint, value binary").load()
    assert [(row[0], bytes(row[1])) for row in frame.collect()] == list(enumerate(values(0, 5)))
    with pytest.raises(AnalysisException, match=r"DLOG_COLUMN_TYPE.*value string"):
        reader.schema("value string").load().count()
    with pytest.raises(AnalysisException, match=r"DLOG_UNKNOWN_COLUMN.*other int"):
        reader.schema("other int").load().count()


def test_subscriptions_by_name_pattern_and_partition(
    spark: SparkSession, log: Log, admin: Admin
) -> None:
    other = Log(log.bootstrap, admin, f"{log.topic}-b")
    for each in (log, other):
        each.create(2)
        each.write(0, values(0, 3))
        each.write(1, values(0, 4))

    def count(**subscription: str) -> int:
        options = {"kafka.bootstrap.servers": log.bootstrap, **subscription}
        return spark.read.format("dlog").options(**options).load().count()

    assert count(subscribe=f"{log.topic}, {other.topic}") == 14
    assert count(subscribePattern=f"^{log.topic}(-b)?$") == 14
    assert count(subscribePattern=f"^{log.topic}$") == 7
    # Neither need be the whole name, as with Spark's own source.
    assert count(subscribePattern=f"{log.topic[1:]}-") == 7
    assert count(subscribePattern=f"{log.topic[1:]}(-b)?$") == 14
    assert count(subscribePattern="no such topic") == 0
    assert count(assign=json.dumps({log.topic: [1], other.topic: [0]})) == 7


def test_a_view_of_sql_reads_a_topic(spark: SparkSession, log: Log) -> None:
    log.create(1)
    log.write(0, values(0, 5))
    options = ", ".join(f"`{name}` '{value}'" for name, value in log.options().items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW logged USING dlog OPTIONS ({options})")
    (row,) = spark.sql("SELECT count(*), max(offset) FROM logged").collect()
    assert tuple(row) == (5, 4)


def test_an_empty_topic_has_no_rows(spark: SparkSession, log: Log) -> None:
    log.create(2)
    assert log.read(spark).count() == 0


def test_what_does_not_fit_is_said_by_name(spark: SparkSession, log: Log) -> None:
    with pytest.raises(AnalysisException, match="must be specified"):
        spark.read.format("dlog").option("subscribe", "t").load()
    with pytest.raises(AnalysisException, match=f"DLOG_UNKNOWN_TOPIC_OR_PARTITION.*{log.topic}"):
        log.read(spark).count()
    log.create(2)
    log.write(0, values(0, 10))
    with pytest.raises(AnalysisException, match="KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"):
        log.read(spark, startingOffsets=at_offsets(log, p0=1)).count()
    with pytest.raises(AnalysisException, match="RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"):
        log.read(spark, startingOffsets=at_offsets(log, p0=11, p1=0)).count()
    with pytest.raises(AnalysisException, match=r"does not exist|has no .*-7"):
        options = {"kafka.bootstrap.servers": log.bootstrap, "assign": f'{{"{log.topic}":[7]}}'}
        spark.read.format("dlog").options(**options).load().count()
    with pytest.raises(AnalysisException, match="DLOG_CLUSTER_UNREACHABLE"):
        nowhere = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "300"}
        spark.read.format("dlog").options(subscribe="t", **nowhere).load().count()


def test_records_that_are_gone_end_the_query_or_are_left_out(spark: SparkSession, log: Log) -> None:
    log.create(1)
    for first in (0, 10, 20):
        log.write(0, values(first, 10))
    log.trim(0, 10)
    assert rows_of(log.read(spark)) == sorted(log.rows)  # the earliest there is: no loss
    from_start = at_offsets(log, p0=3)
    beyond = at_offsets(log, p0=40)
    quick = {"fetchOffset.retryIntervalMs": "1"}
    with pytest.raises(AnalysisException, match=r"COULD_NOT_READ_OFFSET_RANGE.*starts at 10"):
        log.read(spark, startingOffsets=from_start).count()
    with pytest.raises(AnalysisException, match=r"COULD_NOT_READ_OFFSET_RANGE.*ends at 30"):
        log.read(spark, endingOffsets=beyond, **quick).count()
    frame = log.read(
        spark, startingOffsets=from_start, endingOffsets=beyond, failOnDataLoss="false", **quick
    )
    assert rows_of(frame) == sorted(log.rows)


def test_records_that_go_before_a_task_reads_them(spark: SparkSession, log: Log) -> None:
    log.create(1)
    for first in (0, 10, 20):
        log.write(0, values(first, 10))
    from_start = {"startingOffsets": at_offsets(log, p0=0)}
    strict = log.read(spark, **from_start)
    lax = log.read(spark, failOnDataLoss="false", **from_start)
    earliest = log.read(spark, minPartitions="3")
    # Planned now, read later.
    assert [each.rdd.getNumPartitions() for each in (strict, lax, earliest)] == [1, 1, 3]
    log.trim(0, 20)
    with pytest.raises(PythonException, match="COULD_NOT_READ_OFFSET_RANGE"):
        strict.rdd.count()
    assert lax.rdd.count() == earliest.rdd.count() == 10


@pytest.mark.usefixtures("pushdown")
def test_filters_read_less_and_leave_the_same_rows(spark: SparkSession, log: Log) -> None:
    log.create(3)
    for partition in range(3):
        for day in (20_000, 20_001):
            log.write(partition, values(0, 50), timestamp_ms=on_day(day))
    every = log.read(spark).cache()
    for condition, tasks in (
        ("partition = 1", 1),
        ("partition in (0, 2) and offset >= 40 and offset < 60", 2),
        ("offset = 7", 3),
        (f"topic = '{log.topic}' and offset > 98", 3),
        ("timestamp >= '2024-10-05 00:00:00.010'", 3),
        ("timestamp >= '2024-10-05 00:00:00.010' and timestamp < '2024-10-05 00:00:00.020'", 3),
        ("partition = 1 or offset = 3", 3),
        ("partition = 5", 1),
    ):
        frame = log.read(spark, pushFilters="true").where(condition)
        assert rows_of(frame) == rows_of(every.where(condition)), condition
        assert frame.rdd.getNumPartitions() == tasks, condition
    exact = "partition = 1 and offset < 3"
    assert "offset" in filters_of_spark(log.read(spark).where(exact))
    assert "offset" not in filters_of_spark(log.read(spark, pushFilters="true").where(exact))
    late = log.read(spark, pushFilters="true").where("timestamp > '2024-10-05'")
    assert "timestamp" in filters_of_spark(late)
    every.unpersist()


def filters_of_spark(frame: DataFrame) -> str:
    """Return what Spark filters behind the source."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return "".join(line for line in plan.splitlines() if "Filter (" in line)
