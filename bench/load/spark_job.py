"""Spark as a load program: one session that does what it is told on standard input, and measures.

One JSON object per line in, one per line out; ends with its input. Both sources run in the same
version of Spark; `--source` says which one this session has. CPU seconds are those of this process,
of the JVM and of all Python workers.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from dlog.spark.settings import ClientSettings

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
CORES = 2
Request = dict[str, Any]


def _session(source: str, jars: str) -> SparkSession:
    builder = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", str(CORES))
        .config("spark.sql.streaming.metricsEnabled", "false")
    )
    if source == "kafka":
        builder = builder.config("spark.jars", jars)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if source == "dlog":
        from dlog.spark.source import DlogDataSource

        spark.dataSource.register(DlogDataSource)
    return spark


def _cpu_s() -> dict[str, float]:
    """Return what each kind of process of this tree has used; those that have ended, too."""
    parents: dict[int, int] = {}
    used: dict[int, tuple[str, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text(encoding="ascii", errors="replace").rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        pid = int(head.split("(", 1)[0])
        parents[pid] = int(fields[1])
        kind = "jvm" if head.partition("(")[2] == "java" else "python"
        used[pid] = (kind, sum(map(int, fields[11:15])) / TICKS_PER_SECOND)
    total = {"jvm": 0.0, "python": 0.0}
    for pid, (kind, seconds) in used.items():
        ancestor = pid
        while ancestor not in (0, os.getpid()):
            ancestor = parents.get(ancestor, 0)
        if ancestor:
            total[kind] += seconds
    return total


class Job:
    """The session and what it can do."""

    def __init__(self, spark: SparkSession, source: str, bootstrap: str) -> None:
        self._spark = spark
        self._source = source
        self._options = {"kafka.bootstrap.servers": bootstrap}

    def do(self, request: Request) -> dict[str, float]:
        """Do one thing and return what it took."""
        work: Callable[[Request], dict[str, float] | None] = getattr(self, f"_{request['do']}")
        before, started = _cpu_s(), time.perf_counter()
        found = work(request) or {"seconds": time.perf_counter() - started}
        after = _cpu_s()
        jvm, python = (after[kind] - before[kind] for kind in ("jvm", "python"))
        return {**found, "jvm_cpu_s": jvm, "python_cpu_s": python}

    def _read(self, request: Request) -> DataFrame:
        reader = self._spark.read.format(self._source).options(**self._options)
        return reader.options(subscribe=request["topic"], **request.get("options", {})).load()

    def _batch(self, request: Request) -> None:
        frame = self._read(request)
        if request.get("columns"):
            frame = frame.select(*request["columns"])
        frame.write.format("noop").mode("overwrite").save()

    def _count(self, request: Request) -> None:
        found = self._read(request).agg({"value": "count"}).collect()[0][0]
        if found != request["records"]:
            raise RuntimeError(f"{found} records, not {request['records']}")

    def _stream(self, request: Request) -> dict[str, float]:
        """Read all that is there in as many batches as the options ask for.

        `batch_ms` is the median of what Spark says that its batches took; `seconds` has the start
        of the query, too, and its end.
        """
        folder = tempfile.mkdtemp(prefix="dlog-bench-")
        try:
            frame = (
                self._spark.readStream.format(self._source)
                .options(**self._options)
                .options(subscribe=request["topic"], startingOffsets="earliest")
                .options(**request.get("options", {}))
                .load()
            )
            writer = frame.writeStream.format(request["sink"]).trigger(availableNow=True)
            if request["sink"] == "parquet":
                writer = writer.option("path", f"{folder}/out")
            started = time.perf_counter()
            query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
            query.awaitTermination()
            seconds = time.perf_counter() - started
            batches = query.recentProgress
            rows = sum(each.numInputRows for each in batches)
            if rows != request["records"]:
                raise RuntimeError(f"{rows} records, not {request['records']}")
            batch_ms = median(each.durationMs["triggerExecution"] for each in batches)
            return {"seconds": seconds, "batch_ms": batch_ms}
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _sink(self, request: Request) -> None:
        """Write records that the JVM makes, some key and a value of so many bytes."""
        records, size = request["records"], request["value_bytes"]
        digits = "cast(id as string)"
        frame = self._spark.range(0, records, 1, CORES).selectExpr(
            f"{digits} as key", f"rpad({digits}, {size}, 'dlog') as value"
        )
        writer = frame.write.format(self._source).options(**self._options)
        writer.option("topic", request["topic"]).mode("append").save()

    def _make(self, request: Request) -> None:
        """Make these records and drop them: what `sink` costs without a sink."""
        records, size = request["records"], request["value_bytes"]
        digits = "cast(id as string)"
        frame = self._spark.range(0, records, 1, CORES).selectExpr(
            f"{digits} as key", f"rpad({digits}, {size}, 'dlog') as value"
        )
        frame.write.format("noop").mode("overwrite").save()

    def _plan(self, request: Request) -> None:
        """Plan a batch query, up to the tasks, and run none."""
        frame = self._read(request)
        plan = frame._jdf.queryExecution().toRdd()
        if plan.getNumPartitions() < 1:
            raise RuntimeError("there is nothing to read")

    def _archive(self, request: Request) -> None:
        """Archive all of a topic into a folder, in the place of what is there."""
        from dlog.spark.pipelines.archive import ArchiveJob, archive

        shutil.rmtree(request["folder"], ignore_errors=True)
        settings = ClientSettings(bootstrap=self._options["kafka.bootstrap.servers"])
        job = ArchiveJob(
            topics=(request["topic"],),
            folder=request["folder"],
            settings=settings,
            source=self._options,
        )
        _check(archive(self._spark, job).records, request)

    def _replay(self, request: Request) -> None:
        """Replay an archived topic into another one."""
        from dlog.spark.pipelines.replay import ReplayJob, replay

        job = ReplayJob(
            folder=request["folder"],
            topic=request["topic"],
            target=request["target"],
            settings=ClientSettings(bootstrap=self._options["kafka.bootstrap.servers"]),
        )
        _check(replay(self._spark, job).written, request)


def _check(records: int, request: Request) -> None:
    if records != request["records"]:
        raise RuntimeError(f"{records} records, not {request['records']}")


def main() -> int:
    """Serve requests until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--source", choices=["dlog", "kafka"], required=True)
    parser.add_argument("--jars", default="")
    options = parser.parse_args()
    # Spark's own words go to standard error; the answers keep the output for themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = _session(options.source, options.jars)
    job = Job(spark, options.source, options.bootstrap)
    print(json.dumps({"ready": spark.version}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(job.do(json.loads(line))), file=answers, flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
