"""Streams that change their source between two runs, and keep their checkpoint.

Whoever moves from Spark's Kafka source to dlog, or back, starts the query again with another format
and nothing else: beside one that keeps its source it must read the same records, each once.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from bench.load.spark_verdict import Outcome
from dlog.client.blocking import Producer

BEFORE, AFTER = 50, 25
"""Records that are there when the first run begins, and that come before the second."""
FIRST = "kafka"


class Move(NamedTuple):
    """One query. `back`: from dlog to the Kafka source. `unfinished`: its last batch comes again.

    For the rest see `bench.load.spark_cases.Case`.
    """

    name: str
    options: Mapping[str, str]
    back: bool = False
    unfinished: bool = False
    fails: bool = False
    intended: str = ""
    differs: tuple[str, ...] = ("error",)
    unseen: bool = False
    least_s: float = 0.0


_LIMITED = {"maxOffsetsPerTrigger": "20"}
MOVES = (
    Move("from Kafka's to dlog's", {}),
    Move("from Kafka's to dlog's, many batches", _LIMITED),
    Move("from Kafka's to dlog's, in a batch", _LIMITED, unfinished=True),
    Move("from Kafka's to dlog's, in the first batch", {}, unfinished=True),
    Move("from dlog's to Kafka's", _LIMITED, back=True),
    Move("from dlog's to Kafka's, in a batch", _LIMITED, back=True, unfinished=True),
)


def run_move(
    spark: SparkSession,
    source: str,
    where: Mapping[str, str],
    case: Move,
    topic: str,
    folder: Path,
) -> Outcome:
    """Run a query over a topic of its own, that is empty, by two sources; return all its rows.

    With `source` for the second run, or with `back` for the first; the other one is FIRST.
    """
    options = {**where, **case.options, "subscribe": topic, "startingOffsets": "earliest"}
    formats = (source, FIRST) if case.back else (FIRST, source)
    with Producer(where["kafka.bootstrap.servers"]) as producer:
        _send(producer, topic, 0, BEFORE)
        ends = [_run(spark, formats[0], options, folder)]
        if case.unfinished:
            _forget_last(folder)
        _send(producer, topic, BEFORE, AFTER)
        ends.append(_run(spark, formats[1], options, folder))
    rows = spark.read.parquet(f"{folder}/out/*").selectExpr("offset", "cast(value as string)")
    return {
        "batches": ends,
        "rows": sorted([row[0], row[1]] for row in rows.collect()),
    }


def _send(producer: Producer, topic: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        producer.send(topic, b"%d" % number, partition=0)
    producer.flush()


def _run(spark: SparkSession, source: str, options: Mapping[str, str], folder: Path) -> int:
    """Run to the present end; return how many batches had records."""
    frame = spark.readStream.format(source).options(**options).load()
    query = (
        # By number: what is written again takes the place of what was there.
        frame.writeStream.foreachBatch(
            lambda rows, number: rows.write.mode("overwrite").parquet(f"{folder}/out/{number}")
        )
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(each.numInputRows > 0 for each in query.recentProgress)


def _forget_last(folder: Path) -> None:
    """Make a checkpoint as of a query that ended before its last batch was committed."""
    commits = folder / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "out" / str(last))
