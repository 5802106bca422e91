"""Streaming queries against a node: each record once, over restarts and changes of the topic."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dlog.client.blocking import Admin, Consumer
from tests.spark.conftest import ROOT, environment_of_workers
from tests.spark.log import Log, rows_of
from tests.spark.streams import PATIENCE_S, Stream, copying, until

KILLS = int(os.environ.get("DLOG_DRIVER_KILLS", "1"))
LAX = {"failOnDataLoss": "false", "fetchOffset.retryIntervalMs": "1"}


def values(first: int, count: int) -> list[bytes]:
    """Return numbered values."""
    return [b"%d" % number for number in range(first, first + count)]


def counts(progress: list[dict[str, Any]]) -> list[int]:
    """Return the numbers of rows of batches."""
    return [each["numInputRows"] for each in progress]


def failure(query: StreamingQuery) -> str:
    """Return what a query ends with."""
    with pytest.raises(StreamingQueryException) as error:
        query.awaitTermination(PATIENCE_S)
    return str(error.value)


def test_a_query_goes_on_where_its_checkpoint_says(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create(2)
    log.write(0, values(0, 100))
    log.write(1, values(0, 40))
    stream = Stream(spark, log, tmp_path, startingOffsets="earliest")
    assert counts(stream.run()) == [140]
    assert stream.rows() == sorted(log.rows)
    assert stream.run() == []
    log.write(1, values(40, 7))
    (batch,) = stream.run()
    assert batch["numInputRows"] == 7
    (source,) = batch["sources"]
    ends = {log.topic: {"0": 100, "1": 47}}
    assert json.loads(source["endOffset"]) == json.loads(source["latestOffset"]) == ends
    assert stream.rows() == sorted(log.rows)


def test_available_now_is_cut_into_batches_and_ends(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create(2)
    log.write(0, values(0, 90))
    log.write(1, values(0, 30))
    stream = Stream(spark, log, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    batches = stream.run()
    assert counts(batches) == [40, 40, 40]
    assert stream.rows() == sorted(log.rows)
    (source,) = batches[0]["sources"]
    assert json.loads(source["endOffset"]) == {log.topic: {"0": 30, "1": 10}}
    assert json.loads(source["latestOffset"]) == {log.topic: {"0": 90, "1": 30}}


def test_a_batch_that_failed_is_read_again_as_it_was(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create(2)
    log.write(0, values(0, 90))
    log.write(1, values(0, 30))
    stream = Stream(spark, log, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    stream.failing = {1}
    assert "batch 1 fails" in failure(stream.start())
    stream.failing = set()
    log.write(0, values(90, 5))
    assert counts(stream.run(maxOffsetsPerTrigger="1000")) == [40, 45]
    assert stream.rows() == sorted(log.rows)


def test_a_first_batch_that_failed_does_not_bar_the_way(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """It has an end in the checkpoint, and no beginning: that is asked for anew."""
    log.create(1)
    log.write(0, values(0, 10))
    stream = Stream(spark, log, tmp_path)
    stream.failing = {0}
    assert "batch 0 fails" in failure(stream.start())
    stream.failing = set()
    log.write(0, values(10, 5))
    assert counts(stream.run()) == [5]
    assert stream.rows() == sorted(log.rows)[10:]


def test_batches_are_limited_by_bytes(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    log.create(1)
    for _ in range(4):
        log.write(0, [b"x" * 1000] * 10)
    limits = {"maxBytesPerTrigger": "15000"}
    stream = Stream(spark, log, tmp_path, startingOffsets="earliest", **limits)
    found = counts(stream.run())
    assert sum(found) == 40 and 3 <= len(found) <= 4
    assert stream.rows() == sorted(log.rows)


def test_small_batches_wait_for_company(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    log.create(1)
    log.write(0, values(0, 5))
    limits = {"minOffsetsPerTrigger": "20", "maxTriggerDelay": "1h"}
    stream = Stream(spark, log, tmp_path, startingOffsets="earliest", **limits)
    query = stream.start(False)
    try:
        until(query, lambda: len(stream.rows()) == 5)  # the first one does not wait
        log.write(0, values(5, 19))
        until(query, lambda: '"0": 24' in stream.latest(query))
        assert len(stream.rows()) == 5
        log.write(0, values(24, 1))
        until(query, lambda: len(stream.rows()) == 25)
        until(query, stream.is_committed)
    finally:
        query.stop()
    log.write(0, values(25, 1))
    assert counts(stream.run()) == [1]  # the present end is reached all the same
    assert stream.rows() == sorted(log.rows)


def test_a_query_from_the_latest_offset_reads_what_comes(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create(2)
    log.write(0, values(0, 30))
    before = list(log.rows)
    stream = Stream(spark, log, tmp_path)
    assert stream.run() == []
    log.write(0, values(30, 3))
    log.write(1, values(0, 2))
    assert counts(stream.run()) == [5]
    assert stream.rows() == sorted(row for row in log.rows if row not in before)


def test_added_partitions_are_read_from_their_beginning(
    spark: SparkSession, log: Log, tmp_path: Path, admin: Admin
) -> None:
    log.create(1)
    log.write(0, values(0, 10))
    stream = Stream(spark, log, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    query = stream.start(False)
    try:
        until(query, lambda: len(stream.rows()) == 10)
        admin.create_partitions(log.topic, 3)
        log.write(2, values(0, 20))
        log.write(0, values(10, 5))
        until(query, lambda: len(stream.rows()) == 35)
        until(query, stream.is_committed)
    finally:
        query.stop()
    assert stream.run() == []
    assert stream.rows() == sorted(log.rows)


def test_retention_that_overtakes_a_query(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    log.create(1)
    for first in (0, 10, 20):
        log.write(0, values(first, 10))
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"}
    stream = Stream(spark, log, tmp_path, **options)
    query = stream.start(False)
    until(query, lambda: len(stream.rows()) >= 5)
    query.stop()
    read = stream.rows()
    log.write(0, values(30, 10))
    log.trim(0, 30 if len(read) < 30 else 40)
    text = failure(stream.start())
    assert "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE" in text and "the log starts at" in text
    stream.run(**LAX)
    assert stream.rows() == sorted({*read, *log.rows})


def test_a_topic_that_is_made_anew_is_a_loss_and_then_read_from_its_beginning(
    spark: SparkSession, log: Log, tmp_path: Path, admin: Admin
) -> None:
    log.create(1)
    log.write(0, values(0, 10))
    strict = Stream(spark, log, tmp_path / "strict", startingOffsets="earliest")
    lax = Stream(spark, log, tmp_path / "lax", startingOffsets="earliest", **LAX)
    queries = [each.start(False) for each in (strict, lax)]
    try:
        until(queries[0], lambda: len(strict.rows()) == 10)
        until(queries[1], lambda: len(lax.rows()) == 10)
        before = list(log.rows)
        admin.delete_topic(log.topic)
        log.rows.clear()
        log.create(1)
        log.write(0, values(100, 25))
        assert "KAFKA_DATA_LOSS.PARTITIONS_DELETED" in failure(queries[0])
        until(queries[1], lambda: len(lax.rows()) == 35)
        until(queries[1], lax.is_committed)
    finally:
        for query in queries:
            query.stop()
    assert lax.run() == []
    assert lax.rows() == sorted([*before, *log.rows])


def test_a_topic_that_is_gone_is_a_loss(
    spark: SparkSession, log: Log, tmp_path: Path, admin: Admin
) -> None:
    log.create(1)
    log.write(0, values(0, 10))
    other = Log(log.bootstrap, admin, f"{log.topic}-other")
    other.create(1)
    other.write(0, values(0, 4))
    both = {"subscribe": f"{log.topic},{other.topic}", "startingOffsets": "earliest"}
    stream = Stream(spark, log, tmp_path, **both)
    assert counts(stream.run()) == [14]
    admin.delete_topic(other.topic)
    text = failure(stream.start())
    assert f"KAFKA_DATA_LOSS.PARTITIONS_DELETED] Partitions {other.topic}-0 have been" in text
    log.write(0, values(10, 3))
    assert counts(stream.run(**LAX)) == [3]


@pytest.mark.parametrize("names", ["{}-misspelt", "second-{}"])
def test_a_wrong_name_for_one_start_does_not_spoil_the_checkpoint(
    spark: SparkSession, log: Log, tmp_path: Path, names: str
) -> None:
    """Spark wrote down that the next batch ends without that topic: no start went on behind it."""
    log.create(2)
    Log(log.bootstrap, log.admin, f"second-{log.topic}").create(1)
    for partition in (0, 1):
        log.write(partition, [b"%d" % number for number in range(10)])
    stream = Stream(spark, log, tmp_path, startingOffsets="earliest")
    stream.run()
    with pytest.raises(StreamingQueryException, match="PARTITIONS_DELETED"):
        stream.run(subscribe=names.format(log.topic))
    log.write(0, [b"more"])
    assert [each["numInputRows"] for each in stream.run()] == [1]
    assert len(stream.rows()) == len(set(stream.rows())) == 21


def test_a_killed_planner_fails_the_query_which_then_goes_on(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create(1)
    log.write(0, values(0, 10))
    before = planners()
    stream = Stream(spark, log, tmp_path, startingOffsets="earliest")
    query = stream.start(False)
    until(query, lambda: len(stream.rows()) == 10)
    (planner,) = planners() - before
    os.kill(planner, signal.SIGKILL)
    failure(query)
    log.write(0, values(10, 10))
    assert counts(stream.run()) == [10]
    assert stream.rows() == sorted(log.rows)


def planners() -> set[int]:
    """Return the processes that plan streams, below this one."""
    module = "pyspark.sql.streaming.python_streaming_source_runner"
    return {
        each.pid
        for each in psutil.Process().children(recursive=True)
        if module in _arguments(each) and not each.children()
    }


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_killed_driver_leaves_checkpoints_to_go_on_from(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """To files each record comes once, to a topic at least once: a batch is repeated at most."""
    batch, count = 100, 600 * KILLS
    log.create(2)
    log.write(0, values(0, count // 2))
    log.write(1, values(count // 2, count // 2))
    copies = Log(log.bootstrap, log.admin, f"{log.topic}-copies")
    copies.create(2)
    options = log.options(startingOffsets="earliest", maxOffsetsPerTrigger=str(batch))
    for kill in range(KILLS):
        killed(tmp_path, copies, options, 600 * kill + batch + 1)
    options["maxOffsetsPerTrigger"] = str(count)  # what is left, all at once
    stream = Stream(spark, log, tmp_path, **options)
    stream.run()
    assert stream.rows() == sorted(log.rows)
    copy = copying(spark, tmp_path, copies.topic, options).trigger(availableNow=True).start()
    assert copy.awaitTermination(PATIENCE_S)
    found = Counter(value for _, _, value in rows_of(copies.read(spark)))
    assert set(found) == set(values(0, count))
    assert found.total() - count <= KILLS * batch, "more than one batch a kill came again"


def killed(folder: Path, copies: Log, options: dict[str, str], count: int) -> None:
    """Run a driver until there are so many copies, and a file more than before; kill it then."""
    files = len(list(folder.glob("*.batch")))
    program = [sys.executable, "-m", "tests.spark.killed_driver", str(folder), copies.topic]
    with Consumer(copies.bootstrap, copies.topic) as reader:
        driver = subprocess.Popen(
            [*program, json.dumps(options)],
            cwd=ROOT,
            env={**os.environ, **environment_of_workers()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + PATIENCE_S
            while (
                sum(reader.end_offsets().values()) < count
                or len(list(folder.glob("*.batch"))) <= files
            ):
                assert time.monotonic() < deadline and driver.poll() is None
                time.sleep(0.005)  # another process: there is no event to wait for
        finally:
            os.killpg(driver.pid, signal.SIGKILL)  # Python and Java, as when a host dies
            driver.wait()
        assert sum(reader.end_offsets().values()) < count + 400, "the driver was too fast"
