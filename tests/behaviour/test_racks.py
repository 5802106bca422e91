"""A reader with a rack reads from the follower there, loses nothing by it, and rides over its end.

(KIP-392)
"""

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka as librdkafka
import pytest

from bench.peers.server import StartError
from dlog.client.admin import Admin
from dlog.client.consumer import Consumer
from dlog.client.producer import Producer
from dlog.client.views import PartitionView
from dlog.types import PartitionId, TopicPartition
from tests.behaviour.clusters import CLUSTERS, NODES, TestedCluster, rack_of
from tests.behaviour.scene import play, read_count
from tests.clients.drivers.java import Java3Driver, Java4Driver, JavaDriver
from tests.clients.tools import MissingError

TOPIC = "racks"
FIRST = TopicPartition(TOPIC, PartitionId(0))
IN_SYNC_S = 60
READ_S = 60


@pytest.fixture(scope="module", params=list(CLUSTERS))
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestedCluster]:
    """Three nodes in three racks, and a topic of one partition that node 1 leads."""
    tested = CLUSTERS[request.param](tmp_path_factory.mktemp(request.param))
    try:
        try:
            tested.start()
        except StartError as error:
            if shutil.which("java") and shutil.which("mvn"):
                raise
            pytest.skip(str(error))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"the jars of Kafka are not in .cache, and cannot be fetched: {error}")
        asyncio.run(prepare(tested))
        yield tested
    finally:
        tested.close()


@pytest.fixture(autouse=True)
def last_words(cluster: TestedCluster) -> Iterator[None]:
    """Show what the nodes said beside a failure."""
    yield
    print(cluster.last_words)


async def prepare(cluster: TestedCluster) -> None:
    """Create the topic once all nodes are there."""
    async with Admin(cluster.bootstrap) as admin, asyncio.timeout(60):
        while len((await admin.describe_cluster()).nodes) < len(NODES):
            await asyncio.sleep(0.05)
        await admin.create_topic(TOPIC, assignments=[NODES])
        await until_in_sync(admin, len(NODES))


async def until_in_sync(admin: Admin, count: int) -> PartitionView:
    """Return the partition when so many replicas are in sync."""
    async with asyncio.timeout(IN_SYNC_S):
        while True:
            partitions = (await admin.describe_topics([TOPIC])).topics[TOPIC].partitions
            if partitions and partitions[0].leader >= 0 and len(partitions[0].isr) == count:
                return partitions[0]
            await asyncio.sleep(0.05)


async def write(cluster: TestedCluster, first: int, count: int) -> None:
    """Write numbered records."""
    async with Producer(cluster.bootstrap) as producer:
        for number in range(first, first + count):
            await producer.send(TOPIC, b"%d" % number)


def source(reader: Consumer) -> int:
    """Return the node that the partition is read from."""
    return reader._reading.fetcher.cursors[FIRST].source_id


async def until_read_from(cluster: TestedCluster, reader: Consumer, node: int) -> int:
    """Write and read until a node is read from; return what offset comes next.

    The leader names a follower that was away only when it knows that it has all.
    """
    async with asyncio.timeout(IN_SYNC_S):
        while True:
            start = reader.position(FIRST)
            await write(cluster, start, 5)
            await read_count(reader, 5)
            if source(reader) == node:
                return start + 5


@pytest.mark.parametrize("node", [1, 2, 3])
def test_it_is_read_where_the_reader_is(cluster: TestedCluster, node: int) -> None:
    async def work() -> None:
        async with Consumer(cluster.bootstrap, TOPIC, start="latest", rack=rack_of(node)) as reader:
            # A follower that has only just been let in has no lease yet: it sends its reader back.
            start = await until_read_from(cluster, reader, node)
            moves = reader.counters.follower_moves
            assert (moves > 0) == (node != 1)
            await write(cluster, start, 50)
            found = await read_count(reader, 50)
            assert [each.offset for each in found] == list(range(start, start + 50))
            assert [int(each.value or b"") for each in found] == list(range(start, start + 50))
            assert source(reader) == node
            assert reader.counters.follower_moves == moves

    play(work)


