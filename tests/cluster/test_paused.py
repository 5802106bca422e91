"""A node that stood still for longer than its lease (H11), and clocks that go back.

Somebody else leads by then. What waited in the node's sockets must not be answered as by a leader.
"""

import asyncio
import signal
import time
from pathlib import Path
from uuid import UUID

from dlog.batch.records import Record, encode
from dlog.client.admin import Admin
from dlog.client.cluster.node import NodeClient, open_node
from dlog.client.cluster.partition_calls import fetch, list_offsets, produce
from dlog.errors import NotLeaderOrFollowerError
from dlog.transport import Address, ConnectionOptions
from tests.cluster.nodes import Cluster, Node, cluster_of
from tests.cluster.running import run

PAUSE_S = 10.0
BATCH = bytes(encode([Record(value=b"v", timestamp_ms=1)]))


async def leader_of(cluster: Cluster, asked: Node, topic: str) -> tuple[int, int]:
    """Return who leads partition 0, and the leader epoch, as one node tells."""
    async with Admin([asked.client_address]) as admin:
        found = (await admin.describe_topic(topic)).partitions[0]
    return found.leader, found.leader_epoch


async def topic_led_by(cluster: Cluster, node: Node) -> str:
    """Return a topic with three replicas whose partition 0 a node leads."""
    async with Admin(cluster.bootstrap) as admin:
        for number in range(20):
            name = f"led{number}"
            await admin.create_topic(name, partitions=1, replication_factor=3)
            if (await leader_of(cluster, node, name))[0] == node.node_id:
                return name
    raise AssertionError("the node leads nothing")


async def ask(node: Node, topic: str) -> list[object]:
    """Connect to a node and make it a leader's requests at once; return the outcomes."""
    options = ConnectionOptions(client_id="waiting", connect_timeout_s=5)

    async def client() -> NodeClient:
        loop = asyncio.get_running_loop()
        return await open_node(loop, Address.parse(node.client_address), options)

    clients = [await client() for _ in range(4)]
    # From here on the node stands still.
    node.signal(signal.SIGSTOP)
    asked = [
        produce(clients[0], topic, 0, BATCH, acks=1, timeout_ms=30_000),
        produce(clients[1], topic, 0, BATCH, acks=-1, timeout_ms=30_000),
        fetch(clients[2], topic, 0, 0, max_wait_ms=20_000, min_bytes=1),
        list_offsets(clients[3], topic, {0: -1}),
    ]
    try:
        return await asyncio.gather(*asked, return_exceptions=True)
    finally:
        for each in clients:
            each.connection.close()


def test_h11_who_stood_still_answers_nobody_as_a_leader(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            node = await cluster.controller()
            assert node is not None
            others = [each for each in cluster.nodes if each is not node]
            topic = await topic_led_by(cluster, node)
            _, epoch = await leader_of(cluster, node, topic)
            waiting = asyncio.create_task(ask(node, topic))
            begun_s = time.monotonic()
            await cluster.until(
                lambda statuses: all(
                    each["controller"] not in (-1, node.node_id)
                    and node.node_id in each["fenced_nodes"]
                    for each in statuses
                ),
                others,
            )
            leader, next_epoch = await leader_of(cluster, others[0], topic)
            assert leader not in (-1, node.node_id)
            assert next_epoch > epoch
            await asyncio.sleep(max(0.0, begun_s + PAUSE_S - time.monotonic()))
            node.signal(signal.SIGCONT)
            outcomes = await waiting
            for outcome in outcomes:
                assert isinstance(outcome, NotLeaderOrFollowerError), outcomes
            await cluster.until_well()
            await cluster.until_equal()
            assert (await leader_of(cluster, node, topic))[1] >= next_epoch
            cluster.expect_no_complaints()

    run(work)


def test_a_paused_follower_comes_back_as_if_nothing_were(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            controller = await cluster.controller()
            assert controller is not None
            paused = next(each for each in cluster.nodes if each is not controller)
            others = [each for each in cluster.nodes if each is not paused]
            for _ in range(3):
                paused.signal(signal.SIGSTOP)
                await cluster.until(
                    lambda statuses: all(
                        each["fenced_nodes"] == [paused.node_id] for each in statuses
                    ),
                    others,
                )
                async with Admin([each.client_address for each in others]) as admin:
                    await admin.create_topic(f"t{time.monotonic_ns()}", replication_factor=2)
                paused.signal(signal.SIGCONT)
                await cluster.until_well()
            await cluster.until_equal()
            assert len(paused.said("(Became leader of the metadata quorum)")) == 0
            cluster.expect_no_complaints()

    run(work)


def test_all_nodes_stand_still_together(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            for pause_s in (1.0, 8.0):  # within a lease, and for longer than one
                for node in cluster.nodes:
                    node.signal(signal.SIGSTOP)
                await asyncio.sleep(pause_s)
                for node in cluster.nodes:
                    node.signal(signal.SIGCONT)
                async with Admin(cluster.bootstrap) as admin:
                    await admin.create_topic(f"t{pause_s}", partitions=1, replication_factor=1)
                await cluster.until_well()
            await cluster.until_equal()
            cluster.expect_no_complaints()

    run(work)


def test_wall_clocks_that_go_back(tmp_path: Path) -> None:
    """Each node restarts with a wall clock of another year; then all of them with the right one."""

    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            made: set[str] = set()
            for step, shift_s in enumerate((-400 * 86_400, 3 * 86_400, -1, 0)):
                for node in cluster.nodes:
                    node.clock_shift_s = shift_s * node.node_id
                    assert await node.stop() == 0
                    await cluster.start([node])
                    name = f"t{step}-{node.node_id}"
                    async with Admin([node.client_address]) as admin:
                        topic_id = await admin.create_topic(name, replication_factor=3)
                    assert topic_id != UUID(int=0)
                    made.add(name)
            await cluster.until_equal()
            for node in cluster.nodes:
                async with Admin([node.client_address]) as admin:
                    assert set((await admin.describe_topics()).topics) == made
            cluster.expect_no_complaints()

    run(work)


def test_a_wall_clock_that_jumps_while_a_node_runs(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path, start=False) as cluster:
            for node in cluster.nodes:
                node.clock_shift_s = 1_000_000.0
            await cluster.start()
            marks = [len(each.log) for each in cluster.nodes]
            for _ in range(3):
                for node in cluster.nodes:
                    node.signal(signal.SIGUSR1)  # an hour back, each time
                async with Admin(cluster.bootstrap) as admin:
                    await admin.create_topic(f"t{time.monotonic_ns()}", replication_factor=3)
            await cluster.until_well()
            for node, mark in zip(cluster.nodes, marks, strict=True):
                assert "Lease ended" not in node.log[mark:], node.tail()
                assert "Became leader of the metadata quorum" not in node.log[mark:]
            await cluster.until_equal()
            cluster.expect_no_complaints()

    run(work)
