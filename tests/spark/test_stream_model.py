"""A streaming reader as Spark drives it, without a JVM, over a topic that changes at random.

Whatever is written, trimmed, added, deleted and made anew, and whenever the query ends and is
started again from its checkpoint: with `failOnDataLoss=false` no record comes twice, and all that
is still there in the end was read, unless the topic was made anew while no query ran: that it is
another one cannot be told from offsets. `DLOG_SPARK_SEEDS=200` runs more.
"""

import json
import os
import random
from collections.abc import Callable

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dlog.client.blocking import Admin
from dlog.spark.reading.stream_reader import DlogStreamReader
from dlog.spark.source import DlogDataSource
from tests.spark.log import Log

SEEDS = int(os.environ.get("DLOG_SPARK_SEEDS", "6"))
STEPS = 40
Offsets = dict[str, dict[str, int]]
LAX = {"failOnDataLoss": "false", "fetchOffset.retryIntervalMs": "1"}


class Query:
    """What Spark does with a reader: batches, a checkpoint, restarts. Owner: one test."""

    def __init__(self, log: Log, options: dict[str, str]) -> None:
        self.source = DlogDataSource(log.options(**LAX, **options))
        self.reader = self._reader()
        self.start: Offsets = self.reader.initialOffset()
        self.logged: tuple[Offsets, Offsets] | None = None
        """The last batch of the checkpoint, as (start, end)."""
        self.is_first = False
        """Whether that is batch 0: its start is not in the checkpoint."""
        self.batches: list[list[bytes]] = [[]]

    def _reader(self) -> DlogStreamReader:
        reader = self.source.streamReader(self.source.schema())
        assert isinstance(reader, DlogStreamReader)
        return reader

    def batch(self) -> bool:
        """Run one batch; return whether there was one."""
        limit = self.reader.getDefaultReadLimit()
        return self._run(self.reader.latestOffset(self.start, limit))

    def drain(self) -> None:
        """Read all there is."""
        while self._run(self.reader.latestOffset(self.start, ReadAllAvailable())):
            pass

    def _run(self, end: Offsets) -> bool:
        is_first = self.logged is None
        if json.dumps(end) == json.dumps(self.start) and not is_first:
            return False
        self.is_first = is_first
        self.logged = self.start, end
        self.batches.append(self._read(self.start, end))
        self.start = end
        return True

    def _read(self, start: Offsets, end: Offsets) -> list[bytes]:
        return [
            value
            for task in self.reader.partitions(start, end)
            for rows in self.reader.read(task)
            for value in rows["value"].to_pylist()
        ]

    def restart(self, *, has_failed: bool) -> None:
        """End the planner; with `has_failed` the last batch had not been committed."""
        self.restart_after(lambda: None, has_failed=has_failed)

    def restart_after(self, change: Callable[[], None], *, has_failed: bool) -> None:
        """Let something happen while no query runs."""
        self.reader.stop()
        change()
        self.reader = self._reader()
        if self.logged is None:
            self.start = self.reader.initialOffset()
        elif has_failed:
            start, end = self.logged
            self.reader.partitions(end, end)
            self.batches[-1] = self._read(
                self.reader.initialOffset() if self.is_first else start, end
            )

    def values(self) -> list[bytes]:
        """Return all that was read, in the order of batches."""
        return [value for batch in self.batches for value in batch]


class World:
    """A topic that changes, and what must hold of it. Owner: one test."""

    def __init__(self, log: Log, admin: Admin, rng: random.Random) -> None:
        self.log = log
        self.admin = admin
        self.rng = rng
        self.written = 0
        self.partition_count = rng.randint(1, 3)
        log.create(self.partition_count)

    def write(self, partition: int | None = None) -> None:
        """Append a few records with values of their own."""
        if partition is None:
            partition = self.rng.randrange(self.partition_count)
        count = self.rng.randint(1, 12)
        values = [b"%d" % number for number in range(self.written, self.written + count)]
        self.log.write(partition, values)
        self.written += count

    def trim(self) -> None:
        """Delete from the beginning of a partition."""
        partition = self.rng.randrange(self.partition_count)
        ends = [offset + 1 for each, offset, _ in self.log.rows if each == partition]
        if ends:
            self.log.trim(partition, self.rng.choice(ends))

    def add_partition(self) -> None:
        """Add one, with records or without."""
        self.partition_count += 1
        self.admin.create_partitions(self.log.topic, self.partition_count)
        if self.rng.random() < 0.5:
            self.write(self.partition_count - 1)

    def recreate(self) -> None:
        """Delete the topic and make it anew, with some records."""
        self.admin.delete_topic(self.log.topic)
        self.log.rows.clear()
        self.partition_count = self.rng.randint(1, 3)
        self.log.create(self.partition_count)
        for _ in range(self.rng.randrange(3)):
            self.write()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_record_comes_twice_and_none_is_left_out(log: Log, admin: Admin, seed: int) -> None:
    rng = random.Random(seed)
    world = World(log, admin, rng)
    options = rng.choice(
        [{}, {"maxOffsetsPerTrigger": "5"}, {"maxBytesPerTrigger": "300"}, {"minPartitions": "5"}]
    )
    starting = rng.choice(["earliest", "latest"])
    query = Query(log, {**options, "startingOffsets": starting})
    if starting == "latest":
        query.batch()  # nothing was written yet: from here on all is to be read
    is_blind = rng.random() < 0.3  # the topic may be made anew while no query runs
    changes: list[Callable[[], None]] = [world.write] * 6
    changes += [world.trim, world.add_partition]
    for _ in range(STEPS):
        rng.choice(changes)()
        action = rng.random()
        if action < 0.6:
            query.batch()
        elif action < 0.7:
            query.restart(has_failed=rng.random() < 0.5)
        elif action < 0.75:
            # What runs sees that the topic is another one: it has read of the former one.
            query.batch()
            world.recreate()
            query.batch()
        elif action < 0.8 and is_blind:
            query.restart_after(world.recreate, has_failed=rng.random() < 0.5)
    query.drain()
    query.reader.stop()
    read = query.values()
    assert len(read) == len(set(read))
    assert is_blind or {value for _, _, value in log.rows} <= set(read)
    assert {int(value) for value in read} <= set(range(world.written))
