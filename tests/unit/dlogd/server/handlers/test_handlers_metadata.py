"""Metadata, DescribeCluster: what clients are told of nodes and topics."""

import asyncio
from collections.abc import Coroutine, Generator
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from dlog.errors import LeaderNotAvailableError
from dlog.types import NO_NODE, NodeId, TopicId
from dlog.wire import messages
from dlog.wire.apis import VERSIONS, ApiKey
from dlogd.config.schema import build
from dlogd.metadata.commands.codec import CreateTopic
from dlogd.metadata.state.image import Refused, TopicImage, Unknown
from dlogd.server import response_builder
from dlogd.server.handlers import metadata, topology
from dlogd.server.request import EncodedBody, Pieces, Request
from tests.fakes.server import CLUSTER_ID, FakeNode

METADATA_VERSIONS = range(VERSIONS[ApiKey.METADATA][0], VERSIONS[ApiKey.METADATA][1] + 1)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def creating() -> FakeNode:
    return FakeNode(build({"topic.auto_create": True, "topic.partitions.default": 3}))


async def ask(node: FakeNode, version: int, *names: str, **fields: Any) -> Any:
    topics = [{"name": name} for name in names]
    return await node.ask(ApiKey.METADATA, version, topics=topics, **fields)


def fence(node: FakeNode, node_id: int) -> None:
    nodes = dict(node.image.nodes)
    nodes[NodeId(node_id)] = replace(nodes[NodeId(node_id)], fenced=True)
    node.image = replace(node.image, nodes=nodes)


def test_all_topics_are_null_and_in_version_0_an_empty_list() -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("a")
        await node.create("b", 2)
        first = await node.ask(ApiKey.METADATA, 0, topics=[])
        assert [topic.name for topic in first.topics] == ["a", "b"]
        for version in METADATA_VERSIONS[1:]:
            none = await node.ask(ApiKey.METADATA, version, topics=[])
            assert none.topics == ()
            everything = await node.ask(ApiKey.METADATA, version, topics=None)
            assert [len(topic.partitions) for topic in everything.topics] == [1, 2]

    run(test())


