"""What a job does whose executors are killed with SIGKILL, one in each of these: a driver's part.

The killing is done by a task, on the executor that runs it, when so many of its rows have gone by:
so it hits a task in its middle, and nobody has to watch for the moment. Executors have nothing of
the tests: what is sent there is pickled by value.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from py4j.protocol import Py4JError
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from dlog.client.blocking import Admin
from dlog.errors import DlogError
from dlog.spark.pipelines import archive as archives
from dlog.spark.pipelines import replay as replays
from dlog.spark.reading.lookup import Lookup
from dlog.spark.settings import ClientSettings
from dlog.types import PartitionId, TopicPartition

RECORDS = 2000
"""Of each of two partitions."""
TASK_RECORDS = 1000
BATCHES = ("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
"""What Spark hands to a task's Python at once: so a task has ten of them."""
SETTINGS = {
    # Shuffled rows go with an executor; who asks for them need not wait for it for 15 s.
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
}
_SCHEMA = "partition int, offset bigint, value binary"
_PATIENCE_S = 60
ERROR_LETTERS = 3000
"""As much is told of an error; traces of the JVM follow."""


@dataclass(frozen=True)
class Strike:
    """Passes the batches of one task on, and kills its executor behind some of them; once.

    `mark` is the file that says that it was done. With `written`, a topic, what the task has sent
    to the partition of its own number is waited for: the kill comes when some of it is there.
    """

    mark: str
    task: int
    batches: int
    micro_batch: str | None = None
    bootstrap: str = ""
    written: str = ""
    written_before: int = 0

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield what comes, until the executor dies."""
        for number, batch in enumerate(batches, 1):
            yield batch
            if number == self.batches and self._is_mine() and not Path(self.mark).exists():
                if self.written:
                    self._await_written()
                Path(self.mark).touch()
                os.kill(_executor_of(os.getpid()), signal.SIGKILL)
                signal.pause()  # Spark's daemon takes its workers along

    def _is_mine(self) -> bool:
        context: Any = TaskContext.get()
        in_batch = context.getLocalProperty("streaming.sql.batchId")
        return bool(context.partitionId() == self.task and self.micro_batch in (None, in_batch))

    def _await_written(self) -> None:
        key = TopicPartition(self.written, PartitionId(self.task))
        deadline_s = time.monotonic() + _PATIENCE_S
        with Lookup(ClientSettings(bootstrap=self.bootstrap)) as lookup:
            while lookup.log_ends([key])[key] <= self.written_before:
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"nothing came to {key}")
                time.sleep(0.02)  # another process: there is no event to wait for


def _executor_of(process: int) -> int:
    """Return the JVM that a Python worker belongs to."""
    while "java" not in Path(f"/proc/{process}/comm").read_text():
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process


cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Kills:
    """Jobs on one topic of two partitions. Owner: the driver."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._topic = topic
        self._folder = folder
        folder.mkdir()

    def run(self) -> dict[str, Any]:
        """Return by its name what each job told, and how often it was struck."""
        told: dict[str, Any] = {}
        work: Mapping[str, Callable[[], dict[str, Any]]] = {
            "read": self.read,
            "written": self.write,
            "parquet": self.stream_to_parquet,
            "copied": self.stream_to_topic,
            "archived": self.archive,
            "replayed": self.replay,
        }
        self._spark.conf.set(*BATCHES)
        for name, job in work.items():
            try:
                told[name] = job()
            except (PySparkException, Py4JError, DlogError, TimeoutError) as error:
                told[name] = {"error": str(error)[:ERROR_LETTERS]}
            told[name]["kills"] = len([*self._folder.glob(f"{name}*.killed")])
        return told

    def _strike(self, name: str, task: int, batches: int, **more: Any) -> Strike:
        return Strike(
            str(self._folder / f"{name}.killed"), task, batches, bootstrap=self._bootstrap, **more
        )

    def _target(self, name: str) -> str:
        target = f"{self._topic}-{name}"
        with Admin(self._bootstrap) as admin:
            admin.create_topic(target, partitions=2, configs={"retention.ms": "-1"})
        return target

    def _options(self, **more: Any) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._bootstrap, **{key: str(more[key]) for key in more}}

    def _rows(self, frame: DataFrame) -> list[list[int]]:
        found = frame.selectExpr("partition", "offset", "crc32(value)").collect()
        return sorted(list(row) for row in found)

    def _read(self, **more: Any) -> DataFrame:
        options = self._options(subscribe=self._topic, **more)
        return self._spark.read.format("dlog").schema(_SCHEMA).options(**options).load()

    def read(self) -> dict[str, Any]:
        """Lose an executor in the middle of a range, and one that has shuffled rows already."""
        read = self._read(maxRecordsPerPartition=TASK_RECORDS)
        there = read.mapInArrow(self._strike("read", 1, 3), _SCHEMA).repartition(2, "offset")
        return {"rows": self._rows(there.mapInArrow(self._strike("read-again", 1, 1), _SCHEMA))}

    def write(self) -> dict[str, Any]:
        """Lose one that has written a part of what its task has."""
        target = self._target("written")
        strike = self._strike("written", 1, 7, written=target)
        writer = self._read().mapInArrow(strike, _SCHEMA).drop("offset").write.format("dlog")
        writer.options(**self._options(topic=target)).mode("append").save()
        return {"topic": target}

    def _stream(self, strike: Strike) -> DataFrame:
        """Return two batches, of a thousand records of each partition."""
        options = self._options(
            subscribe=self._topic, startingOffsets="earliest", maxOffsetsPerTrigger=2 * TASK_RECORDS
        )
        stream = self._spark.readStream.format("dlog").schema(_SCHEMA).options(**options).load()
        return stream.mapInArrow(strike, _SCHEMA)

    def _start(self, frame: DataFrame, name: str, form: str, **options: str) -> None:
        checkpoint = str(self._folder / f"{name}.checkpoint")
        writer = frame.writeStream.format(form).options(**options, checkpointLocation=checkpoint)
        query = writer.trigger(availableNow=True).start()
        if not query.awaitTermination(2 * _PATIENCE_S):
            raise TimeoutError(f"{name} has not ended")

    def stream_to_parquet(self) -> dict[str, Any]:
        """Lose one in the second batch of a stream."""
        path = str(self._folder / "parquet")
        stream = self._stream(self._strike("parquet", 1, 3, micro_batch="1"))
        self._start(stream, "parquet", "parquet", path=path)
        return {"rows": self._rows(self._spark.read.parquet(path))}

    def stream_to_topic(self) -> dict[str, Any]:
        """Lose one in the second batch, of which it has written a part."""
        target = self._target("copied")
        strike = self._strike(
            "copied", 1, 7, micro_batch="1", written=target, written_before=TASK_RECORDS
        )
        options = self._options(topic=target)
        self._start(self._stream(strike).drop("offset"), "copied", "dlog", **options)
        return {"topic": target}

    def archive(self) -> dict[str, Any]:
        """Lose one that has a part of a file."""
        strike = self._strike("archived", 2, 3)
        real = archives.read_ranges

        def struck(*given: Any, **more: Any) -> DataFrame:
            records = real(*given, **more)
            return records.mapInArrow(strike, records.schema)

        job = archives.ArchiveJob(
            topics=(self._topic,),
            folder=str(self._folder / "archive"),
            settings=ClientSettings(bootstrap=self._bootstrap),
            source=self._options(),
            task_records=TASK_RECORDS,
        )
        with patch.object(archives, "read_ranges", struck):
            done = archives.archive(self._spark, job)
        return {"records": done.records, "folder": job.folder}

    def replay(self) -> dict[str, Any]:
        """Lose one that has replayed a part of a partition."""
        target = self._target("replayed")
        strike = self._strike("replayed", 1, 7, written=target)
        real = replays.ReplayTask

        def struck(**given: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
            task = real(**given)
            return lambda batches: task(strike(batches))

        job = replays.ReplayJob(
            folder=str(self._folder / "archive"),
            topic=self._topic,
            target=target,
            settings=ClientSettings(bootstrap=self._bootstrap),
        )
        with patch.object(replays, "ReplayTask", struck):
            done = replays.replay(self._spark, job)
        return {"topic": target, "written": done.written, "passed_over": done.passed_over}
