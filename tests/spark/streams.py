"""Streaming queries of the tests: run to the present end, and what they wrote."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.spark.log import Log, Row, rows_of

PATIENCE_S = 120


def write_batch(folder: Path, frame: DataFrame, batch: int) -> None:
    """Write the rows of a batch to a file of its own, all at once, in place of an earlier try."""
    rows = [(row[0], row[1], row[2].decode("latin-1")) for row in rows_of(frame)]
    fresh = folder / f"{batch}.new"
    fresh.write_text(json.dumps(rows))
    fresh.rename(folder / f"{batch}.batch")


def copying(
    spark: SparkSession, folder: Path, target: str, options: Mapping[str, str]
) -> DataStreamWriter:
    """Return what copies keys and values to a topic, with a checkpoint of its own."""
    return (
        spark.readStream.format("dlog")
        .options(**options)
        .load()
        .select("key", "value")
        .writeStream.format("dlog")
        .option("kafka.bootstrap.servers", options["kafka.bootstrap.servers"])
        .option("topic", target)
        .option("checkpointLocation", str(folder / "checkpoint-of-copies"))
    )


def until(query: StreamingQuery, what: Callable[[], bool]) -> None:
    """Return when something is so that a running query brings about; raise what the query ends by.

    There is no event to wait for: Spark tells of progress when it is asked.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        query.awaitTermination(0.1)  # type: ignore[arg-type]
        assert query.isActive and time.monotonic() < deadline, f"in vain: {query.lastProgress}"


class Stream:
    """One query with a checkpoint, which writes its rows to files. Owner: one test."""

    def __init__(self, spark: SparkSession, log: Log, folder: Path, **options: str) -> None:
        self.spark = spark
        self.log = log
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.failing: set[int] = set()
        """Batches that end the query instead of being written."""
        self.options: Mapping[str, str] = options

    def start(self, available_now: bool = True, /, **more: str) -> StreamingQuery:
        """Start the query, or start it again from its checkpoint."""
        options = self.log.options(**{**self.options, **more})
        writer = (
            self.spark.readStream.format("dlog")
            .options(**options)
            .load()
            .writeStream.foreachBatch(self._write)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
        )
        if available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime="0 seconds").start()

    def _write(self, frame: DataFrame, batch: int) -> None:
        if batch in self.failing:
            raise RuntimeError(f"batch {batch} fails as the test wants it")
        write_batch(self.folder, frame, batch)

    def run(self, **more: str) -> list[dict[str, Any]]:
        """Run to the present end; return the progress of each batch. Raises what the query did."""
        query = self.start(True, **more)
        assert query.awaitTermination(PATIENCE_S), "the query did not end"
        return [each for each in query.recentProgress if each["numInputRows"]]

    def latest(self, query: StreamingQuery) -> str:
        """Return the ends of the logs as the query knows them; empty before its first batch."""
        progress = query.lastProgress
        return "" if progress is None else str(progress["sources"][0]["latestOffset"])

    def rows(self) -> list[Row]:
        """Return what all batches wrote."""
        found: list[Row] = []
        for path in self.folder.glob("*.batch"):
            for partition, offset, value in json.loads(path.read_text()):
                found.append((partition, offset, value.encode("latin-1")))
        return sorted(found)
