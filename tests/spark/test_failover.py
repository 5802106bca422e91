"""Queries and pipelines on three real nodes of which some die: each record comes once."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from dlog.client.blocking import Admin, Consumer, Producer
from dlog.errors import InvalidReplicationFactorError
from dlog.spark.pipelines.archive import archive
from dlog.spark.pipelines.replay import ReplayJob, replay
from dlog.spark.pipelines.replay_task import ReplayTask
from dlog.spark.settings import ClientSettings
from tests.daemon.process import environment
from tests.daemon.sandboxes import nodes_of, three_nodes
from tests.spark.archives import (
    Watch,
    assert_same,
    job_of,
    rows_of_archive,
    rows_of_topic,
    rows_to_replay,
)
from tests.spark.log import Log, Row, rows_of
from tests.spark.long_form import IS_LONG, long_form
from tests.spark.streams import Stream, until

WAIT_S = 60.0
VALUE = b"x" * 500
PARTITIONS = 3
BATCH_BYTES = 20_000
KILLS = int(os.environ.get("DLOG_SPARK_KILLS", "2"))


class Sandbox:
    """Three nodes, as their state file tells. Owner: the tests of this file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def nodes(self) -> dict[int, dict[str, Any]]:
        """Return what is known of each node."""
        return nodes_of(self.folder)

    @property
    def bootstrap(self) -> str:
        """Where the nodes listen."""
        return ",".join(each["bootstrap"] for each in self.nodes().values())

    def kill(self, node: int) -> None:
        """End a node as a crash does."""
        os.kill(self.nodes()[node]["pid"], signal.SIGKILL)

    def restart(self, node: int) -> None:
        """Start a node again, and return when it serves."""
        command = [sys.executable, "-m", "dlogctl", "sandbox", "restart", str(node)]
        subprocess.run(
            [*command, "--dir", str(self.folder)], check=True, timeout=WAIT_S, env=environment()
        )


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Start three nodes, and stop them in the end."""
    folder = tmp_path_factory.mktemp("three") / "sb"
    with three_nodes(folder):
        yield Sandbox(folder)


@contextlib.contextmanager
def topic_of(sandbox: Sandbox, name: str) -> Iterator[Log]:
    """Give a topic with a replica on every node."""
    with Admin(sandbox.bootstrap) as admin:
        log = Log(sandbox.bootstrap, admin, name)
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                log.create(PARTITIONS, replication_factor=3)
                break
            except InvalidReplicationFactorError:
                # A machine on which a JVM starts may let every lease lapse for a moment.
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.2)
        yield log


def leader(log: Log, partition: int) -> int:
    """Return which node leads a partition."""
    return log.admin.describe_topic(log.topic).partitions[partition].leader


class Writer(threading.Thread):
    """Writes numbered records to all partitions until it is told to stop."""

    def __init__(self, log: Log) -> None:
        super().__init__(daemon=True)
        self.log = log
        self.count = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        """Write one record after the other, each acknowledged by all replicas."""
        with Producer(self.log.bootstrap, acks="all") as producer:
            while not self.is_over.is_set():
                deliveries = [
                    producer.send(
                        self.log.topic, b"%d" % (self.count + n), partition=n % PARTITIONS
                    )
                    for n in range(30)
                ]
                for n, delivery in enumerate(deliveries):
                    written = delivery.result()
                    self.log.rows.append((n % PARTITIONS, written.offset, b"%d" % (self.count + n)))
                self.count += 30


def test_a_stream_goes_on_while_leaders_die(
    spark: SparkSession, sandbox: Sandbox, tmp_path: Path
) -> None:
    with topic_of(sandbox, "stream") as log:
        stream = Stream(spark, log, tmp_path, startingOffsets="earliest")
        writer = Writer(log)
        writer.start()
        query = stream.start(False)
        try:
            for number in range(KILLS):
                victim, count = leader(log, number % PARTITIONS), len(stream.rows())
                until(query, lambda: len(stream.rows()) > count)  # noqa: B023
                sandbox.kill(victim)
                count = writer.count
                until(query, lambda: writer.count > count)  # noqa: B023
                sandbox.restart(victim)
            writer.is_over.set()
            writer.join(WAIT_S)
            until(query, lambda: len(stream.rows()) >= len(log.rows))
        finally:
            writer.is_over.set()
            query.stop()
        assert stream.rows() == sorted(log.rows)


def fill(log: Log, count: int = 20_000) -> None:
    """Write what a query takes seconds for that fetches little at a time."""
    with Producer(log.bootstrap, acks="all", batch_bytes=BATCH_BYTES) as producer:
        for partition in range(PARTITIONS):
            producer.send_many(log.topic, [VALUE] * count, partition=partition).result()
            log.rows += [(partition, offset, VALUE) for offset in range(count)]


class Reading(threading.Thread):
    """A batch query, so slow that there is time to do harm."""

    def __init__(self, spark: SparkSession, log: Log) -> None:
        super().__init__(daemon=True)
        # So small answers that a task asks hundreds of times.
        self.frame = log.read(spark, **{"kafka.max.partition.fetch.bytes": str(BATCH_BYTES)})
        self.rows: list[Row] = []
        self.tracker = spark.sparkContext.statusTracker()

    def run(self) -> None:
        """Read all."""
        self.rows = rows_of(self.frame)

    def wait_for_tasks(self, count: int) -> None:
        """Return when so many tasks run."""
        deadline = time.monotonic() + WAIT_S
        while sum(map(self._active, self.tracker.getActiveStageIds())) < count:
            assert time.monotonic() < deadline and self.is_alive(), "the query was too fast"
            self.join(0.02)

    def _active(self, stage: int) -> int:
        info = self.tracker.getStageInfo(stage)
        return 0 if info is None else int(info.numActiveTasks)


def test_a_batch_goes_on_when_the_leader_of_what_it_reads_dies(
    spark: SparkSession, sandbox: Sandbox
) -> None:
    with topic_of(sandbox, "batch") as log:
        fill(log)
        victim = leader(log, 0)
        reading = Reading(spark, log)
        reading.start()
        reading.wait_for_tasks(1)
        sandbox.kill(victim)
        assert reading.is_alive(), "the query was too fast"
        reading.join(WAIT_S)
        sandbox.restart(victim)
        assert reading.rows == sorted(log.rows)


def test_a_task_whose_python_dies_is_tried_again(spark: SparkSession, log: Log) -> None:
    log.create(PARTITIONS)
    fill(log)
    reading = Reading(spark, log)
    reading.start()
    reading.wait_for_tasks(1)
    deadline = time.monotonic() + WAIT_S
    while not (busy := workers()):
        assert time.monotonic() < deadline and reading.is_alive()
        reading.join(0.02)
    (stage,) = reading.tracker.getActiveStageIds()
    for each in busy:
        each.kill()
    reading.join(WAIT_S)
    info = reading.tracker.getStageInfo(stage)
    assert info is not None and info.numFailedTasks >= 1
    assert reading.rows == sorted(log.rows)


def workers() -> list[psutil.Process]:
    """Return the Python processes of tasks: what a daemon of Spark has forked."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "pyspark.daemon" in each.cmdline() and not each.children() and _is_forked(each):
                found.append(each)
    return found


