"""Runs the cases of `bench.load.spark_cases` and others through both sources and compares.

In one session. `spark_live` has streams that run on, `spark_writes` what is written.

Prints one JSON list: of each case what either source gave, and whether it is the same. A part of
`bench.compare_spark`, which starts it in Spark's environment.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from bench.load.spark_cases import BATCHES, STREAMS, Case
from bench.load.spark_failures import kind_of, telling
from bench.load.spark_live import LIVES, Live, run_live
from bench.load.spark_moves import MOVES, Move, run_move
from bench.load.spark_verdict import (
    DIFFERS,
    FAIL_ALIKE,
    Asked,
    Outcome,
    difference,
    is_meant,
    short,
    verdict,
)
from bench.load.spark_writes import STREAM_WRITES, WRITES, Write
from dlog.batch.header import decode_header
from dlog.client.admin import NewTopic
from dlog.client.blocking import Admin
from dlog.client.cluster.loop_thread import LoopThread
from dlog.client.consuming.fetch_plan import FetchLimits
from dlog.client.range_reader import RangeReader
from dlog.spark.reading.lookup import Lookup
from dlog.spark.settings import ClientSettings
from dlog.types import PartitionId, TopicPartition

SOURCES = ("kafka", "dlog")
RECORDS = 40
PARTITIONS = 3
PATIENCE_S = 60
TRIES = 3
_TOO_BUSY = "Python worker failed to connect back"
"""Spark waits 10 s for a Python to start: that says something of the machine, and of no source."""
_CLASS = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]")
_OFTEN = {
    *("PYTHON_DATA_SOURCE_ERROR", "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR"),
    *("STREAM_FAILED", "TASK_WRITE_FAILED", "INTERNAL_ERROR"),
}


def _error(error: BaseException) -> Outcome:
    text = str(error)
    names = [name for name in _CLASS.findall(text) if name not in _OFTEN]
    return {
        "error": names[0] if names else "",
        "text": telling(text)[:300],
        "kind": kind_of(text),
    }


def _attempt(work: Callable[[], Outcome], case: Asked) -> Outcome:
    """Return what something gives, or how it fails; and whether it took as long as it must."""
    for _ in range(TRIES):
        started_s = time.monotonic()
        try:
            outcome = work()
        except Exception as error:  # noqa: BLE001  (whatever it is, it is the outcome)
            outcome = _error(error)
        if _TOO_BUSY not in outcome.get("text", ""):
            break
    if case.least_s:
        outcome.setdefault("waited", time.monotonic() - started_s >= case.least_s)
    return outcome


def _read(frame: DataFrame, task: str) -> Outcome:
    """Return all rows in the order of their places in the log, and what each task read of them."""
    columns = [name for name in frame.columns if name != task]
    frame = frame.orderBy("topic", "partition", "offset")
    if "timestamp" in frame.columns:
        frame = frame.withColumn("timestamp", frame["timestamp"].cast("double"))
    found = frame.collect()
    tasks: dict[Any, list[tuple[Any, ...]]] = {}
    for row in found:
        tasks.setdefault(row[task], []).append((row["topic"], row["partition"], row["offset"]))
    # A task reads one range: of it the first place, and its number of records.
    ranges = sorted([*min(places), len(places)] for places in tasks.values())
    return {"rows": [[row[name] for name in columns] for row in found], "tasks": ranges}


def _codecs(bootstrap: str, topic: str) -> list[str]:
    """Return by which codecs the batches of a topic are compressed."""
    keys = [TopicPartition(topic, PartitionId(number)) for number in range(PARTITIONS)]
    with Lookup(ClientSettings(bootstrap=bootstrap)) as lookup:
        ends = lookup.latest(keys)

    async def read() -> set[str]:
        reader, found = RangeReader(bootstrap, limits=FetchLimits()), set()
        try:
            for key, end in ends.items():
                await reader.begin(topic, key.partition, 0, end)
                while (packed := await reader.take(PATIENCE_S)) is not None:
                    found |= {decode_header(view).codec.name for view in packed.views}
        finally:
            await reader.close()
        return found

    thread = LoopThread("dlog-compare-codecs")
    thread.start()
    try:
        return sorted(thread.call(read))
    finally:
        thread.close()


class Comparison:
    """Both sources in one session, against one cluster."""

    def __init__(self, spark: SparkSession, bootstrap: str, admin: Admin) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._where = {"kafka.bootstrap.servers": bootstrap, "kafkaConsumer.pollTimeoutMs": "8000"}
        self._admin = admin
        self._topics = 0

    def _topic(self, partitions: int) -> str:
        self._topics += 1
        name = f"written-{self._topics}"
        self._admin.create_topics([NewTopic(name=name, partitions=partitions)])
        return name

    def batch(self, source: str, case: Case) -> Outcome:
        """Read as a batch."""

        def work() -> Outcome:
            reader = self._spark.read.format(source).options(**self._where)
            frame = reader.options(**case.options).load()
            count = frame.rdd.getNumPartitions()
            found = _read(frame.withColumn("task", sf.spark_partition_id()), "task")
            if count == 1 and not found["rows"]:
                count = 0  # a Python source that plans no task is given one that reads nothing
            return {"schema": frame.schema.simpleString(), "partitions": count, **found}

        return _attempt(work, case)

    def stream(self, source: str, case: Case) -> Outcome:
        """Read as a stream, until all that is there was read; with where each batch ended."""
        folder = tempfile.mkdtemp(prefix="dlog-compare-")

        def work() -> Outcome:
            reader = self._spark.readStream.format(source).options(**self._where)
            frame = reader.options(**case.options).load()
            writer = frame.writeStream.format("parquet").option("path", f"{folder}/out")
            query = (
                writer.option("checkpointLocation", f"{folder}/checkpoint")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            ends = [each.sources[0].endOffset for each in query.recentProgress if each.numInputRows]
            there = os.path.isdir(f"{folder}/out")
            # Each task of each batch has a file of its own.
            found = (
                _read(
                    self._spark.read.schema(frame.schema)
                    .parquet(f"{folder}/out")
                    .withColumn("task", sf.input_file_name()),
                    "task",
                )
                if there
                else {"rows": [], "tasks": []}
            )
            return {
                "schema": frame.schema.simpleString(),
                "ends": [json.loads(end) for end in ends],
                **found,
            }

        try:
            return _attempt(work, case)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def live(self, source: str, case: Live) -> Outcome:
        """Read as a stream that goes on, while records come."""
        folder = tempfile.mkdtemp(prefix="dlog-compare-")
        topic = self._topic(1)
        try:
            return _attempt(
                lambda: run_live(self._spark, source, self._where, case, topic, folder), case
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def move(self, source: str, case: Move) -> Outcome:
        """Read as a stream that changes its source, and keeps its checkpoint."""
        topic = self._topic(1)
        with tempfile.TemporaryDirectory(prefix="dlog-compare-") as folder:
            return _attempt(
                lambda: run_move(self._spark, source, self._where, case, topic, Path(folder)), case
            )

    def write(self, source: str, case: Write) -> Outcome:
        """Write into a topic of its own and tell what is there."""
        topic = self._topic(PARTITIONS)
        options = {key: text.format(topic=topic) for key, text in case.options.items()}
        columns = [text.replace("{topic}", topic) for text in case.columns]

        def work() -> Outcome:
            if case.mode:
                self._write_stream(source, case.mode, columns, options)
            else:
                frame = self._spark.range(0, RECORDS, 1, 2).selectExpr(*columns)
                writer = frame.write.format(source).options(**self._where).options(**options)
                writer.mode("append").save()
            read = self._spark.read.format("kafka").options(**self._where)
            back = read.options(subscribe=topic, includeHeaders="true").load()
            has_place = any(each in " ".join(columns) for each in ("partition", "as key"))
            rows = Counter(
                repr(
                    (row.key, row.value, row.headers, row.partition if has_place and row.key else 0)
                )
                for row in back.collect()
            )
            return {"rows": sorted(rows.items()), "codecs": _codecs(self._bootstrap, topic)}

        return _attempt(work, case)

    def _write_stream(
        self, source: str, mode: str, columns: list[str], options: dict[str, str]
    ) -> None:
        reader = self._spark.readStream.format(source).options(**self._where)
        frame = reader.options(
            subscribe="cmp-a", startingOffsets="earliest", includeHeaders="true"
        ).load()
        if mode != "append":
            frame = frame.groupBy("key").agg(sf.max("value").alias("value"))
        frame = frame.selectExpr(*columns)
        with tempfile.TemporaryDirectory(prefix="dlog-compare-") as folder:
            query = (
                frame.writeStream.format(source)
                .options(**self._where)
                .options(**options)
                .option("checkpointLocation", f"{folder}/checkpoint")
                .outputMode(mode)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()


def _compare(comparison: Comparison, only: str) -> Iterator[dict[str, Any]]:
    """Yield what came of each case."""
    kinds: list[tuple[str, Any, Any]] = [
        ("batch", BATCHES, comparison.batch),
        ("stream", STREAMS, comparison.stream),
        ("running stream", LIVES, comparison.live),
        ("checkpoint", MOVES, comparison.move),
        ("write", WRITES, comparison.write),
        ("stream write", STREAM_WRITES, comparison.write),
    ]
    for kind, cases, do in kinds:
        for case in cases:
            if only not in f"{kind}: {case.name}":
                continue
            theirs, ours = (do(source, case) for source in SOURCES)
            found = verdict(case, theirs, ours)
            yield {
                "kind": kind,
                "name": case.name,
                "theirs": short(theirs),
                "ours": short(ours),
                "verdict": found,
                "failure": theirs["kind"] if found == FAIL_ALIKE else "",
                "intended": case.intended if is_meant(case, theirs, ours) else "",
                "difference": difference(theirs, ours) if found == DIFFERS else "",
            }


def main() -> int:
    """Compare all cases; the exit code says whether all are the same."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--jars", required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from dlog.spark.source import DlogDataSource

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.jars", options.jars)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(DlogDataSource)
    with Admin(options.bootstrap) as admin:
        comparison = Comparison(spark, options.bootstrap, admin)
        for line in _compare(comparison, options.only):
            print(json.dumps(line), file=answers, flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
