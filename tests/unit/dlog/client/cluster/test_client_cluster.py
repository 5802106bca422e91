"""The client against fake nodes: negotiation, rediscovery, retries, requests to partitions."""

import asyncio
import struct
from typing import Any

import pytest

from dlog.client.admin import Admin
from dlog.client.blocking import BlockingClient
from dlog.client.cluster import partition_calls
from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.node import NodeClient, open_node
from dlog.client.retry import RetryPolicy
from dlog.errors import (
    BrokerNotAvailableError,
    ConnectFailedError,
    DisconnectedError,
    LeaderNotAvailableError,
    NotLeaderOrFollowerError,
    ProtocolError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from dlog.transport import Address, ConnectionOptions
from dlog.wire.apis import ApiKey
from dlog.wire.frame import RequestHeader, encode_frame, encode_request_header
from tests.fakes.peer import TOPIC_ID, HangUpError, PeerCluster, unsupported_versions, zero_time
from tests.fakes.peer_client import check


def test_the_cluster_is_found_through_one_address() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        view = await Admin(cluster).describe_topics()
        assert view.cluster_id == "c"
        assert view.controller_id == 1
        assert sorted(view.nodes) == [1, 2]
        topic = view.topics["t"]
        assert topic.topic_id == TOPIC_ID
        assert [each.leader for each in topic.partitions] == [1, 2]
        assert topic.replication_factor == 2
        assert (await cluster.leader("t", 0)).address == nodes.peers[1].address
        assert (await cluster.leader("t", 1)).address == nodes.peers[2].address
        assert (await cluster.controller()).address == nodes.peers[1].address
        with pytest.raises(BrokerNotAvailableError):
            await cluster.node(9)
        with pytest.raises(UnknownTopicOrPartitionError):
            await Admin(cluster).describe_topic("missing")

    check(work)


def test_leaders_are_cached_and_found_again_after_an_error() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        calls = []

        async def operation(node: NodeClient) -> str:
            calls.append(node.address.port)
            if node.address == nodes.peers[1].address:
                nodes.leaders = [2, 2]
                raise NotLeaderOrFollowerError("moved")
            return "done"

        async def call() -> str:
            return await cluster.run(lambda: cluster.leader("t", 0), operation, topic="t")

        assert await call() == "done"
        assert calls == [nodes.peers[1].address.port, nodes.peers[2].address.port]
        before = sum(peer.seen.count(ApiKey.METADATA) for peer in nodes.peers.values())
        assert await call() == "done"
        after = sum(peer.seen.count(ApiKey.METADATA) for peer in nodes.peers.values())
        assert after - before <= 1  # the nodes were stale, the leader was not

    check(work)


def test_a_partition_without_leader_is_waited_for_until_the_deadline() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        nodes.leaders = [-1]

        async def operation(_node: NodeClient) -> int:
            return 1

        asyncio.get_running_loop().call_later(0.1, lambda: nodes.leaders.__setitem__(0, 2))
        assert await cluster.run(lambda: cluster.leader("t", 0), operation, topic="t") == 1
        nodes.leaders = [-1]
        cluster.forget_leader("t")
        cluster.policy = RetryPolicy(base_s=0.001, cap_s=0.005, deadline_s=2.0)
        with pytest.raises(LeaderNotAvailableError):
            await cluster.run(lambda: cluster.leader("t", 0), operation, topic="t")

    check(work)


def test_another_node_answers_when_one_is_gone() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        admin = Admin(cluster)
        await admin.describe_cluster()
        nodes.peers[2].stop()
        view = await admin.describe_cluster()
        assert sorted(view.nodes) == [1, 2]
        assert (await cluster.any_node()).address == nodes.peers[1].address

    check(work)


def test_nobody_answers() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        cluster.policy = RetryPolicy(base_s=0.001, cap_s=0.005, deadline_s=2.0)
        nodes.peers[2].stop()
        with pytest.raises(ConnectFailedError, match="refused"):
            await Admin(cluster).describe_cluster()

    check(work)


def test_versions_are_negotiated_and_an_old_node_is_asked_again() -> None:
    async def work(nodes: PeerCluster, _cluster: Cluster) -> None:
        peer = nodes.peers[1]
        asked = []

        def old_node(header: RequestHeader, frame: memoryview) -> bytes | None:
            asked.append(header.api_version)
            if header.api_version > 0:
                return unsupported_versions(header)
            del peer.raw[ApiKey.API_VERSIONS]
            return peer.answer(frame)

        peer.raw[ApiKey.API_VERSIONS] = old_node
        peer.versions[ApiKey.METADATA] = (0, 5)
        node = await open_node(asyncio.get_running_loop(), peer.address, ConnectionOptions())
        assert asked == [3, 0]
        with pytest.raises(UnsupportedVersionError, match="METADATA 0 to 5, this client needs 12"):
            node.version_of(ApiKey.METADATA)
        node.close()

    check(work)


def test_what_may_have_happened_is_not_repeated() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        def lose(_request: Any, _module: Any, _header: RequestHeader) -> Any:
            raise HangUpError

        nodes.peers[1].answers[ApiKey.DELETE_TOPICS] = lose
        with pytest.raises(DisconnectedError):
            await Admin(cluster).delete_topic("t")
        assert nodes.peers[1].seen.count(ApiKey.DELETE_TOPICS) == 1

    check(work)


def test_the_newest_version_of_both_is_used() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        nodes.peers[2].versions[ApiKey.PRODUCE] = (3, 10)
        node = await cluster.any_node()
        assert node.highest_version(ApiKey.PRODUCE, 9, 12) == 10
        assert node.highest_version(ApiKey.FETCH, 12, 17) == 17
        with pytest.raises(UnsupportedVersionError, match=r"PRODUCE 3 to 10.* needs 11 to 12"):
            node.highest_version(ApiKey.PRODUCE, 11, 12)
        with pytest.raises(UnsupportedVersionError):
            node.highest_version(ApiKey.PRODUCE, 1, 2)

    check(work)


def test_requests_made_by_hand_come_back_by_callback() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        node = await cluster.any_node()
        ended: asyncio.Future[tuple[bytes, int]] = asyncio.get_running_loop().create_future()
        nodes.peers[2].raw[ApiKey.FETCH] = lambda header, _: (
            struct.pack(">iib", 8, header.correlation_id, 0) + b"abc"
        )

        def on_answer(frame: memoryview, position: int) -> None:
            ended.set_result((bytes(frame), position))

        node.send_request(
            ApiKey.FETCH,
            12,
            lambda cid: encode_frame(encode_request_header(ApiKey.FETCH, 12, cid, "x")),
            on_answer,
            ended.set_exception,
            asyncio.get_running_loop().time() + 10,
        )
        frame, position = await ended
        assert frame[position:] == b"abc"

    check(work)


def test_produce_without_acknowledgement_and_with_a_refusal() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        leader = await cluster.leader("t", 0)
        peer = nodes.peers[1]

        def refuse(header: RequestHeader, _frame: memoryview) -> bytes | None:
            if len(peer.seen) and peer.seen.count(ApiKey.PRODUCE) == 1:
                return None  # acks 0
            body = (
                b"\x00\x02\x02t\x02"
                + struct.pack(">ihqqq", 0, 6, -1, -1, -1)
                + b"\x01\x00\x00\x00"
                + struct.pack(">i", 0)
                + b"\x00"
            )
            return struct.pack(">ii", 4 + len(body), header.correlation_id) + body

        peer.raw[ApiKey.PRODUCE] = refuse
        assert await partition_calls.produce(leader, "t", 0, b"batch", acks=0) is None
        with pytest.raises(NotLeaderOrFollowerError):
            await partition_calls.produce(leader, "t", 0, b"batch", acks=partition_calls.ACKS_ALL)

    check(work)


def test_an_answer_to_another_question_is_a_protocol_error() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        def empty(_request: Any, module: Any, _header: RequestHeader) -> Any:
            return module.DeleteTopicsResponse(throttle_time=zero_time(), responses=())

        nodes.peers[1].answers[ApiKey.DELETE_TOPICS] = empty
        with pytest.raises(ProtocolError, match="topic t"):
            await Admin(cluster).delete_topic("t")

    check(work)


def test_the_blocking_client_says_that_nobody_is_there() -> None:
    policy = RetryPolicy(deadline_s=0.0)
    with (
        BlockingClient([Address("127.0.0.1", 1)], policy=policy) as client,
        pytest.raises(ConnectFailedError, match=r"127\.0\.0\.1:1"),
    ):
        client.run(client.admin.describe_cluster)


def test_a_bootstrap_address_is_needed() -> None:
    with pytest.raises(ValueError, match="bootstrap"):
        BlockingClient([])


def test_the_blocking_client_may_be_closed_twice() -> None:
    client = BlockingClient([Address("127.0.0.1", 1)])
    client.close()
    client.close()