@pytest.mark.parametrize("version", METADATA_VERSIONS)
def test_the_kept_entries_give_the_bytes_of_the_whole_entity(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        for count in range(1, 131):  # beyond one byte of a compact count
            await node.create(f"t{count}", 1 + count % 3)
        asked: dict[str, Any] = {
            "topics": [] if version == 0 else None,
            "include_cluster_authorized_operations": True,
        }
        request = Request(
            api_key=ApiKey.METADATA,
            version=version,
            body=response_builder.build_request(ApiKey.METADATA, version, asked),
        )
        describing = cast(Pieces, metadata.MetadataHandler().answer(node.context, request))
        answered = await node.context.turns.finish(describing)
        assert isinstance(answered, EncodedBody)
        body = memoryview(answered.body)
        response = messages.parse_response_body(ApiKey.METADATA, version, body)
        assert len(response.topics) == 130
        whole = messages.encode_response(response, 1)
        assert whole.endswith(answered.body)
        assert await node.ask(ApiKey.METADATA, version, **asked) == response
        assert await node.ask(ApiKey.METADATA, version, **asked) == response

    run(test())


def test_nodes_cluster_and_controller() -> None:
    async def test() -> None:
        node = FakeNode()
        node.register(2, rack="r2")
        response = await node.ask(ApiKey.METADATA, 9, topics=[])
        assert [(b.node_id, b.host, b.port, b.rack) for b in response.brokers] == [
            (1, "host1", 9092, None),
            (2, "host2", 9092, "r2"),
        ]
        assert (response.cluster_id, response.controller_id) == (CLUSTER_ID, 1)
        assert response.cluster_authorized_operations == topology.OPERATIONS_UNKNOWN

    run(test())


def test_operations_are_told_to_those_who_ask() -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("t")
        response = await ask(
            node,
            8,
            "t",
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        )
        assert response.cluster_authorized_operations == topology.CLUSTER_OPERATIONS
        assert response.topics[0].topic_authorized_operations == topology.TOPIC_OPERATIONS

    run(test())


def test_absent_and_impossible_names() -> None:
    async def test() -> None:
        node = FakeNode()
        response = await ask(node, 9, "absent", "with space", "", "x" * 250, "absent")
        assert [(t.name[:10], t.error_code) for t in response.topics] == [
            ("absent", 3),
            ("with space", 17),
            ("", 17),
            ("x" * 10, 17),
        ]

    run(test())


def test_by_id() -> None:
    async def test() -> None:
        node = FakeNode()
        topic = await node.create("t")
        response = await node.ask(
            ApiKey.METADATA,
            12,
            topics=[
                {"topic_id": topic.topic_id, "name": None},
                {"topic_id": UUID(int=9), "name": None},
            ],
        )
        found, missing = response.topics
        assert (found.name, found.error_code, found.topic_id) == ("t", 0, topic.topic_id)
        assert (missing.name, missing.error_code, missing.topic_id) == (None, 100, UUID(int=9))

    run(test())


@pytest.mark.parametrize("version", [10, 11])
def test_ids_and_null_names_are_refused_before_version_12(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        for topic in ({"topic_id": UUID(int=9), "name": "t"}, {"name": None}):
            response = await node.ask(ApiKey.METADATA, version, topics=[topic])
            assert response.topics[0].error_code == 42

    run(test())


def test_creation_needs_the_node_and_the_client() -> None:
    async def test() -> None:
        closed = await ask(FakeNode(), 5, "t")
        assert closed.topics[0].error_code == 3
        node = creating()
        unwanted = await ask(node, 5, "t", allow_auto_topic_creation=False)
        assert unwanted.topics[0].error_code == 3
        assert node.image.topics == {}
        created = await ask(node, 5, "t", "bad name", allow_auto_topic_creation=True)
        assert [(t.error_code, len(t.partitions)) for t in created.topics] == [(0, 3), (17, 0)]
        old_client = await ask(node, 3, "u")
        assert old_client.topics[0].error_code == 0

    run(test())


def test_a_creation_that_is_refused_or_lost_is_told() -> None:
    async def test() -> None:
        node = creating()
        node.outcomes = [Refused(code=44, message="too many")]
        response = await ask(node, 5, "t", allow_auto_topic_creation=True)
        assert response.topics[0].error_code == 44
        node.outcomes = [Refused(code=36, message="somebody was faster")]
        response = await ask(node, 5, "t", allow_auto_topic_creation=True)
        assert response.topics[0].error_code == 3
        node.outcomes = [Unknown(message="no quorum")]
        response = await ask(node, 5, "t", allow_auto_topic_creation=True)
        assert response.topics[0].error_code == 3

    run(test())


def test_a_fenced_leader_is_no_leader() -> None:
    async def test() -> None:
        node = FakeNode()
        node.register(2)
        await node.ask(
            ApiKey.CREATE_TOPICS,
            5,
            topics=[
                {
                    "name": "t",
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [{"partition_index": 0, "broker_ids": [2, 1]}],
                    "configs": (),
                }
            ],
            timeout=100,
        )
        assert (await ask(node, 9, "t")).topics[0].partitions[0].leader_id == 2
        fence(node, 2)
        partition = (await ask(node, 9, "t")).topics[0].partitions[0]
        assert (partition.error_code, partition.leader_id) == (5, NO_NODE)
        assert (partition.replica_nodes, partition.offline_replicas) == ((2, 1), (2,))
        oldest = (await ask(node, 0, "t")).topics[0].partitions[0]
        assert (oldest.error_code, oldest.replica_nodes, oldest.isr_nodes) == (5, (1,), (1,))
        assert [b.node_id for b in (await ask(node, 9)).brokers] == [1]

    run(test())


def test_entries_are_encoded_once_per_image_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encode = metadata._encode_topic

    def counting(fields: response_builder.Fields, version: int) -> Generator[None, None, bytes]:
        encoded.append(fields["name"])
        return encode(fields, version)

    monkeypatch.setattr(metadata, "_encode_topic", counting)

    async def test() -> None:
        node = FakeNode()
        for name in "abc":
            await node.create(name)
        await node.ask(ApiKey.METADATA, 9, topics=None)
        await node.ask(ApiKey.METADATA, 9, topics=None)
        await ask(node, 9, "b")
        assert encoded == ["a", "b", "c"]
        await node.ask(
            ApiKey.CREATE_PARTITIONS,
            3,
            topics=[{"name": "b", "count": 2, "assignments": None}],
            timeout=100,
        )
        await node.ask(ApiKey.METADATA, 9, topics=None)
        assert encoded == ["a", "b", "c", "b"]
        node.register(2)
        await ask(node, 9, "c")
        assert encoded[4:] == ["c"]

    run(test())


def test_entries_of_deleted_topics_are_dropped() -> None:
    async def test() -> None:
        node = FakeNode()
        entries = metadata.TopicEntries()
        for number in range(50):
            topic = await node.create(f"t{number}")
            seen = topology.Topology(node.context)
            await node.context.turns.finish(entries.entry(seen, topic, 9, False))
            command = {"topic_names": [topic.name], "timeout": 100}
            await node.ask(ApiKey.DELETE_TOPICS, 4, **command)
        assert len(entries._kept[9, False]) <= 2

    run(test())


class TestDescribeCluster:
    """Who is there."""

    def test_nodes(self) -> None:
        async def test() -> None:
            node = FakeNode()
            node.register(2)
            fence(node, 2)
            response = await node.ask(
                ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=False
            )
            assert (response.cluster_id, response.controller_id) == (CLUSTER_ID, 1)
            assert [b.broker_id for b in response.brokers] == [1]
            response = await node.ask(
                ApiKey.DESCRIBE_CLUSTER,
                2,
                include_cluster_authorized_operations=True,
                endpoint_type=1,
                include_fenced_brokers=True,
            )
            assert [(b.broker_id, b.is_fenced) for b in response.brokers] == [(1, False), (2, True)]
            assert response.cluster_authorized_operations == topology.CLUSTER_OPERATIONS

        run(test())

    @pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (3, 115)])
    def test_only_brokers_are_described(self, endpoint_type: int, code: int) -> None:
        async def test() -> None:
            response = await FakeNode().ask(
                ApiKey.DESCRIBE_CLUSTER,
                1,
                include_cluster_authorized_operations=False,
                endpoint_type=endpoint_type,
            )
            assert response.error_code == code

        run(test())


