"""Streams that run while records come: which of them `minOffsetsPerTrigger` holds back, how long.

`maxTriggerDelay` is nothing to a stream that ends by itself, so these have a trigger that goes on.
"""

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.load.spark_verdict import Outcome
from dlog.client.blocking import Producer

BEGINNING = 50
"""Records that are there when the query begins."""
REST_S = 2.5
"""How long a query may take up what was written before more is; ten micro-batches."""
PATIENCE_S = 60


class Live(NamedTuple):
    """Options, and how many records come one after the other while the query runs.

    `total` of all of them arrive in the end. `least_s`: the last batch begins so long after the
    first, and no sooner. For the rest see `bench.load.spark_cases.Case`.
    """

    name: str
    options: Mapping[str, Any]
    more: tuple[int, ...]
    total: int
    fails: bool = False
    intended: str = ""
    differs: tuple[str, ...] = ("error",)
    unseen: bool = False
    least_s: float = 0.0


LIVES = (
    Live("neither", {}, (10, 25), BEGINNING + 35),
    Live("minOffsetsPerTrigger", {"minOffsetsPerTrigger": "30"}, (10, 25), BEGINNING + 35),
    Live("minOffsetsPerTrigger, too few", {"minOffsetsPerTrigger": "30"}, (10, 19), BEGINNING),
    Live(
        "minOffsetsPerTrigger, maxTriggerDelay",
        {"minOffsetsPerTrigger": "30", "maxTriggerDelay": "6s"},
        (10,),
        BEGINNING + 10,
        least_s=6,
    ),
    Live(
        "minOffsetsPerTrigger, maxOffsetsPerTrigger",
        {"minOffsetsPerTrigger": "30", "maxOffsetsPerTrigger": "40"},
        (10, 15),
        BEGINNING + 25,
    ),
)


def run_live(
    spark: SparkSession, source: str, where: Mapping[str, str], case: Live, topic: str, folder: str
) -> Outcome:
    """Run one query over a topic of its own, that is empty; return its batches' sizes and rows."""
    with Producer(where["kafka.bootstrap.servers"]) as producer:
        _send(producer, topic, 0, BEGINNING)
        query = _start(spark, source, {**where, "subscribe": topic, **case.options}, folder)
        try:
            _until(query, 1)
            sent = BEGINNING
            for count in case.more:
                query.awaitTermination(REST_S)  # type: ignore[arg-type]
                _send(producer, topic, sent, count)
                sent += count
            _until(query, case.total)
            query.awaitTermination(REST_S)  # type: ignore[arg-type]
        finally:
            query.stop()
    batches = [each for each in query.recentProgress if each.numInputRows]
    sizes = [each.numInputRows for each in batches]
    # When batches began, in seconds; the clock that Spark takes them from has milliseconds.
    times = [_seconds(each.timestamp) for each in batches]
    return {
        "batches": sizes,
        "rows": [[number] for number in range(sum(sizes))],
        **({"waited": times[-1] - times[0] >= case.least_s} if case.least_s else {}),
    }


def _send(producer: Producer, topic: str, first: int, count: int) -> None:
    values = [b"%d" % number for number in range(first, first + count)]
    for value in values:
        producer.send(topic, value, partition=0)
    producer.flush()


def _start(
    spark: SparkSession, source: str, options: Mapping[str, Any], folder: str
) -> StreamingQuery:
    frame = spark.readStream.format(source).options(startingOffsets="earliest", **options).load()
    return (
        frame.writeStream.format("noop")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="100 milliseconds")
        .start()
    )


def _until(query: StreamingQuery, count: int) -> None:
    """Return when a query has read so many records; raise what it ends by, or TimeoutError."""
    deadline_s = time.monotonic() + PATIENCE_S
    while sum(each.numInputRows for each in query.recentProgress) < count:
        query.awaitTermination(0.1)  # type: ignore[arg-type]
        if time.monotonic() >= deadline_s:
            raise TimeoutError(f"{count} records in vain: {query.lastProgress}")


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