def _is_forked(process: psutil.Process) -> bool:
    parent = process.parent()
    return parent is not None and "pyspark.daemon" in parent.cmdline()


def test_the_sink_goes_on_while_leaders_die(spark: SparkSession, sandbox: Sandbox) -> None:
    """No task fails, and producers are idempotent: each record is there, and once."""
    # Each restart of a node takes its time: one is enough to see it.
    shares = (0.1, 0.5) if IS_LONG else (0.2,)
    count = 75_000 * len(shares)
    with topic_of(sandbox, "sink") as log:
        rows = spark.range(0, count, 1, 4).selectExpr(
            "cast(id as string) as key", "rpad(cast(id as string), 100, '.') as value"
        )
        # So little is under way at once that a kill hits much that is still to come.
        options = {
            "kafka.bootstrap.servers": log.bootstrap,
            "topic": log.topic,
            "kafka.buffer.memory": "200000",
            "kafka.batch.size": "20000",
        }
        seen: list[int] = []
        with Consumer(log.bootstrap, log.topic) as reader:

            def written() -> int:
                return sum(reader.end_offsets().values())

            def kill() -> None:
                for share in shares:
                    deadline = time.monotonic() + WAIT_S
                    while written() < share * count and time.monotonic() < deadline:
                        time.sleep(0.02)  # another process: there is no event to wait for
                    victim = leader(log, 0)
                    sandbox.kill(victim)
                    seen.append(written())
                    sandbox.restart(victim)

            killing = threading.Thread(target=kill, daemon=True)
            killing.start()
            rows.write.format("dlog").options(**options).mode("append").save()
            killing.join(2 * WAIT_S)
        # Each kill hit records on their way.
        assert len(seen) == len(shares) and count / 10 <= min(seen) <= max(seen) < count, seen
        found = Counter(bytes(row[0]) for row in log.read(spark).select("value").collect())
        assert found == Counter((b"%d" % number).ljust(100, b".") for number in range(count))


