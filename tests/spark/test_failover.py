"""Queries on three real nodes of which some die: each acknowledged record comes once."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dlog.client.blocking import Admin, Producer
from tests.daemon.process import environment
from tests.spark.log import Log, rows_of
from tests.spark.streams import Stream, until

WAIT_S = 60.0
VALUE = b"x" * 500
PARTITIONS = 3


class Sandbox:
    """Three nodes, as their state file tells. Owner: the tests of this file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def nodes(self) -> dict[int, dict[str, Any]]:
        """Return what is known of each node."""
        state = json.loads((self.folder / "sandbox.json").read_text())
        return {each["node"]: each for each in state["nodes"]}

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
    command = [sys.executable, "-m", "dlogctl", "sandbox", "--dir", str(folder)]
    process = subprocess.Popen(
        [*command, "--nodes", "3", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        yield Sandbox(folder)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextlib.contextmanager
def topic_of(sandbox: Sandbox, name: str) -> Iterator[Log]:
    """Give a topic with a replica on every node."""
    with Admin(sandbox.bootstrap) as admin:
        log = Log(sandbox.bootstrap, admin, name)
        log.create(PARTITIONS, replication_factor=3)
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
            for partition in (0, 1):
                victim, count = leader(log, partition), len(stream.rows())
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


def test_a_batch_goes_on_when_the_leader_of_what_it_reads_dies(
    spark: SparkSession, sandbox: Sandbox
) -> None:
    with topic_of(sandbox, "batch") as log:
        for _ in range(40):
            for partition in range(PARTITIONS):
                log.write(partition, [VALUE] * 500)
        # So small answers that a task asks hundreds of times.
        frame = log.read(spark, **{"kafka.max.partition.fetch.bytes": "20000"})
        found: list[object] = []
        reading = threading.Thread(target=lambda: found.extend(rows_of(frame)), daemon=True)
        victim = leader(log, 0)
        tracker = spark.sparkContext.statusTracker()
        reading.start()
        deadline = time.monotonic() + WAIT_S
        while not tracker.getActiveStageIds():
            assert time.monotonic() < deadline
            reading.join(0.02)
        sandbox.kill(victim)
        reading.join(WAIT_S)
        sandbox.restart(victim)
        assert found == sorted(log.rows)
