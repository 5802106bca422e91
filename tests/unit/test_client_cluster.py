"""The client against fake nodes: negotiation, rediscovery, retries, admin and partition calls."""

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from dlog.client import partitions
from dlog.client.admin import Admin, Resource
from dlog.client.blocking import BlockingClient
from dlog.client.cluster import Cluster
from dlog.client.node import NodeClient, open_node
from dlog.client.retry import RetryPolicy
from dlog.errors import (
    BrokerNotAvailableError,
    ConnectFailedError,
    DisconnectedError,
    InvalidConfigError,
    LeaderNotAvailableError,
    NotLeaderOrFollowerError,
    ProtocolError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from dlog.transport import Address, ConnectionOptions
from dlog.wire.apis import ApiKey
from dlog.wire.frame import RequestHeader, encode_frame, encode_request_header
from tests.fakes.peer import (
    TOPIC_ID,
    HangUpError,
    PeerCluster,
    error,
    no_error,
    unsupported_versions,
    zero_time,
)

POLICY = RetryPolicy(base_s=0.001, cap_s=0.005, deadline_s=20.0)


def check(work: Callable[[PeerCluster, Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        nodes = PeerCluster()
        for peer in nodes.peers.values():
            await peer.start()
        cluster = Cluster(
            [nodes.peers[2].address],
            loop=asyncio.get_running_loop(),
            rng=random.Random(5),
            policy=POLICY,
            options=ConnectionOptions(request_timeout_s=1, connect_timeout_s=1),
        )
        try:
            async with asyncio.timeout(20):
                await work(nodes, cluster)
        finally:
            await cluster.close()
            for peer in nodes.peers.values():
                peer.stop()

    asyncio.run(main())


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
        cluster.policy = RetryPolicy(base_s=0.001, cap_s=0.005, deadline_s=0.1)
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
        cluster.policy = RetryPolicy(base_s=0.001, cap_s=0.005, deadline_s=0.05)
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


def test_topics_are_created_deleted_and_grown() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        admin = Admin(cluster)
        controller = nodes.peers[1]

        def create(request: Any, module: Any, _header: RequestHeader) -> Any:
            topic = request.topics[0]
            assert (topic.num_partitions, topic.replication_factor) == (3, -1)
            assert [(each.name, each.value) for each in topic.configs] == [("a.b", "c")]
            code = 36 if topic.name == "t" else 0
            result = module.CreatableTopicResult(
                name=topic.name,
                topic_id=TOPIC_ID,  # Kafka makes one up when it only validates
                error_code=error(code),
                error_message="it exists" if code else None,
                configs=None,
            )
            return module.CreateTopicsResponse(throttle_time=zero_time(), topics=(result,))

        controller.answers[ApiKey.CREATE_TOPICS] = create
        arguments: dict[str, Any] = {"partitions": 3, "configs": {"a.b": "c"}}
        assert await admin.create_topic("new", **arguments) == TOPIC_ID
        assert await admin.create_topic("new", validate_only=True, **arguments) == UUID(int=0)
        with pytest.raises(TopicAlreadyExistsError, match="it exists"):
            await admin.create_topic("t", **arguments)

        def delete(request: Any, module: Any, _header: RequestHeader) -> Any:
            name = request.topics[0].name
            result = module.DeletableTopicResult(
                name=name, topic_id=None, error_code=error(0 if name == "t" else 3)
            )
            return module.DeleteTopicsResponse(throttle_time=zero_time(), responses=(result,))

        controller.answers[ApiKey.DELETE_TOPICS] = delete
        await admin.delete_topic("t")
        cluster.policy = RetryPolicy(base_s=0.001, cap_s=0.002, deadline_s=0.2)
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.delete_topic("missing")

        def grow(request: Any, module: Any, _header: RequestHeader) -> Any:
            assert request.topics[0].count == 9
            result = module.CreatePartitionsTopicResult(name="t", error_code=no_error())
            return module.CreatePartitionsResponse(throttle_time=zero_time(), results=(result,))

        controller.answers[ApiKey.CREATE_PARTITIONS] = grow
        await admin.create_partitions("t", 9)

    check(work)


def test_configs_are_described() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        admin = Admin(cluster)

        def describe(request: Any, module: Any, _header: RequestHeader) -> Any:
            wanted = request.resources[0]
            entry = module.DescribeConfigsResourceResult(
                name="retention.ms",
                value="5",
                read_only=False,
                config_source=5,
                is_sensitive=False,
                synonyms=(),
                documentation="How long.",
            )
            code = 3 if wanted.resource_name == "missing" else 0
            result = module.DescribeConfigsResult(
                error_code=error(code),
                error_message=None,
                resource_type=wanted.resource_type,
                resource_name=wanted.resource_name,
                configs=(entry,),
            )
            return module.DescribeConfigsResponse(throttle_time=zero_time(), results=(result,))

        for peer in nodes.peers.values():
            peer.answers[ApiKey.DESCRIBE_CONFIGS] = describe
        (entry,) = await admin.describe_configs(Resource.TOPIC, "t")
        assert (entry.name, entry.value, entry.is_default) == ("retention.ms", "5", True)
        await admin.describe_configs(Resource.BROKER, "1")
        assert nodes.peers[1].seen.count(ApiKey.DESCRIBE_CONFIGS) == 1
        # Told at once, not when the policy's deadline is over.
        asked = sum(peer.seen.count(ApiKey.DESCRIBE_CONFIGS) for peer in nodes.peers.values())
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.describe_configs(Resource.TOPIC, "missing")
        told = sum(peer.seen.count(ApiKey.DESCRIBE_CONFIGS) for peer in nodes.peers.values())
        assert told == asked + 1

    check(work)


@pytest.mark.parametrize(
    ("told", "error_code", "expected"),
    [
        ("leader", 0, "leader"),
        ("none", 0, "none"),
        (None, 0, "all"),
        ("x", 0, "all"),
        ("leader", 29, "all"),
        ("leader", 35, "all"),
    ],
)
def test_the_acknowledgement_that_a_cluster_wants(
    told: str | None, error_code: int, expected: str
) -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        asked = []

        def describe(request: Any, module: Any, _header: RequestHeader) -> Any:
            wanted = request.resources[0]
            asked.append((int(wanted.resource_type), wanted.resource_name))
            assert wanted.configuration_keys == ("ack.default",)
            entry = module.DescribeConfigsResourceResult(
                name="ack.default" if told is not None else "other",
                value=told,
                read_only=False,
                config_source=5,
                is_sensitive=False,
                synonyms=(),
                documentation=None,
            )
            result = module.DescribeConfigsResult(
                error_code=error(error_code),
                error_message=None,
                resource_type=wanted.resource_type,
                resource_name=wanted.resource_name,
                configs=() if error_code else (entry,),
            )
            return module.DescribeConfigsResponse(throttle_time=zero_time(), results=(result,))

        for peer in nodes.peers.values():
            peer.answers[ApiKey.DESCRIBE_CONFIGS] = describe
        assert await cluster.ack_default() == expected
        assert await cluster.ack_default() == expected
        assert await cluster.ack_default("t") == expected
        assert asked == [(4, ""), (2, "t")]

    check(work)


def test_the_acknowledgement_where_configs_are_not_served() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        for peer in nodes.peers.values():
            del peer.versions[ApiKey.DESCRIBE_CONFIGS]
        assert await cluster.ack_default() == "all"

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


def test_configs_are_altered() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        admin = Admin(cluster)

        def alter(request: Any, module: Any, _header: RequestHeader) -> Any:
            changes = request.resources[0].configs
            assert [(each.name, int(each.config_operation), each.value) for each in changes] == [
                ("a", 0, "1"),
                ("b", 1, None),
            ]
            result = module.AlterConfigsResourceResponse(
                error_code=error(40), error_message="no", resource_type=2, resource_name="t"
            )
            return module.IncrementalAlterConfigsResponse(
                throttle_time=zero_time(), responses=(result,)
            )

        nodes.peers[1].answers[ApiKey.INCREMENTAL_ALTER_CONFIGS] = alter
        with pytest.raises(InvalidConfigError, match="no"):
            await admin.alter_configs(
                Resource.TOPIC, "t", set_values={"a": "1"}, delete_names=["b"]
            )

    check(work)


def test_directories_are_described() -> None:
    async def work(nodes: PeerCluster, cluster: Cluster) -> None:
        admin = Admin(cluster)

        def directories(_request: Any, module: Any, _header: RequestHeader) -> Any:
            partition = module.DescribeLogDirsPartition(
                partition_index=0, partition_size=7, offset_lag=0, is_future_key=False
            )
            result = module.DescribeLogDirsResult(
                error_code=no_error(),
                log_dir="/d",
                topics=(module.DescribeLogDirsTopic(name="t", partitions=(partition,)),),
                total_bytes=10,
                usable_bytes=3,
            )
            return module.DescribeLogDirsResponse(
                throttle_time=zero_time(), error_code=no_error(), results=(result,)
            )

        nodes.peers[2].answers[ApiKey.DESCRIBE_LOG_DIRS] = directories
        (directory,) = await admin.describe_log_dirs(2)
        assert (directory.path, directory.partitions) == ("/d", (("t", 0, 7),))

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
        assert await partitions.produce(leader, "t", 0, b"batch", acks=0) is None
        with pytest.raises(NotLeaderOrFollowerError):
            await partitions.produce(leader, "t", 0, b"batch", acks=partitions.ACKS_ALL)

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
