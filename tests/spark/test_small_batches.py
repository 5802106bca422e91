"""Small micro-batches: their records come with their plan, and no task runs Python for them."""

import io
import json
import pickle
import struct
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.serializers import ArrowStreamSerializer
from pyspark.sql.streaming import python_streaming_source_runner as runner

from dlog.client.consuming import node_fetcher
from dlog.errors import UnknownTopicOrPartitionError
from dlog.spark.reading import small_batches
from dlog.spark.reading.ranges import OffsetRange
from dlog.spark.reading.small_batches import SmallBatch
from dlog.spark.reading.stream_reader import DlogStreamReader
from dlog.spark.source import DlogDataSource
from tests.spark.log import Log, Row
from tests.spark.planners import ALL, reader_of, spans
from tests.spark.streams import Stream

SMALL = {"smallBatchOffsets": "20"}
_CLOSED = "127.0.0.1:1"  # nobody listens there


def read_int(stream: io.BytesIO) -> int:
    """Read a number as Spark's Python and its JVM write them."""
    return int.from_bytes(stream.read(4), "big", signed=True)


def plan(reader: DlogStreamReader, start: Any, end: Any) -> tuple[list[Any], list[Row] | None]:
    """Have Spark's own code ask for a plan; return the tasks, and the records that came along."""
    schema = DlogDataSource({"subscribe": "any", "kafka.bootstrap.servers": _CLOSED}).schema()
    asked, told = io.BytesIO(), io.BytesIO()
    for offset in (start, end):
        text = json.dumps(offset).encode()
        asked.write(struct.pack(">i", len(text)) + text)
    asked.seek(0)
    source: Any = None
    runner.partitions_func(reader, source, schema, 10_000, asked, told)
    told.seek(0)
    tasks = [pickle.loads(told.read(read_int(told))) for _ in range(read_int(told))]
    what = read_int(told)
    if what == runner.PREFETCHED_RECORDS_NOT_FOUND:
        return tasks, None
    rows: list[Row] = []
    if what == runner.NON_EMPTY_PYARROW_RECORD_BATCHES:
        read_int(told)
        for batch in ArrowStreamSerializer().load_stream(told):
            columns = batch.select(["partition", "offset", "value"]).to_pydict()
            rows += zip(columns["partition"], columns["offset"], columns["value"], strict=True)
    return tasks, rows


def test_records_of_a_small_batch_come_with_its_plan(
    log: Log, readers: list[DlogStreamReader]
) -> None:
    log.create(2)
    log.write(0, [b"a%d" % number for number in range(8)])
    log.write(1, [b"b%d" % number for number in range(12)])
    reader = reader_of(log, readers, **SMALL)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    for each in (reader, pickle.loads(pickle.dumps(reader))):  # planned again after a restart
        readers.append(each)
        (task,), rows = plan(each, start, end)
        assert rows == log.rows
        assert spans(task.ranges) == [f"{log.topic}-0 [0, 8)", f"{log.topic}-1 [0, 12)"]
        # The task reads the same where what came along is lost.
        found = [row for batch in each.read(task) for row in batch.to_pydict()["value"]]
        assert found == [value for _, _, value in log.rows]
    assert runner_lag(reader) == end  # which Spark does not ask readers that always send records
    assert plan(reader, end, end) == ([], None)
    log.write(0, [b"c"] * 21)
    (task,), rows = plan(reader, end, reader.latestOffset(end, ALL))
    assert isinstance(task, OffsetRange)
    assert rows is None


def runner_lag(reader: DlogStreamReader) -> Any:
    """Return how far Spark is told that the logs go."""
    told = io.BytesIO()
    runner.report_latest_offset_func(reader, told)
    told.seek(0)
    return json.loads(told.read(read_int(told)) or "null")


@pytest.mark.parametrize("options", [{}, {"smallBatchOffsets": "0"}])
def test_nobody_gets_small_batches_unasked(
    log: Log, readers: list[DlogStreamReader], options: dict[str, str]
) -> None:
    log.create(1)
    log.write(0, [b"x"])
    reader = reader_of(log, readers, **options)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    (task,), rows = plan(reader, reader.initialOffset(), end)
    assert isinstance(task, OffsetRange)
    assert rows is None