def fill_with_numbers(log: Log, count: int = 4_000, size: int = 3_000) -> None:
    """Write large records that differ, in small batches."""
    values = [(b"%d" % number).ljust(size, b".") for number in range(count * PARTITIONS)]
    with Producer(log.bootstrap, acks="all", batch_bytes=BATCH_BYTES) as producer:
        for partition in range(PARTITIONS):
            mine = values[partition::PARTITIONS]
            producer.send_many(log.topic, mine, partition=partition).result()


class Strike(threading.Thread):
    """Kills the leader of a topic's first partition as soon as something holds; restarts it."""

    def __init__(self, sandbox: Sandbox, log: Log, is_time: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self.sandbox = sandbox
        self.log = log
        self.is_time = is_time
        self.watch = Watch()
        self.seen: list[tuple[str, int]] = []
        """How far the pipeline had told to be when it struck."""

    def run(self) -> None:
        """Strike once."""
        victim = leader(self.log, 0)
        deadline = time.monotonic() + WAIT_S
        while not self.is_time():
            if time.monotonic() > deadline:
                return
            time.sleep(0.005)  # other processes: there is no event to wait for
        self.sandbox.kill(victim)
        self.seen = list(self.watch.phases)
        self.sandbox.restart(victim)

    def __enter__(self) -> "Strike":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.join(2 * WAIT_S)


def is_being_written(archived: Path, batch: str) -> bool:
    """Return whether tasks are at a batch of an archive: a first file is there."""
    return any(
        batch in folder and name.endswith(".parquet")
        for folder, _, names in os.walk(archived / "_staging")
        for name in names
    )


@long_form
def test_an_archive_and_a_replay_go_on_while_leaders_die(
    spark: SparkSession, sandbox: Sandbox, tmp_path: Path
) -> None:
    """Each record is there once, and in order: no task wrote what had been written."""
    with topic_of(sandbox, "archived") as log, topic_of(sandbox, "replayed") as target:
        fill_with_numbers(log)
        wanted = rows_of_topic(spark, log)
        count = len(wanted)
        job = job_of(log, tmp_path, batch_offsets=count * 2 // 3)
        slowly = {**job.source, "kafka.max.partition.fetch.bytes": str(5 * BATCH_BYTES)}
        with Strike(sandbox, log, lambda: is_being_written(tmp_path, "batch=00000001")) as strike:
            done = archive(spark, dataclasses.replace(job, source=slowly), strike.watch)
        assert (done.records, strike.seen[-1]) == (count, ("planned", 1))
        assert_same(rows_of_archive(tmp_path), wanted)
        again = ReplayJob(
            folder=str(tmp_path),
            topic=log.topic,
            target=target.topic,
            settings=ClientSettings(bootstrap=sandbox.bootstrap),
        )
        with Consumer(sandbox.bootstrap, target.topic) as reader:

            def has_begun() -> bool:
                return sum(reader.end_offsets().values()) > 0

            with Strike(sandbox, target, has_begun) as strike:
                written = replay(spark, again, strike.watch).written
        assert (written, strike.seen[-1][0]) == (count, "planned")
        copied = [row[1:] for row in rows_of_topic(spark, target)]
        assert copied == [row[1:] for row in wanted]


def test_a_task_that_is_run_anew_sees_what_is_not_committed_yet(sandbox: Sandbox) -> None:
    """The attempt before it ended while a replica was silent, which held the watermark back."""
    with topic_of(sandbox, "uncommitted") as target:
        led = leader(target, 0)
        silent = next(each for each in sandbox.nodes() if each != led)
        values = [b"%d" % number for number in range(200)]
        rows = rows_to_replay({0: values})
        there = rows.slice(0, 120).select(["key", "value", "timestamp", "headers"])
        # Who asks the silent node first finds it out of the ISR by the time another one answers.
        settings = ClientSettings(bootstrap=sandbox.nodes()[led]["bootstrap"])
        bases = dict.fromkeys(range(PARTITIONS), 0)
        task = ReplayTask(settings=settings, topic=target.topic, bases=bases, task_count=PARTITIONS)
        os.kill(sandbox.nodes()[silent]["pid"], signal.SIGSTOP)
        try:
            with Producer(settings.bootstrap, acks="leader") as first:
                first.send_many(target.topic, there, partition=0).result()
            (result,) = task([rows.slice(0, 50), rows.slice(50)])
        finally:
            os.kill(sandbox.nodes()[silent]["pid"], signal.SIGCONT)
        assert result.to_pylist() == [{"target": 0, "rows": 200, "written": 80}]
        with Consumer(target.bootstrap, target.topic) as reader:
            found: list[bytes | None] = []
            while len(found) < len(values):
                found += [each.value for each in reader.poll()]
            assert found == values and sum(reader.end_offsets().values()) == len(values)