def test_librdkafka_reads_where_it_is(cluster: TestedCluster) -> None:
    """As another library understands it: nearly all its fetches go to the follower."""
    asyncio.run(write(cluster, 0, 500))
    fetches: dict[int, int] = {}

    def on_statistics(text: str) -> None:
        for each in json.loads(text)["brokers"].values():
            fetches[each["nodeid"]] = each["req"].get("Fetch", 0)

    config: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "nobody asks for it",
        "enable.auto.commit": False,
        "client.rack": rack_of(3),
        "statistics.interval.ms": 100,
        "stats_cb": on_statistics,
    }
    consumer = librdkafka.Consumer(config)
    try:
        consumer.assign([librdkafka.TopicPartition(TOPIC, 0, librdkafka.OFFSET_BEGINNING)])
        read, deadline_s = 0, time.monotonic() + READ_S
        while (read < 500 or fetches.get(3, 0) <= 5) and time.monotonic() < deadline_s:
            message = consumer.poll(0.1)
            read += message is not None and message.error() is None
    finally:
        consumer.close()
    assert read >= 500
    # The leader, once or twice: it says where to go.
    assert fetches[3] > 5 and fetches[1] < fetches[3] and fetches.get(2, 0) == 0, fetches


@pytest.mark.parametrize("kind", [Java3Driver, Java4Driver], ids=lambda kind: kind.name)
def test_java_reads_where_it_is(cluster: TestedCluster, kind: type[JavaDriver]) -> None:
    asyncio.run(write(cluster, 0, 500))
    try:
        driver = kind(cluster.bootstrap)
    except MissingError as error:
        pytest.skip(str(error))
    try:
        offsets, requests = driver.consume_from_rack(TOPIC, 500, rack_of(3), 3, READ_S)
    finally:
        driver.close()
    assert len(offsets) >= 500 and offsets == list(range(len(offsets)))
    # The leader, once or twice, and for what is asked of leaders only: it says where to go.
    assert requests["node-3"] > 10 and requests["node-1"] < requests["node-3"], requests
    assert requests.get("node-2", 0) <= 2, requests


def test_a_rack_without_a_node_is_no_matter(cluster: TestedCluster) -> None:
    async def work() -> None:
        async with Consumer(cluster.bootstrap, TOPIC, start="latest", rack="elsewhere") as reader:
            start = reader.position(FIRST)
            await write(cluster, start, 5)
            await read_count(reader, 5)
            assert source(reader) == 1

    play(work)


def test_the_follower_dies_and_comes_back(cluster: TestedCluster) -> None:
    """The leader would name it again until it knows: it is read itself meanwhile."""

    async def work() -> None:
        async with (
            Admin(cluster.bootstrap) as admin,
            Consumer(cluster.bootstrap, TOPIC, start="latest", rack=rack_of(2)) as reader,
        ):
            start = await until_read_from(cluster, reader, 2)
            cluster.kill(2)
            await write(cluster, start, 5)
            found = await read_count(reader, 5)
            assert [each.offset for each in found] == list(range(start, start + 5))
            assert source(reader) == 1
            await asyncio.to_thread(cluster.restart, 2)
            await until_in_sync(admin, 3)

    play(work)


def test_the_follower_becomes_the_leader(cluster: TestedCluster) -> None:
    """The last test of a cluster: the node does not come back."""

    async def work() -> None:
        async with (
            Admin(cluster.bootstrap) as admin,
            Consumer(cluster.bootstrap, TOPIC, start="latest", rack=rack_of(2)) as reader,
        ):
            start = await until_read_from(cluster, reader, 2)
            cluster.kill(1)
            leader = (await until_in_sync(admin, 2)).leader
            await write(cluster, start, 50)
            found = await read_count(reader, 50)
            assert [each.offset for each in found] == list(range(start, start + 50))
            assert source(reader) in (2, leader)

    play(work)