def test_two_nodes_at_once_keep_apart() -> None:
    """Nothing is shared between the nodes of one process."""

    async def test() -> None:
        first, second = FakeNode(), FakeNode()
        await first.create("t", 1)
        await second.create("t", 2)
        for node, count in ((first, 1), (second, 2), (first, 1)):
            assert len((await ask(node, 9, "t")).topics[0].partitions) == count
        assert isinstance(first.commands[0], CreateTopic)
        assert isinstance(first.image.topics["t"], TopicImage)

    run(test())


def test_what_is_out_of_service_is_led_by_nobody_and_healthy_partitions_are() -> None:
    async def test() -> None:
        node = FakeNode()
        topic = await node.create("t", 3)
        offline: frozenset[tuple[TopicId, int]] = frozenset()
        node.context.offline = lambda: offline

        async def leaders(version: int) -> list[tuple[int, int, list[int]]]:
            answer = await node.ask(ApiKey.METADATA, version, topics=None)
            return [
                (int(each.error_code), each.leader_id, list(each.offline_replicas))
                for each in answer.topics[0].partitions
            ]

        healthy: tuple[int, int, list[int]] = (0, 1, [])
        failed = (LeaderNotAvailableError.code, -1, [1])
        for version in (5, 13):
            offline = frozenset()
            assert await leaders(version) == [healthy] * 3
            offline = frozenset([(topic.topic_id, 1)])
            assert await leaders(version) == [healthy, failed, healthy]
        wanted = {"topics": [{"name": "t"}], "response_partition_limit": 9, "cursor": None}
        pages = await node.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, **wanted)
        assert [each.leader_id for each in pages.topics[0].partitions] == [1, -1, 1]
        # Another node's failures are not known here.
        node.context.node_id = NodeId(2)
        offline = frozenset([*offline, (topic.topic_id, 9)])
        assert await leaders(13) == [healthy] * 3

    run(test())