def test_few_records_of_many_bytes_are_left_to_tasks(
    log: Log, readers: list[DlogStreamReader]
) -> None:
    log.create(2)
    log.write(0, [bytes(small_batches.BYTES_MAX // 2)])
    log.write(1, [bytes(small_batches.BYTES_MAX // 2)])
    reader = reader_of(log, readers, **SMALL)
    start = reader.initialOffset()
    tasks, rows = plan(reader, start, reader.latestOffset(start, ALL))
    assert spans(tasks) == [f"{log.topic}-0 [0, 1)", f"{log.topic}-1 [0, 1)"]
    assert rows is None
    log.write(0, [b"small"])
    end = reader.latestOffset(start, ALL)
    (_,), rows = plan(reader, {log.topic: {"0": 1, "1": 1}}, end)
    assert rows == [(0, 1, b"small")]


def test_what_cannot_be_read_where_it_is_planned_is_left_to_tasks(
    log: Log, readers: list[DlogStreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create(1)
    log.write(0, [b"x"] * 5)
    monkeypatch.setattr(small_batches, "DEADLINE_S", 0.2)
    reader = reader_of(log, readers, **SMALL)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    settings = reader.options.settings
    reader.options = replace(reader.options, settings=replace(settings, bootstrap=_CLOSED))
    tasks, rows = plan(reader, start, end)
    assert (spans(tasks), rows) == ([f"{log.topic}-0 [0, 5)"], None)
    reader.options = replace(reader.options, settings=settings)
    monkeypatch.setattr(small_batches, "DEADLINE_S", 60.0)  # also on a host that is busy
    (task,), rows = plan(reader, start, end)
    assert isinstance(task, SmallBatch)
    assert rows == log.rows


def test_slow_partitions_are_not_read_one_after_the_other(
    log: Log, readers: list[DlogStreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is there in time, all of them are not: tasks read them side by side."""
    log.create(3)
    for partition in range(3):
        log.write(partition, [b"x"])
    reader = reader_of(log, readers, **SMALL)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    real, now_s, read = small_batches.read_partition, [0.0], list[int]()

    def slow(*arguments: Any) -> Any:
        read.append(arguments[-1].partition)
        now_s[0] += small_batches.DEADLINE_S
        return real(*arguments)

    monkeypatch.setattr(small_batches, "read_partition", slow)
    monkeypatch.setattr(small_batches, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    tasks, rows = plan(reader, start, end)
    assert (spans(tasks), rows) == ([f"{log.topic}-{each} [0, 1)" for each in range(3)], None)
    assert read == [0, 1]


def test_what_seems_gone_for_a_moment_is_left_to_tasks_and_not_passed_over(
    log: Log, readers: list[DlogStreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that does not know its partition yet: tasks ask for longer than who plans."""
    log.create(1)
    log.write(0, [b"x"] * 5)
    reader = reader_of(log, readers, failOnDataLoss="false", **SMALL)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    real, planned = node_fetcher.exchange, threading.Event()

    async def not_yet(node: Any, asked: Any, limits: Any) -> Any:
        answer = await real(node, asked, limits)
        if planned.is_set():
            return answer
        code = UnknownTopicOrPartitionError.code
        rows = [
            (each, fetched._replace(error_code=code), memoryview(b""))
            for each, fetched, _ in answer.rows
        ]
        return answer._replace(rows=rows)

    monkeypatch.setattr(node_fetcher, "exchange", not_yet)
    monkeypatch.setattr(small_batches, "DEADLINE_S", 0.5)
    (task,), rows = plan(reader, start, end)
    planned.set()
    assert rows is None
    found = [value for batch in reader.read(task) for value in batch.to_pydict()["value"]]
    assert found == [value for _, _, value in log.rows]


def test_a_stream_of_small_batches_gives_each_record_once(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create(2)
    log.write(0, [b"%d" % number for number in range(60)])
    log.write(1, [b"%d" % number for number in range(30)])
    small = {"startingOffsets": "earliest", "smallBatchOffsets": "100"}
    stream = Stream(spark, log, tmp_path, **small, maxOffsetsPerTrigger="15")
    batches = stream.run()
    assert [each["numInputRows"] for each in batches] == [15] * 6
    (source,) = batches[0]["sources"]
    assert json.loads(source["latestOffset"]) == {log.topic: {"0": 60, "1": 30}}
    assert stream.rows() == sorted(log.rows)
    stream.failing = {len(batches)}
    log.write(1, [b"late"] * 3)
    with pytest.raises(Exception, match="fails as the test wants it"):
        stream.run()
    stream.failing = set()
    log.write(0, [b"later"])  # not in the batch that comes again
    assert [each["numInputRows"] for each in stream.run()] == [3, 1]
    assert stream.rows() == sorted(log.rows)
