"""Runs the cases of `bench.load.spark_cases` through both sources in one session and compares.

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
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.load.spark_cases import BATCHES, STREAMS, WRITES, Case, Write
from bench.load.spark_failures import kind_of, telling
from dlog.client.admin import NewTopic
from dlog.client.blocking import Admin

SOURCES = ("kafka", "dlog")
SAME, BOTH_REFUSE, DIFFERS = "same", "both refuse", "differs"
RECORDS = 40
_CLASS = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]")
_OFTEN = {
    *("PYTHON_DATA_SOURCE_ERROR", "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR"),
    *("STREAM_FAILED", "TASK_WRITE_FAILED", "INTERNAL_ERROR"),
}

Outcome = dict[str, Any]


def _error(error: BaseException) -> Outcome:
    text = str(error)
    names = [name for name in _CLASS.findall(text) if name not in _OFTEN]
    return {
        "error": names[0] if names else "",
        "text": telling(text)[:300],
        "kind": kind_of(text),
    }


def _attempt(work: Callable[[], Outcome]) -> Outcome:
    """Return what something gives, or how it fails."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the outcome)
        return _error(error)


def _rows(frame: DataFrame) -> list[list[Any]]:
    """Return all rows in the order of their places in the log."""
    frame = frame.orderBy("topic", "partition", "offset")
    if "timestamp" in frame.columns:
        frame = frame.withColumn("timestamp", frame["timestamp"].cast("double"))
    return [list(row) for row in frame.collect()]


class Comparison:
    """Both sources in one session, against one cluster."""

    def __init__(self, spark: SparkSession, bootstrap: str, admin: Admin) -> None:
        self._spark = spark
        self._where = {"kafka.bootstrap.servers": bootstrap, "kafkaConsumer.pollTimeoutMs": "8000"}
        self._admin = admin
        self._topics = 0

    def batch(self, source: str, case: Case) -> Outcome:
        """Read as a batch."""

        def work() -> Outcome:
            reader = self._spark.read.format(source).options(**self._where)
            frame = reader.options(**case.options).load()
            return {"schema": frame.schema.simpleString(), "rows": _rows(frame)}

        return _attempt(work)

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
            found = (
                self._spark.read.schema(frame.schema).parquet(f"{folder}/out") if there else None
            )
            return {
                "schema": frame.schema.simpleString(),
                "ends": [json.loads(end) for end in ends],
                "rows": _rows(found) if found is not None else [],
            }

        try:
            return _attempt(work)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def write(self, source: str, case: Write) -> Outcome:
        """Write into a topic of its own and tell what is there."""
        self._topics += 1
        topic = f"written-{self._topics}"
        self._admin.create_topics([NewTopic(name=topic, partitions=3)])
        options = {key: text.format(topic=topic) for key, text in case.options.items()}

        def work() -> Outcome:
            columns = [text.replace("{topic}", topic) for text in case.columns]
            frame = self._spark.range(0, RECORDS, 1, 2).selectExpr(*columns)
            writer = frame.write.format(source).options(**self._where).options(**options)
            writer.mode("append").save()
            read = self._spark.read.format("kafka").options(**self._where)
            back = read.options(subscribe=topic, includeHeaders="true").load()
            has_place = "partition" in " ".join(case.columns) or "as key" in " ".join(case.columns)
            rows = Counter(
                repr(
                    (row.key, row.value, row.headers, row.partition if has_place and row.key else 0)
                )
                for row in back.collect()
            )
            return {"rows": sorted(rows.items())}

        return _attempt(work)


def verdict(case: Case | Write, theirs: Outcome, ours: Outcome) -> str:
    """Return SAME, BOTH_REFUSE or DIFFERS.

    What is to fail is the same when it fails in the same way; else both refuse it, each with words
    of its own, which somebody has to read.
    """
    if not case.fails:
        return SAME if theirs == ours and "error" not in theirs else DIFFERS
    if "error" not in theirs or "error" not in ours:
        return DIFFERS
    return SAME if theirs["kind"] and theirs["kind"] == ours["kind"] else BOTH_REFUSE


def _short(outcome: Outcome) -> str:
    if "error" in outcome:
        return outcome["error"] or outcome["text"]
    batches = f" in {len(outcome['ends'])} batches" if "ends" in outcome else ""
    rows = outcome["rows"]
    count = sum(number for _, number in rows) if rows and len(rows[0]) == 2 else len(rows)
    return f"{count} rows{batches}"


def _difference(theirs: Outcome, ours: Outcome) -> str:
    for key in ("schema", "ends", "rows"):
        if theirs.get(key) != ours.get(key):
            pairs = [(theirs.get(key), ours.get(key))]
            if key == "rows" and "rows" in theirs and "rows" in ours:
                pairs = [
                    (a, b) for a, b in zip(theirs["rows"], ours["rows"], strict=False) if a != b
                ] or pairs
            return f"{key}: {str(pairs[0][0])[:200]} / {str(pairs[0][1])[:200]}"
    return ""


def _compare(comparison: Comparison, only: str) -> Iterator[dict[str, Any]]:
    """Yield what came of each case."""
    kinds: list[tuple[str, Any, Any]] = [
        ("batch", BATCHES, comparison.batch),
        ("stream", STREAMS, comparison.stream),
        ("write", WRITES, comparison.write),
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
                "theirs": _short(theirs),
                "ours": _short(ours),
                "verdict": found,
                "failure": theirs.get("kind", "") if found == SAME else "",
                "intended": case.intended,
                "difference": _difference(theirs, ours) if found == DIFFERS else "",
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
