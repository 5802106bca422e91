"""A consumer among nodes to which everything happens at once: each record once, and in order.

What happens is drawn from a seed; the order in which the loop meets it is not, so that a failure
may need several runs to come back.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from dlog.client.consumer import Consumer
from dlog.client.retry import RetryPolicy
from dlog.compression import Codec
from dlog.errors import (
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from dlog.transport import ConnectionOptions
from tests.fakes.batches import COMMIT, batch, marker
from tests.fakes.log_consumers import run
from tests.fakes.log_nodes import LogNodes
from tests.fakes.served_log import FakeLog

PARTITIONS, NODES = 4, 3
RECORDS = 3000
ERRORS = (
    NotLeaderOrFollowerError,
    FencedLeaderEpochError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)


class World:
    """Nodes, and what happens to them."""

    def __init__(self, servers: LogNodes, rng: random.Random) -> None:
        self.servers = servers
        self.rng = rng
        self.written = 0
        self.down: list[int] = []
        self.happenings: list[tuple[int, Callable[[FakeLog], None]]] = [
            (40, self.write),
            (3, self.move),
            (2, lambda log: log.errors.append(rng.choice(ERRORS))),
            (1, lambda log: setattr(log, "damaged_reads", 1)),
            (1, self.stop),
        ]

    def write(self, log: FakeLog) -> None:
        """Append one batch, or a marker in between."""
        if self.rng.random() < 0.1:
            log.append(marker(log.end, 7, COMMIT))
        else:
            count = self.rng.randint(1, 20)
            codec = self.rng.choice((Codec.NONE, Codec.NONE, Codec.LZ4))
            log.append(batch(log.end, count, codec=codec, leader_epoch=log.leader_epoch))
            self.written += count
        self.servers.notify()

    def move(self, log: FakeLog) -> None:
        """Let another node lead."""
        log.leader = self.rng.choice([n for n in range(NODES) if n not in self.down])
        log.leader_epoch += 1
        self.servers.notify()

    def stop(self, _log: FakeLog) -> None:
        """Let a node vanish, and its partitions go to another one."""
        if self.down:
            return
        node = self.rng.randrange(NODES)
        self.down.append(node)
        self.servers.stop(node)
        for log in self.servers.logs:
            if log.leader == node:
                self.move(log)

    async def go_on(self) -> None:
        """Let one thing happen."""
        if self.down and self.rng.random() < 0.2:
            await self.servers.start(self.down.pop())
        weights = [weight for weight, _ in self.happenings]
        ((_, happen),) = self.rng.choices(self.happenings, weights)
        happen(self.rng.choice(self.servers.logs))


async def read_some(reader: Consumer, rng: random.Random, seen: dict[int, list[int]]) -> None:
    """Read in one of the ways in which programs read."""
    count = rng.choice((1, 5, 100))
    way = rng.random()
    if way < 0.5:
        for record in await reader.poll(count, timeout_ms=5):
            assert record.value == b"v%d" % record.offset
            seen[record.partition].append(record.offset)
    elif way < 0.8:
        rows: list[dict[str, Any]] = (await reader.poll_arrow(count, timeout_ms=5)).to_pylist()
        for row in rows:
            assert row["value"] == b"v%d" % row["offset"]
            seen[row["partition"]].append(row["offset"])
    else:
        reader.stash.fill(await reader.poll(count, timeout_ms=5))
        for record in reader.stash.take(rng.randint(1, count)):
            seen[record.partition].append(record.offset)
    if rng.random() < 0.1:
        reader.pause(*rng.sample(reader.assignment, 2))
    elif rng.random() < 0.2:
        reader.resume()
    for key in reader.assignment:
        before = seen[key.partition][-1] + 1 if seen[key.partition] else 0
        assert reader.position(key) >= before


@pytest.mark.parametrize("seed", range(6))
def test_each_record_once_and_in_order(seed: int) -> None:
    async def work(servers: LogNodes) -> None:
        rng = random.Random(seed)
        world = World(servers, rng)
        world.written = 9 * PARTITIONS
        seen: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        reader = Consumer(
            servers.bootstrap,
            "t",
            max_wait_ms=20,
            max_prefetch_bytes=rng.choice((2000, 20_000, 10_000_000)),
            max_partition_bytes=rng.choice((500, 5000, 1_000_000)),
            connection=ConnectionOptions(request_timeout_s=5, connect_timeout_s=5),
            policy=RetryPolicy(base_s=0.001, cap_s=0.005, deadline_s=20.0),
            rng=random.Random(seed),
        )
        async with reader:
            while world.written < RECORDS:
                for _ in range(rng.randint(0, 6)):
                    await world.go_on()
                await read_some(reader, rng, seen)
            for node in world.down:
                await servers.start(node)
            while sum(map(len, seen.values())) < world.written:
                reader.resume()
                await read_some(reader, rng, seen)
            assert reader.counters.gaps == 0
        for number, log in enumerate(servers.logs):
            assert seen[number] == written_offsets(log)

    run(work, partitions=PARTITIONS, nodes=NODES)


def written_offsets(log: FakeLog) -> list[int]:
    """Return the offsets of all records of a log, markers left out."""
    return [
        offset
        for first, after, data in log.batches
        if not data[22] & 0x20
        for offset in range(first, after)
    ]
