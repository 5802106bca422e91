"""The consumer against a real `dlogd` behind a proxy that does harm.

Every record comes once and in order, whatever happens on the way; no task and no socket is left.
"""

import asyncio
import os
import random
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from dlog.batch.records import Record, encode
from dlog.client.admin import Admin
from dlog.client.cluster import partition_calls
from dlog.client.cluster.cluster import Cluster
from dlog.client.consumer import Consumer
from dlog.client.gaps import GapError, GapReason
from dlog.client.retry import RetryPolicy
from dlog.compression import Codec
from dlog.transport import Address, ConnectionOptions
from dlog.types import PartitionId, TopicPartition
from tests.daemon.process import DaemonProcess, daemon
from tests.fakes.proxy import Direction, Proxy

RECORDS, BATCH = 240, 8
STEP = 60  # records between two harms
POLICY = RetryPolicy(base_s=0.001, cap_s=0.05, deadline_s=60.0, lookup_timeout_s=0.3)
OPTIONS = ConnectionOptions(request_timeout_s=0.3, connect_timeout_s=0.3)
Harm = Callable[[Proxy], None]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Keep one port for the proxies of this file: the node advertises it."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


@pytest.fixture(scope="module")
def node(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Give one node that runs for all tests of this file."""
    folder: Path = tmp_path_factory.mktemp("node")
    with daemon(folder, f"advertised.address: 127.0.0.1:{port}\n") as process:
        process.start()
        yield process


def address_of(node: DaemonProcess) -> Address:
    """Return where the node itself listens."""
    return Address.parse(node.status()["listeners"][0])


class Scene:
    """A node behind a proxy, a topic of two partitions, and what is written there."""

    def __init__(self, node: DaemonProcess, proxy: Proxy, topic: str) -> None:
        self.node = node
        self.proxy = proxy
        self.topic = topic
        self.written = 0  # records in each partition

    async def fill(self, count: int) -> None:
        """Write so many records to both partitions, by ways that nobody harms."""
        loop = asyncio.get_running_loop()
        cluster = Cluster([self.proxy.address], loop=loop, rng=random.Random(1))
        try:
            if not self.written:
                await Admin(cluster).create_topic(self.topic, partitions=2)
            for first in range(self.written, self.written + count, BATCH):
                numbers = range(first, first + BATCH)
                codec = list(Codec)[first // BATCH % len(Codec)]
                # Today: nothing is old enough to be deleted.
                stamp_ms = int(os.stat(self.node.config_path).st_mtime) * 1000
                batch = encode(
                    [Record(b"%d" % number, b"x" * 99, (), stamp_ms) for number in numbers],
                    codec=codec,
                )
                for partition in range(2):
                    client = await cluster.leader(self.topic, partition)
                    await partition_calls.produce(client, self.topic, partition, batch)
            self.written += count
        finally:
            await cluster.close()

    def consumer(self) -> Consumer:
        """Return a consumer that fetches little at a time, so that there is much to harm."""
        return Consumer(
            [self.proxy.address],
            self.topic,
            max_wait_ms=50,
            max_partition_bytes=3000,
            max_prefetch_bytes=6000,
            connection=OPTIONS,
            policy=POLICY,
            rng=random.Random(2),
        )


async def read_on(reader: Consumer, seen: dict[int, list[int]], count: int) -> None:
    """Read until both partitions together have given `count` records."""
    while sum(map(len, seen.values())) < count:
        for record in await reader.poll(20, timeout_ms=20):
            assert record.key == b"%d" % record.offset
            seen[record.partition].append(record.offset)


def failures_of(reader: Consumer) -> int:
    """Return how often the reader felt a harm, be it in a fetch or while it looked for leaders."""
    told = reader.client_counters
    return reader.counters.fetch_failures + told.metadata_failures + told.connections_failed


def check(
    node: DaemonProcess, port: int, topic: str, work: Callable[[Scene], Awaitable[None]]
) -> None:
    """Run a test; nothing of it may be left behind."""

    async def main() -> None:
        tasks, files = asyncio.all_tasks(), len(os.listdir("/proc/self/fd"))
        async with asyncio.timeout(120), Proxy(address_of(node), port) as proxy:
            scene = Scene(node, proxy, topic)
            await scene.fill(RECORDS)
            await work(scene)
        assert asyncio.all_tasks() == tasks
        assert len(os.listdir("/proc/self/fd")) == files

    asyncio.run(main())


def _refuse(proxy: Proxy) -> None:
    proxy.refuse()
    proxy.cut()


def _drip(proxy: Proxy) -> None:
    proxy.drip = (700, 0.001)


def _delay(proxy: Proxy) -> None:
    proxy.delay_s = 0.02


HARMS: dict[str, Harm] = {
    "cut within an answer": lambda proxy: proxy.cut_after(Direction.TO_CLIENT, 777),
    "reset within an answer": lambda proxy: proxy.cut_after(Direction.TO_CLIENT, 99, reset=True),
    "cut within a request": lambda proxy: proxy.cut_after(Direction.TO_SERVER, 20),
    "reset": lambda proxy: proxy.cut(reset=True),
    "refused": _refuse,
    "answers swallowed": lambda proxy: proxy.swallow(Direction.TO_CLIENT),
    "everything swallowed": lambda proxy: proxy.swallow(),
    "half open": lambda proxy: proxy.half_open(),
    "stalled": lambda proxy: proxy.stall(),
}
SLOW: dict[str, Harm] = {"slow drip": _drip, "delay": _delay}


@pytest.mark.parametrize("harm", HARMS)
def test_every_record_comes_once_whatever_breaks(node: DaemonProcess, port: int, harm: str) -> None:
    async def work(scene: Scene) -> None:
        seen: dict[int, list[int]] = {0: [], 1: []}
        async with scene.consumer() as reader:
            for count in range(STEP, 2 * RECORDS, STEP):
                await read_on(reader, seen, count)
                fetches = reader.counters.fetches
                while reader.counters.fetches == fetches:  # there is a connection to harm
                    await _poll_once(reader, seen)
                failures = failures_of(reader)
                HARMS[harm](scene.proxy)
                while failures_of(reader) == failures:
                    await _poll_once(reader, seen)
                scene.proxy.heal()
                if harm == "refused":
                    await scene.proxy.start()
            await read_on(reader, seen, 2 * RECORDS)
        assert seen == {0: list(range(RECORDS)), 1: list(range(RECORDS))}

    check(node, port, f"harm-{sorted(HARMS).index(harm)}", work)


async def _poll_once(reader: Consumer, seen: dict[int, list[int]]) -> None:
    for record in await reader.poll(20, timeout_ms=20):
        seen[record.partition].append(record.offset)


@pytest.mark.parametrize("harm", SLOW)
def test_slow_answers_are_answers(node: DaemonProcess, port: int, harm: str) -> None:
    async def work(scene: Scene) -> None:
        seen: dict[int, list[int]] = {0: [], 1: []}
        SLOW[harm](scene.proxy)
        async with scene.consumer() as reader:
            await read_on(reader, seen, 2 * RECORDS)
            assert reader.counters.fetch_failures == 0
        assert seen == {0: list(range(RECORDS)), 1: list(range(RECORDS))}

    check(node, port, f"slow-{sorted(SLOW).index(harm)}", work)


def test_a_node_that_is_killed_and_returns(node: DaemonProcess, port: int) -> None:
    async def work(scene: Scene) -> None:
        seen: dict[int, list[int]] = {0: [], 1: []}
        async with scene.consumer() as reader:
            for round_ in range(1, 4):
                await read_on(reader, seen, round_ * STEP)
                node.signal(signal.SIGKILL)
                node.wait()
                await asyncio.to_thread(node.start)
                scene.proxy.upstream = address_of(node)
            await read_on(reader, seen, 2 * RECORDS)
            await scene.fill(BATCH)
            await read_on(reader, seen, 2 * scene.written)
        assert seen == {0: list(range(scene.written)), 1: list(range(scene.written))}

    check(node, port, "killed", work)


def test_records_deleted_before_they_were_read_are_told_of(node: DaemonProcess, port: int) -> None:
    async def work(scene: Scene) -> None:
        first = TopicPartition(scene.topic, PartitionId(0))
        async with scene.consumer() as reader:
            reader.pause((scene.topic, 1))
            await reader.poll(1, timeout_ms=None)
            node = await reader._reading.cluster.leader(scene.topic, 0)
            await partition_calls.delete_records(node, scene.topic, {0: RECORDS - BATCH})
            with pytest.raises(GapError) as raised:
                while True:
                    await reader.poll()
            gap = raised.value.gap
            assert gap.topic_partition == first
            assert gap.reason is GapReason.RETENTION
            assert gap.offset == reader.position(first)
            assert gap.resume_offset == RECORDS - BATCH
            await reader.seek(first, gap.resume_offset)
            seen: dict[int, list[int]] = {0: []}
            await read_on(reader, seen, BATCH)
            assert seen[0] == list(range(RECORDS - BATCH, RECORDS))

    check(node, port, "deleted", work)


def test_a_topic_made_anew_is_not_taken_for_the_old_one(node: DaemonProcess, port: int) -> None:
    async def work(scene: Scene) -> None:
        async with scene.consumer() as reader:
            seen: dict[int, list[int]] = {0: [], 1: []}
            await read_on(reader, seen, 2 * RECORDS)
            await Admin(reader._reading.cluster).delete_topic(scene.topic)
            scene.written = 0
            await scene.fill(RECORDS + BATCH)  # longer than before: no offset tells
            told: list[int] = []
            anew: dict[int, list[int]] = {0: [], 1: []}
            while sum(map(len, anew.values())) < 2 * scene.written:
                try:
                    await _poll_once(reader, anew)
                except GapError as error:
                    assert error.gap.reason is GapReason.RECREATED
                    told.append(error.gap.topic_partition.partition)
                    await reader.seek(error.gap.topic_partition, "earliest")
            assert sorted(told) == [0, 1]
            assert anew == {0: list(range(scene.written)), 1: list(range(scene.written))}

    check(node, port, "anew", work)
